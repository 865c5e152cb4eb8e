"""Compose files, read as docker compose reads them."""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import dedent, indent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.reads.compose import MAX_EXTENDS, starts
from firesteel.reads.compose_text import ExpandedText, split_command
from firesteel.reads.docker import EngineStart
from firesteel.reads.launches import read
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.shell import NO_SPAN, Word
from firesteel.reads.source_text import source_file
from firesteel.reads.yaml_nodes import parse_documents
from firesteel.units import GIB

FILE = Path(__file__).parent / "files" / "compose.yaml"
VLLM = "vllm/vllm-openai:v0.24.0"


@pytest.fixture(scope="module")
def spark(images: Images) -> tuple[ReadLaunch, ...]:
    return read(FILE.read_text(), "compose.yaml", images)


def test_a_stack(spark: tuple[ReadLaunch, ...]) -> None:
    chat, coder = spark
    options = (("ulimit", "memlock=-1"), ("ulimit", "stack=67108864:67108864"))
    assert chat.launch == Launch(
        name="chat",
        model="Qwen/Qwen3-8B",
        engine="vllm",
        version="0.24.0",
        flags={
            "max-model-len": "32768",
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
            "enforce-eager": True,
        },
        env={"HF_TOKEN": "$HF_TOKEN", "HF_HOME": "/models", "VLLM_USE_V1": "1", "NCCL_DEBUG": "$NCCL_DEBUG"},
        container=Container(
            image=VLLM,
            gpus="all",
            ipc="host",
            shm_bytes=16 * GIB,
            restart="unless-stopped",
            publish=("127.0.0.1:8000:8000",),
            mounts=(Mount("~/models", "/models"), Mount("./templates", "/templates", read_only=True)),
            options=(*options, ("name", "chat"), ("memory", "100g")),
        ),
        extra=("#",),
    )
    container = coder.launch.container
    assert container is not None
    assert (container.shm_bytes, container.gpus, container.entrypoint) == (
        64 * GIB,
        '"device=0,1"',
        "/bin/bash",
    )
    assert container.program == ("-lc", "pip install scipy\nexec vllm serve")
    assert coder.launch.env == {"HF_TOKEN": "$HF_TOKEN", "VLLM_USE_V1": '"1"'}
    assert (coder.launch.flags, coder.launch.port) == ({"max-num-seqs": "8"}, 8001)


def test_places(spark: tuple[ReadLaunch, ...]) -> None:
    chat, coder = spark
    places = {key: (location.line, location.column) for key, location in chat.locations.items()}
    assert places["image"] == (5, 10)
    assert places["option:restart"] == (7, 3)
    assert places["option:gpus"] == (19, 13)
    assert places["env:VLLM_USE_V1"] == (31, 7)
    assert places["flag:max-model-len"] == (41, 7)
    assert places["flag:enforce-eager"] == (43, 9)
    assert chat.locations["flag:enforce-eager"].text == "# --enforce-eager"
    places = {key: (location.line, location.column) for key, location in coder.locations.items()}
    assert (places["option:shm-size"], places["env:VLLM_USE_V1"]) == ((48, 5), (54, 9))
    assert (places["flag:max-num-seqs"], places["model"]) == ((61, 11), (59, 25))


def test_spans_match_the_words(spark: tuple[ReadLaunch, ...]) -> None:
    text = FILE.read_text()
    words = [word for reading in spark for key in reading.words for word in reading.words[key]]
    bare = [word for word in words if word.text and word.span != NO_SPAN and "'" not in _cut(text, word)]
    assert len(bare) > 30
    for word in bare:
        assert word.text in (_cut(text, word), _cut(text, word)[1:-1]) or "\n" in word.text


def _cut(text: str, word: Word) -> str:
    return text[slice(*word.span)]


def test_an_expanded_variable_has_no_span(spark: tuple[ReadLaunch, ...]) -> None:
    (image,) = spark[0].words["image"]
    assert image.span == NO_SPAN
    whole = source_file("a ${B:-c} d=$$e f ${G:-} ${H}", "x")
    words = list(split_command(ExpandedText(whole.whole), whole))
    assert [word.text for word in words if word.span == NO_SPAN] == ["c", "d=$e"]
    assert [_cut(whole.text, word) for word in words if word.span != NO_SPAN] == ["a", "f", "${H}"]


