"""`docker run` text: golden for every shipped recipe, and read back to the same launch."""

from __future__ import annotations

import os
import shlex
import string
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import identify
from firesteel.catalog.launches import from_recipe
from firesteel.engines.engine import grammar
from firesteel.errors import UsageError
from firesteel.launch import Ask, Container, EngineName, FlagValue, Launch, Mount
from firesteel.reads.launches import read
from firesteel.render import containerized, docker, docker_argv
from firesteel.render.docker import quote
from firesteel.units import GIB
from firesteel.values import replace

GOLDEN = Path(__file__).parent / "golden"
SHIPPED = shipped()

IMAGES: dict[str, tuple[EngineName, tuple[str, ...]]] = {
    "vllm/vllm-openai:v0.24.0": ("vllm", ()),
    "nvcr.io/nvidia/vllm:26.04-py3": ("vllm", ("vllm", "serve")),
    "my.registry:5000/thing@sha256:00": ("vllm", ("bash", "-lc", "pip install x && vllm serve")),
    "ghcr.io/ggml-org/llama.cpp:server-cuda13-b9000": ("llamacpp", ()),
    "lmsysorg/sglang:v0.5.9": ("sglang", ("python3", "-m", "sglang.launch_server")),
}
text = st.text(string.printable.rstrip("\r\x0b\x0c") + "é✓", max_size=15)
word = st.text(string.ascii_letters + string.digits + "_./-", min_size=1, max_size=12).filter(
    lambda found: found[0] not in "-~"
)
value = text.filter(lambda found: found[:1] not in ("-", "{", "["))
name = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True)
flag = st.from_regex(r"[a-z][a-z0-9]{1,5}(-[a-z]{1,4})?", fullmatch=True)
path = st.builds(lambda start, rest: start + rest, st.sampled_from(["/", "~/", "$HOME/", "./"]), word)


@st.composite
def launches(draw: st.DrawFn) -> Launch:
    image = draw(st.sampled_from(sorted(IMAGES)))
    engine, program = IMAGES[image]
    talk = grammar(engine)
    known = identify(image, SHIPPED.images)
    taken = {"host", "port", "model", "model-path", "hf-repo", talk.name_flag, *talk.aliases, *talk.switches}
    flags: dict[str, FlagValue] = draw(
        st.dictionaries(
            flag.filter(
                lambda found: (
                    found not in taken
                    and not found.startswith("no-")
                    and not any(known.startswith(found) for known in talk.abbreviable)
                )
            ),
            value | st.booleans() | st.dictionaries(text, text | st.integers(), max_size=3),
            max_size=5,
        )
    )
    return Launch(
        name=draw(value.filter(lambda found: "," not in found)),
        model=draw(st.sampled_from(["org/model", "org/repo:Q4_K_M", "/models/a b.gguf"])),
        engine=engine,
        version=known.version if known else None,
        flags=flags,
        env=draw(st.dictionaries(name, text, max_size=3)) | {"HF_TOKEN": "$HF_TOKEN"},
        port=draw(st.integers(1, 65535)),
        container=Container(
            image=image,
            program=program,
            gpus=draw(st.none() | st.just("all")),
            ipc=draw(st.none() | st.just("host")),
            shm_bytes=draw(st.none() | st.integers(1, 2**40)),
            network=draw(st.none() | st.just("host")),
            restart=draw(st.none() | st.just("unless-stopped")),
            publish=tuple(draw(st.lists(st.sampled_from(["8000:8000", "127.0.0.1:1:2"]), max_size=2))),
            mounts=tuple(draw(st.lists(st.builds(Mount, path, path, st.booleans()), max_size=2))),
            labels=draw(st.dictionaries(word, text, max_size=2)),
            options=tuple(draw(st.lists(st.tuples(st.just("ulimit"), word), max_size=2)))
            + tuple(
                draw(st.lists(st.sampled_from([("rm", None), ("init", None), ("rm", "false")]), max_size=1))
            ),
        ),
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(launches())
def test_read_is_the_inverse(launch: Launch) -> None:
    (reading,) = read(docker(launch), "run.sh", SHIPPED.images)
    assert reading.launch == launch


@settings(deadline=None, max_examples=25)
@given(launches())
def test_the_command_run_is_the_command_printed(launch: Launch) -> None:
    """A real shell takes the text apart into the very words that firesteel would run."""
    script = "mkdir() { :; }\n" + docker(launch).replace("docker run", "printf '%s\\0' docker run", 1)
    names = {found: f"${found}" for found in ("HF_TOKEN", *launch.env)}
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        check=True,
        env={"HOME": "$HOME", "PATH": os.environ["PATH"]} | names,
    )
    printed = [word.replace("$HOME/", "~/") for word in done.stdout.decode().split("\0")[:-1]]
    run = [word.replace("$HOME/", "~/") for word in docker_argv(launch).argv]
    if "$" not in "".join(run).replace("$HF_TOKEN", ""):
        assert printed == run


@pytest.mark.parametrize("recipe", sorted(SHIPPED.recipes))
def test_golden(recipe: str) -> None:
    launch = from_recipe(SHIPPED, SHIPPED.recipes[recipe], Ask())
    golden = GOLDEN / f"{recipe}.sh"
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.mkdir(exist_ok=True)
        golden.write_text(docker(launch), "utf-8")
    assert docker(launch) == golden.read_text("utf-8"), (
        "if this is meant: UPDATE_GOLDEN=1 pytest tests/render"
    )
    (reading,) = read(docker(launch), "golden.sh", SHIPPED.images)
    expected = containerized(launch)
    assert reading.launch == replace(expected, version=reading.launch.version)