def service(body: str) -> EngineStart:
    text = f"services:\n  one:\n{indent(dedent(body), '    ')}"
    (document,) = parse_documents(source_file(text, "compose.yaml"))
    (start,) = starts(document) or ()
    return start


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("shm_size: 1073741824", [("shm-size", "1073741824")]),
        ("network_mode: host", [("network", "host")]),
        ('restart: "no"', [("restart", "no")]),
        ("mem_limit: 64g", [("memory", "64g")]),
        ("mem_limit:", []),
        ("privileged: true\ntty: false", [("privileged", None)]),
        ("gpus: all", [("gpus", "all")]),
        ("gpus: [{count: 2}]", [("gpus", "2")]),
        ("gpus: [{count: -1}]", [("gpus", "all")]),
        ("gpus: [{driver: amd, capabilities: [tpu]}]", []),
        ("runtime: nvidia", [("gpus", "all"), ("runtime", "nvidia")]),
        ("runtime: runc", [("runtime", "runc")]),
        ("gpus: [{count: 1}]\nruntime: nvidia", [("runtime", "nvidia"), ("gpus", "1")]),
        ("ulimits: {memlock: {soft: -1, hard: -1}, nofile: 1024}",
         [("ulimit", "memlock=-1:-1"), ("ulimit", "nofile=1024")]),
        ("env_file: .env", [("env-file", ".env")]),
        ("env_file: [a.env, b.env]", [("env-file", "a.env"), ("env-file", "b.env")]),
        ("environment: [A=1, B, 'C=']", [("env", "A=1"), ("env", "B"), ("env", "C=")]),
        ("environment: {A: 1, B: , C: ''}", [("env", "A=1"), ("env", "B"), ("env", "C=")]),
        ("labels: {a.b: c}", [("label", "a.b=c")]),
        ("ports: [8000, '8000:8000', '127.0.0.1:1:2/udp']",
         [("publish", "8000"), ("publish", "8000:8000"), ("publish", "127.0.0.1:1:2/udp")]),
        ("ports: [{target: 80}, {target: 80, published: 81}, {target: 80, host_ip: '::1', published: 81}]",
         [("publish", "80"), ("publish", "81:80"), ("publish", "[::1]:81:80")]),
        ("ports: [{target: 80, host_ip: 127.0.0.1, protocol: udp}]", [("publish", "127.0.0.1::80/udp")]),
        ("volumes: [a:/b, /c, './d:/e:ro,z']",
         [("volume", "a:/b"), ("volume", "/c"), ("volume", "./d:/e:ro,z")]),
        ("volumes: [{type: volume, source: a, target: /b, read_only: true}]", [("volume", "a:/b:ro")]),
        ("volumes: [{type: bind, source: 'C:/a', target: /b}]",
         [("mount", "type=volume,source=C:/a,target=/b")]),
        ("volumes: [{type: tmpfs, target: /b}]", [("mount", "type=tmpfs,target=/b")]),
        ("devices: [/dev/infiniband:/dev/infiniband]", [("device", "/dev/infiniband:/dev/infiniband")]),
        ("deploy: {resources: {limits: {memory: 8g, cpus: '4'}, reservations: {memory: 4g}}}",
         [("memory", "8g"), ("memory-reservation", "4g"), ("cpus", "4")]),
        ("restart: always\ndeploy: {restart_policy: {condition: on-failure, max_attempts: 3}}",
         [("restart", "on-failure:3")]),
        ("deploy: {restart_policy: {condition: any}}", [("restart", "always")]),
        ("deploy: {restart_policy: {delay: 5s}}", []),
        ("entrypoint: []", [("entrypoint", "")]),
        ("entrypoint: ''", [("entrypoint", "")]),
        ("entrypoint:", []),
        ("healthcheck: {test: [CMD, vllm, serve]}\nprofiles: [x]\nnetworks: [a]", []),
    ],
)  # fmt: skip
def test_options(body: str, expected: list[tuple[str, str | None]]) -> None:
    start = service(f"image: x\n{body}")
    assert [(option.name, option.value) for option in start.options] == expected
    assert all(option.word.line > 3 for option in start.options)


@pytest.mark.parametrize(
    ("body", "entrypoint", "words"),
    [
        ("command: vllm serve org/m", None, ["vllm", "serve", "org/m"]),
        ("command: [vllm, serve, org/m, 8]", None, ["vllm", "serve", "org/m", "8"]),
        ("command:", None, []),
        ("entrypoint: vllm serve\ncommand: org/m --a 'b c'", "vllm", ["serve", "org/m", "--a", "b c"]),
        ("entrypoint: [bash, -c]\ncommand: ['vllm serve m']", "bash", ["-c", "vllm serve m"]),
        ("entrypoint: [vllm, serve]\ncommand: null", "vllm", ["serve"]),
        ("entrypoint: ''\ncommand: [vllm, serve]", "", ["vllm", "serve"]),
    ],
)
def test_commands(body: str, entrypoint: str | None, words: list[str]) -> None:
    start = service(f"image: x\n{body}")
    typed = [option.value for option in start.options if option.name == "entrypoint"]
    assert typed == ([] if entrypoint is None else [entrypoint])
    assert [word.text for word in start.arguments] == words


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("${A:-b}", "b"),
        ("${A-b}", "b"),
        ("x${A:-}y", "xy"),
        ("${A}$B", "${A}$B"),
        ("${A:?set A}", "${A}"),
        ("${A?}", "${A}"),
        ("${A:+b}", "${A:+b}"),
        ("$$A $${A}", "$A ${A}"),
        ("${A:-${B:-c}}d", "cd"),
        ("${A:-$${B}}", "${B}"),
        ('${A:-{"a": {"b": 1}}}', '{"a": {"b": 1}}'),
        ("{${A:-b}}", "{b}"),
        ("${A:-b", "${A:-b"),
        ("${", "${"),
        ("$", "$"),
        ("${A:-" * 12 + "b" + "}" * 12, "${A:-" * 4 + "b" + "}" * 4),
    ],
)
def test_variables(written: str, read_as: str) -> None:
    assert ExpandedText(source_file(written, "x").whole).text == read_as


def words_of(text: str) -> list[str]:
    whole = source_file(text, "x")
    return [word.text for word in split_command(ExpandedText(whole.whole), whole)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\n b\t c", ["a", "b", "c"]),
        ("a # b", ["a", "#", "b"]),
        ("a && b", ["a"]),
        ("a > log", ["a"]),
        ("vllm serve <MODEL> --x", ["vllm", "serve", "<MODEL>", "--x"]),
        (r"""'a\b' "a\"b" "a\nb" a\ b""", ["a\\b", 'a"b', "a\nb", "a b"]),
        ("--a \\\n--b", ["--a", "\n--b"]),
        ("--a ${B:-c d} ${E:?why not}", ["--a", "c", "d", "${E}"]),
        ("a$(b c)`d e`", ["a$(b c)`d e`"]),
        ("''", [""]),
        ("", []),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@given(st.text(alphabet="ab-{:é '\"\n", max_size=40))
def test_words_are_those_of_a_shell(text: str) -> None:
    try:
        expected = shlex.split(text)
    except ValueError:
        with pytest.raises(UsageError, match="never closed"):
            words_of(text)
    else:
        assert words_of(text) == expected


def test_a_quote_that_is_not_closed() -> None:
    with pytest.raises(UsageError, match=r"compose\.yaml:4:25: this ' is never closed"):
        service("image: x\ncommand: vllm serve 'm")


def test_extends(images: Images) -> None:
    text = f"""\
services:
  base:
    image: {VLLM}
    restart: always
    environment: {{A: 1, B: 2}}
    volumes: [a:/a]
    command: --model org/base
  one:
    extends: base
    restart: on-failure:3
    environment: [A=3]
    volumes: [b:/b]
  two:
    extends: {{service: one}}
    entrypoint: []
    command: [vllm, serve, org/two]
  far:
    extends: {{service: one, file: other.yaml}}
    image: {VLLM}
    command: org/far
"""
    base, one, two, far = (reading.launch for reading in read(text, "compose.yaml", images))
    assert [launch.model for launch in (base, one, two, far)] == [
        "org/base",
        "org/base",
        "org/two",
        "org/far",
    ]
    assert two.env == one.env == {"A": "3", "B": "2"}
    container, last = one.container, two.container
    assert container and last and far.container
    assert (container.restart, container.mounts) == ("on-failure:3", (Mount("a", "/a"), Mount("b", "/b")))
    assert (last.restart, last.entrypoint, last.program) == ("on-failure:3", "", ("vllm", "serve"))
    assert far.container.restart is None


def test_merge_keys_the_nearest_wins(images: Images) -> None:
    text = f"""\
x-a: &a {{image: '{VLLM}', restart: always, command: org/a}}
x-b: &b {{restart: "no", ipc: host, environment: &env {{A: 1}}}}
services:
  one:
    <<: [*a, *b]
    command: org/one
    environment: {{<<: *env, B: 2}}
"""
    (reading,) = read(text, "compose.yaml", images)
    container = reading.launch.container
    assert container and (container.restart, container.ipc) == ("always", "host")
    assert (reading.launch.model, reading.launch.env) == ("org/one", {"A": "1", "B": "2"})


def test_a_service_that_is_built(images: Images) -> None:
    text = "services:\n  one:\n    build: .\n    command: [vllm, serve, org/m]\n  two:\n    build: .\n"
    (reading,) = read(text, "compose.yaml", images)
    container = reading.launch.container
    assert container and (container.image, reading.launch.version, reading.launch.model) == (
        "",
        None,
        "org/m",
    )
    assert (reading.locations["image"].line, reading.words["image"][0].span) == (3, NO_SPAN)


@pytest.mark.parametrize(
    "text",
    [
        "a: b",
        "services: [a]",
        "services:",
        "services: {a: b}",
        "[]",
        "a",
        "{kind: x, services: {a: {image: x}}}",
    ],
)
def test_other_files_are_not_compose_files(text: str) -> None:
    (document,) = parse_documents(source_file(text, "x.yaml"))
    assert starts(document) is None


SCALARS = st.one_of(
    st.sampled_from(
        ["vllm serve m", "${A:-${B}}", "$$", "all", "8000:80", "a'b", "host", "true", "", "-1", VLLM]
    ),
    st.none(),
    st.integers(),
    st.text(max_size=8),
)
KEYS = st.sampled_from(
    [
        *("services", "image", "build", "command", "entrypoint", "environment", "ports", "volumes", "deploy"),
        *("gpus", "resources", "reservations", "limits", "devices", "count", "device_ids", "capabilities"),
        *("restart_policy", "condition", "ulimits", "extends", "service", "target", "source", "published"),
        *("runtime", "one", "two", "<<"),
    ]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(["one", "two"]), st.dictionaries(KEYS, TREES, max_size=8), max_size=2))