def test_no_golden_file_is_left_over() -> None:
    assert {found.stem for found in GOLDEN.glob("*.sh")} == set(SHIPPED.recipes)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("plain", "plain"),
        ("a b", "'a b'"),
        ("~/vllm:/models", "~/vllm:/models"),
        ("~/a b", "~/'a b'"),
        ("$HOME/a b", '"$HOME/a b"'),
        ("$(id -u):$(id -g)", '"$(id -u):$(id -g)"'),
        ("$(rm -rf /)$HOME`x`", '"\\$(rm -rf /)$HOME\\`x\\`"'),
        ("$(rm -rf /)", "'$(rm -rf /)'"),
        ('{"$ref":1}', "'{\"$ref\":1}'"),
        ("", "''"),
        ("~/", "~/"),
    ],
)
def test_quote(word: str, expected: str) -> None:
    assert quote(word) == expected


def test_a_mount_with_a_colon_is_written_long() -> None:
    launch = Launch(
        "m", "org/m", "vllm", container=Container("my/vllm", mounts=(Mount("/a:b,c", "/d", True),))
    )
    assert "--mount 'type=bind,\"source=/a:b,c\",target=/d,readonly'" in docker(launch)
    (reading,) = read(docker(launch), "-", SHIPPED.images)
    assert reading.launch.container is not None
    assert reading.launch.container.mounts == (Mount("/a:b,c", "/d", True),)


def test_sizes_are_docker_sizes() -> None:
    for count, expected in ((16 * GIB, "16g"), (64 * 2**20, "64m"), (1000, "1000"), (1024, "1k")):
        launch = Launch("m", "m", "vllm", container=Container("x", shm_bytes=count))
        words = docker_argv(launch).argv
        assert words[words.index("--shm-size") + 1] == expected


def test_a_child_process_in_its_official_image() -> None:
    launch = Launch("small", "/models/dir/a.gguf", "llamacpp", "11549", flags={"ctx-size": "4096"}, port=9000)
    assert docker(launch) == (
        "# firesteel runs this as a child process (`llama-server`); this is its official image\n"
        "docker run -d --name firesteel-small \\\n"
        "  --label firesteel=small \\\n"
        "  -p 127.0.0.1:9000:9000 \\\n"
        "  -v /models/dir:/models:ro \\\n"
        "  --health-cmd 'curl -fsS http://127.0.0.1:9000/health' \\\n"
        "  --health-start-period 30m \\\n"
        "  ghcr.io/ggml-org/llama.cpp:server \\\n"
        "  --model /models/a.gguf \\\n"
        "  --host 0.0.0.0 \\\n"
        "  --port 9000 \\\n"
        "  --alias small \\\n"
        "  --ctx-size 4096\n"
    )
    hub = docker(Launch("small", "org/repo:Q4_1", "llamacpp"))
    assert "~/.cache/huggingface:/hub" in hub and "--hf-repo org/repo:Q4_1" in hub
    assert "vllm/vllm-openai:v0.24.0 org/m" in docker(Launch("m", "org/m", "vllm", "0.24.0"))
    assert "sglang.launch_server" in docker(Launch("m", "org/m", "sglang", "0.5.9"))
    with pytest.raises(UsageError, match="of unknown version"):
        docker(Launch("m", "org/m", "vllm"))


def test_a_health_check_asks_the_port_of_the_engine() -> None:
    """llama.cpp's images ask 8080 themselves; other images have no check."""
    gguf = Launch("m", "org/repo:Q4_1", "llamacpp", port=8080)
    assert "--health" not in docker(gguf)
    assert "'curl -fsS http://127.0.0.1:8081/health'" in docker(replace(gguf, port=8081))
    assert "--health" not in docker(Launch("m", "org/m", "vllm", "0.24.0"))


def test_folders_are_created_before_docker_creates_them_for_root() -> None:
    mounts = (Mount("~/a b", "/x"), Mount("/models", "/m", read_only=True), Mount("volume", "/v"))
    launch = Launch("m", "org/m", "vllm", container=Container("x/vllm", mounts=mounts))
    assert docker(launch).startswith("mkdir -p ~/'a b' && \\\ndocker run")
    assert read(docker(launch), "text", SHIPPED.images)[0].launch.container == launch.container


def test_an_explicit_name_and_a_run_in_the_foreground() -> None:
    container = Container("x/vllm", options=(("name", "mine"),))
    words = docker_argv(Launch("m", "org/m", "vllm", container=container), detach=False).argv
    assert words[:2] == ("docker", "run") and "-d" not in words
    assert words.count("--name") == 1 and "mine" in words


def test_a_secret_is_passed_by_name() -> None:
    launch = Launch(
        "m", "org/m", "vllm", env={"HF_TOKEN": "$HF_TOKEN", "A": "1"}, container=Container("x/vllm")
    )
    words = docker_argv(launch).argv
    assert words[words.index("-e") + 1] == "HF_TOKEN" and "A=1" in words
    assert "$HF_TOKEN" not in docker(launch)


def test_a_script_stays_a_script() -> None:
    container = Container("x", program=("bash", "-lc", "pip install scipy && vllm serve"))
    words = docker_argv(Launch("org/m", "org/m", "vllm", container=container, flags={"a": "b c"})).argv
    assert words[-2] == "-lc"
    assert shlex.split(words[-1])[:5] == ["pip", "install", "scipy", "&&", "vllm"]
    assert words[-1].endswith("--a 'b c'")