def test_any_structure(images: Images, services: dict[str, object]) -> None:
    text = yaml.safe_dump({"services": services})
    try:
        read(text, "compose.yaml", images)
    except UsageError as error:
        assert error.next


def chain(count: int) -> str:
    links = "".join(f"  s{n}: {{extends: s{n - 1}}}\n" for n in range(1, count))
    return f"services:\n  s0: {{image: {VLLM}, command: m}}\n{links}"


def shared(services: int, variables: int) -> str:
    env = "".join(f"  A{n}: b\n" for n in range(variables))
    users = "".join(f"  s{n}: {{image: {VLLM}, environment: *env}}\n" for n in range(services))
    return f"x: &env\n{env}services:\n{users}"


def extended(services: int, variables: int) -> str:
    env = "".join(f"      A{n}: b\n" for n in range(variables))
    users = "".join(f"  s{n}: {{extends: base}}\n" for n in range(services))
    return f"services:\n  base:\n    image: {VLLM}\n    environment:\n{env}{users}"


LAUGHS = "a0: &a0 {x: y}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 40)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS + "services: {one: *a39}", "with its aliases expanded"),
        (f"services: {{one: &a {{image: {VLLM}, <<: *a}}}}", "with its aliases expanded"),
        ("services: &a {one: {image: *a}}", "with its aliases expanded"),
        (shared(2000, 5000), "with its aliases expanded"),
        (extended(2000, 5000), "more than 20,000 arguments"),
        (chain(MAX_EXTENDS + 1), f"extends more than {MAX_EXTENDS}"),
        ("services:\n  a: {extends: b}\n  b: {extends: a}\n", f"extends more than {MAX_EXTENDS}"),
        ("services: " + "[" * 50_000, "nested deeper"),
        ("services: " + "{a: " * 50_000, "nested deeper"),
        ("services: {one: {image: x, command: '" + "a " * 500_000 + "'}}", "more than 20,000 arguments"),
    ],
    ids=["laughs", "merge cycle", "cycle", "aliases", "extends", "chain", "loop", "lists", "maps", "words"],
)
def test_bombs(images: Images, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(text, "compose.yaml", images)


@pytest.mark.parametrize(
    "command",
    ["${A:-" * 200_000, "$${" * 340_000, "${A:-b} " * 12_000, "'a'" * 100_000, "{" * 10**6],
    ids=["open", "dollars", "defaults", "quotes", "braces"],
)
def test_long_commands_end(images: Images, command: str) -> None:
    quoted = command.replace("'", "''")
    text = f"services: {{one: {{image: '{VLLM}', command: '{quoted}'}}}}"
    (reading,) = read(text, "compose.yaml", images)
    assert reading.launch.engine == "vllm"


def test_a_chain_that_is_short_enough(images: Images) -> None:
    assert len(read(chain(MAX_EXTENDS), "compose.yaml", images)) == MAX_EXTENDS
