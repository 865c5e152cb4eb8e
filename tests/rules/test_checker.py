"""Findings: their order, position and text. Rules are looked up by what a launch has. Each matcher, alone."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import Image, identify
from firesteel.catalog.launches import from_recipe
from firesteel.launch import Ask, Container, EngineName, FlagValue, Launch
from firesteel.reads.launches import read
from firesteel.rules.checker import _PREDICATES, Finding, RuleIndex, check, matches, names
from firesteel.rules.context import Context
from firesteel.rules.rule import PREDICATES, Rule, rules
from firesteel.values import YamlFile

SHIPPED = shipped()


def findings(text: str, hardware: str | None = "gb10") -> list[Finding]:
    (reading,) = read(text, "run.sh", SHIPPED.images)
    return list(check(reading.launch, hardware=hardware, locations=reading.locations))


def test_the_house_example() -> None:
    text = (
        "docker run -d --gpus all --restart unless-stopped \\\n  -p 127.0.0.1:8000:8000 \\\n"
        "  vllm/vllm-openai:v0.24.0 vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 \\\n"
        "  --gpu-memory-utilization 0.8\n"
    )
    stop, warn = findings(text)
    assert (stop.rule, stop.level, stop.confidence) == ("vllm-entrypoint-twice", "stop", "verified")
    assert stop.location is not None and (stop.location.path, stop.location.line) == ("run.sh", 3)
    assert stop.saw == "vllm/vllm-openai:v0.24.0 vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4"
    assert stop.instead is not None
    assert stop.instead.startswith("vllm/vllm-openai:v0.24.0 nvidia/Qwen3.6-35B-A3B-NVFP4")
    assert stop.scope == "vLLM of any version"
    assert stop.sources[0].url.startswith("https://")
    assert (warn.rule, warn.location and warn.location.line) == ("restart-policy-unproven", 1)


def test_each_variable_is_a_finding_of_its_own() -> None:
    text = (
        "docker run \\\n -e VLLM_USE_FLASHINFER_MOE_FP4=0 \\\n -e VLLM_NVFP4_GEMM_BACKEND=marlin \\\n"
        " vllm/vllm-openai:v0.24.0 org/m --gpu-memory-utilization 0.5"
    )
    found = [finding for finding in findings(text) if finding.rule == "vllm-kernel-env-gone"]
    assert [finding.location.line for finding in found if finding.location] == [2, 3]
    assert found[1].says.startswith("`VLLM_NVFP4_GEMM_BACKEND` was removed")


def test_a_moving_tag_warns_at_most() -> None:
    line = "docker run --gpus all {image} org/m --gpu-memory-utilization 0.5 --swap-space 4"
    (pinned,) = findings(line.format(image="vllm/vllm-openai:v0.24.0"))
    (moving,) = findings(line.format(image="vllm/vllm-openai:nightly"))
    assert (pinned.level, pinned.scope) == ("stop", "vLLM >=0.18.0")
    assert (moving.level, moving.scope) == ("warn", "vLLM >=0.18.0, if this tag is as new as vLLM 0.32.0")


def test_an_unknown_version_gets_notes_on_current_rules() -> None:
    (note,) = findings("docker run my/vllm:1 org/m --gpu-memory-utilization 0.5 --swap-space 4")
    assert (note.rule, note.level, note.scope) == ("vllm-swap-space-gone", "note", "vLLM >=0.18.0")
    assert note.says.startswith("if vLLM >= 0.18.0: `--swap-space` was removed in vLLM 0.18.0")
    ended = "docker run my/vllm:1 org/m --gpu-memory-utilization 0.5 --load-format fastsafetensors"
    assert findings(ended) == []


@pytest.mark.parametrize(
    ("line", "rule", "level", "saw"),
    [
        ("vllm serve m/n --gpu-mem 0.97", "utilization-over-0.95", "stop", "--gpu-memory-utilization 0.97"),
        (
            "ssh -p 22 me@spark 'cd x && vllm serve m/n --gpu-memory-util 0.95'",
            "utilization-over-0.90",
            "warn",
            None,
        ),
        ("vllm serve m/n --gpu-memory-utilization 95%", "memory-fraction-not-a-number", "stop", None),
        ("vllm serve m/n --disable-log-requests", "vllm-disable-log-requests-gone", "note", None),
        (
            "vllm serve m/n --spec-method mtp --spec-tokens 5",
            "mtp-many-draft-tokens",
            "warn",
            "--spec-tokens 5",
        ),
        ("vllm serve m/n --kv-cache-memory-bytes 20G", "kv-cache-bytes-without-utilization", "warn", None),
        ("sglang serve --model-path m --mem-fraction-static 0.95", "mem-fraction-over-0.90", "stop", None),
        (
            "docker run vllm/vllm-openai:v0.28.0 serve m/n",
            "vllm-entrypoint-twice",
            "stop",
            "vllm/vllm-openai:v0.28.0 serve m/n",
        ),
        (
            "docker run vllm/vllm-openai:v0.28.0 bash",
            "image-entrypoint-swallows-shell",
            "stop",
            "vllm/vllm-openai:v0.28.0 bash ...",
        ),
        ("docker run --network host vllm/vllm-openai:v0.28.0 m/n", "published-without-a-key", "note", None),
    ],
)
def test_lines_that_once_passed(line: str, rule: str, level: str, saw: str | None) -> None:
    finding = {finding.rule: finding for finding in findings(line)}[rule]
    assert finding.level == level
    assert finding.location is not None and finding.location.line == 1
    assert saw in (None, finding.saw)


def test_rules_about_a_machine_need_the_machine() -> None:
    line = "vllm serve org/m --gpu-memory-utilization 0.95"
    assert [finding.rule for finding in findings(line)] == ["utilization-over-0.90"]
    assert findings(line, hardware=None) == []


def test_a_launch_without_a_text_has_no_position() -> None:
    launch = Launch("m", "org/m", "vllm", flags={"gpu-memory-utilization": "0.95"})
    (finding,) = check(launch, hardware="gb10")
    assert finding.location is None and finding.saw == "--gpu-memory-utilization 0.95"


@pytest.mark.parametrize("name", sorted(SHIPPED.recipes))
def test_no_rule_stops_a_shipped_recipe(name: str) -> None:
    launch = from_recipe(SHIPPED, SHIPPED.recipes[name], Ask())
    found = {finding.rule for finding in check(launch, hardware="gb10") if finding.level != "note"}
    too_large = {"model-too-large"} if name == "llama-3.1-405b" else set()
    assert found <= {"utilization-unset"} | too_large  # the planner sets the first


text = st.text(string.printable, max_size=12)
engine_names: st.SearchStrategy[EngineName] = st.sampled_from(("vllm", "llamacpp", "sglang"))
flag_names = st.sampled_from(
    ["gpu-memory-utilization", "speculative-config", "flash-attn", "host", "kv-cache-dtype", "x"]
)
flag_values: st.SearchStrategy[FlagValue] = (
    text | st.booleans() | st.dictionaries(text, text) | st.lists(st.integers())  # type: ignore[assignment]  # invariance
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=100)
@given(
    st.builds(
        Launch,
        name=text,
        model=text,
        engine=engine_names,
        version=st.none() | text,
        flags=st.dictionaries(flag_names, flag_values),
        env=st.dictionaries(text, text, max_size=2),
        container=st.none()
        | st.builds(Container, image=text, program=st.tuples(text), publish=st.tuples(text)),
        extra=st.tuples(text),
    )
)
def test_any_launch_can_be_checked(launch: Launch) -> None:
    levels = [finding.level for finding in check(launch, hardware="gb10")]
    assert levels == sorted(levels, key=["stop", "warn", "note"].index)


@pytest.mark.parametrize(
    "arguments",
    [
        "--dtype $DTYPE", "--dtype <dtype>", "--kv-cache-dtype ${X:?}",
        "--gpu-memory-utilization '{{ .Values.x }}'",
        "--gpu-memory-utilization 0.7-0.8", "--moe-backend {backend}", "--reasoning-parser YOUR_PARSER",
        "--$FLAG 1", "--<flag> 1", "--dtype ...", '--speculative-config \'{"$K": 1, "method": "mtp"}\'',
    ],
)  # fmt: skip
def test_placeholders_stop_nothing(arguments: str) -> None:
    line = f"docker run --gpus all vllm/vllm-openai:v0.24.0 m/n {arguments}"
    assert [each.rule for each in findings(line) if each.level == "stop"] == []
    assert [each.rule for each in findings("llama-server -m x -fa $FA") if each.level == "stop"] == []


def test_what_would_move_a_terminal_is_spelt() -> None:
    (found,) = [
        each
        for each in findings("docker run --gpus all vllm/vllm-openai:v0.24.0 m/n --dtype $'\\e]52;c;x\\a'")
        if each.rule == "value-refused"
    ]
    assert "\x1b" not in found.saw + found.says and "\\x1b" in found.saw


@pytest.mark.parametrize("value", ["nan", "inf", "\u00b2", "1e999"])
def test_numbers_that_are_none(value: str) -> None:
    findings(
        f"vllm serve openai/gpt-oss-120b --gpu-memory-utilization {value} --max-num-batched-tokens {value}"
    )


IMAGES = shipped().images
EXAMPLES = sorted({line for rule in rules() for line in (*rule.hits, *rule.misses)})
LAUNCH_RULES = [rule for rule in rules() if not rule.when.across]
INDEX = RuleIndex(LAUNCH_RULES)


def contexts(text: str) -> list[Context]:
    found = []
    for reading in read(text, "run.sh", IMAGES):
        container = reading.launch.container
        image = identify(container.image, IMAGES) if container else None
        flaws = frozenset(key[5:] for key in reading.locations if key.startswith("flaw:"))
        found.append(Context(reading.launch, "gb10", image, flaws, program=reading.locations["program"].text))
    return found


def test_every_rule_that_matches_an_example_is_looked_up() -> None:
    for context in (context for line in EXAMPLES for context in contexts(line)):
        tried = {rule.id for rule in INDEX.find(names(context))}
        missed = [rule.id for rule in LAUNCH_RULES if rule.id not in tried and matches(rule, context)]
        assert not missed, context.launch


def test_every_predicate_with_a_trigger_exists() -> None:
    assert _PREDICATES.keys() <= PREDICATES.keys()


def test_a_bare_launch_has_few_rules() -> None:
    (context,) = contexts("vllm serve org/m")
    assert len(list(INDEX.find(names(context)))) < len(LAUNCH_RULES) / 4


OPENAI = Image("vllm", "0.24.0", entrypoint=("vllm", "serve"), sm=("12.0",))
MOVING = Image("vllm", None, floating=True)


def holds(
    when: dict[str, Any],
    launch: Launch,
    image: Image | None = None,
    hardware: str | None = "gb10",
    more: Mapping[str, Any] = {},
) -> list[str]:
    rule = YamlFile(
        "x",
        {
            "id": "a-rule",
            "level": "stop",
            "says": "",
            "when": when,
            "confidence": "verified",
            "sources": [{"url": "https://example.org", "seen": "2026-11-15"}],
            "hits": ["x"],
            "misses": ["y"],
            **more,
        },
        dict,
    ).convert(Rule)
    return [match.shown for match in matches(rule, Context(launch, hardware, image))]


def vllm(version: str | None = "0.24.0", **more: Any) -> Launch:
    return Launch("m", "Org/Model-NVFP4", "vllm", version, **more)


@pytest.mark.parametrize(
    ("version", "image", "specifier", "expected"),
    [
        ("0.24.0", None, ">=0.24.0", True),
        ("0.24.0", None, "<0.24.0", False),
        ("0.24.0rc1", None, "<0.24.0", False),  # PEP 440: a candidate of 0.24.0 is not before it
        ("0.24.0rc1", None, ">=0.23", True),
        ("0.24", None, ">=0.24.0", True),
        (None, None, ">=0.1", True),  # may hold: `check` makes a note of it
        (None, OPENAI, ">=0.1", True),
        (None, None, ">=0.1,<0.30", False),
        (None, None, "<0.30", False),
        (None, None, ">=99", False),
        (None, MOVING, ">=0.31", True),
        (None, MOVING, "<0.31", False),
        ("main", None, ">=0.1", True),
        ("main", None, "<99", False),
    ],
)
def test_version(version: str | None, image: Image | None, specifier: str, expected: bool) -> None:
    container = Container("i") if image else None
    assert bool(holds({"version": specifier}, vllm(version, container=container), image)) is expected


def test_llamacpp_builds_are_numbers() -> None:
    launch = Launch("m", "m", "llamacpp", "10105")
    assert holds({"version": ">=8955"}, launch)
    assert not holds({"version": "<8955"}, launch)


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ({"engine": "vllm"}, True),
        ({"engine": "sglang"}, False),
        ({"hardware": "gb10"}, True),
        ({"hardware": "h100"}, False),
        ({"model": "*nvfp4"}, True),
        ({"model": ["*gpt-oss*", "org/*"]}, True),
        ({"model": "nvfp4"}, False),
        ({"container": True}, True),
        ({"container": False}, False),
        ({"network": "host"}, True),
        ({"network": "bridge"}, False),
        ({"flag": "a"}, True),
        ({"flag": ["nope", "a"]}, True),
        ({"flag": "nope"}, False),
        ({"flag": "a", "value": "ONE"}, True),
        ({"flag": "a", "other_than": ["one"]}, False),
        ({"flag": "a", "bare": True}, False),
        ({"flag": "switch", "bare": True}, True),
        ({"flag": "switch", "value": "true"}, True),
        ({"flag": "off", "value": "false"}, True),
        ({"flag": "number", "above": 0.9}, True),
        ({"flag": "number", "above": 0.95}, False),
        ({"flag": "number", "above": 0.9, "up_to": 0.95}, True),
        ({"flag": "a", "above": 0}, False),
        ({"flag": "a", "number": False}, True),
        ({"flag": "a", "number": True}, False),
        ({"flag": "number", "number": True}, True),
        ({"flag": "number", "number": False}, False),
        ({"flag": ["unfilled", "placeholder", "switch"], "number": False}, False),
        ({"flag": "json", "key": "x"}, True),
        ({"flag": "json", "key": "deep.y", "value": "z"}, True),
        ({"flag": "json", "key": "x", "above": 2}, True),
        ({"flag": "json", "key": "nope"}, False),
        ({"flag": "a", "key": "x"}, False),
        ({"absent": "nope"}, True),
        ({"absent": "a"}, False),
        ({"env": "VLLM_*"}, True),
        ({"env": "NCCL_*"}, False),
        ({"image": "vllm/vllm-openai:*"}, True),
        ({"image": "nvcr.io/*"}, False),
        ({"known_image": True}, True),
        ({"known_image": False}, False),
        ({"image_lacks": "12.1"}, True),
        ({"image_lacks": "12.0"}, False),
        ({"after_entrypoint": "engine"}, True),
        ({"after_entrypoint": "shell"}, False),
        ({"option": "memory"}, True),
        ({"option": "rm"}, False),
        ({"restart": ["always"]}, True),
        ({"restart": "no"}, False),
        ({"shm_above": "1g"}, True),
        ({"shm_above": "2g"}, False),
        ({"extra": "true"}, True),
        ({"extra": "-*"}, False),
        ({"predicate": "published-everywhere"}, True),
        ({"flag": "a", "env": "NCCL_*"}, False),
        ({"flag": "nope", "env": "VLLM_*"}, False),
    ],
)
def test_matchers(when: dict[str, Any], expected: bool) -> None:
    launch = vllm(
        flags={
            "a": "One", "switch": True, "off": False, "number": "0.95", "json": {"x": 3, "deep": {"y": "z"}},
            "unfilled": "${A:-1}", "placeholder": "<N>",
        },
        env={"VLLM_X": "1"},
        extra=("true",),
        container=Container(
            "vllm/vllm-openai:v0.24.0",
            program=("vllm", "serve"),
            network="host",
            restart="always",
            shm_bytes=2**31,
            publish=("8000:8000",),
            options=(("memory", "1g"),),
        ),
    )  # fmt: skip
    assert bool(holds(when, launch, OPENAI)) is expected


def test_unknown_hardware_and_image_are_not_guessed() -> None:
    assert not holds({"hardware": "gb10"}, vllm(), hardware=None)
    container = Container("my/image", program=("vllm", "serve"))
    assert not holds({"image_lacks": "12.1"}, vllm(container=container))
    assert not holds({"after_entrypoint": "engine"}, vllm(container=container))
    assert holds({"known_image": False}, vllm(container=container))
    assert not holds({"known_image": False}, vllm())


def test_also_and_unless() -> None:
    launch = vllm(flags={"a": "1", "b": "2"})
    assert holds({"flag": "a"}, launch, more={"also": [{"flag": "b"}]})
    assert not holds({"flag": "a"}, launch, more={"also": [{"flag": "c"}]})
    assert not holds({"flag": "a"}, launch, more={"unless": [{"flag": "c"}, {"flag": "b"}]})
    assert holds({"flag": "a"}, vllm(None, flags={"a": "1"}), more={"unless": [{"version": "<0.8.3"}]})


def test_matches_show_the_text() -> None:
    launch = vllm(
        flags={"a": "1", "c": {"k": 5}},
        env={"A_1": "x", "A_2": "$A_2", "B": ""},
        container=Container("img", restart="always", shm_bytes=2**36),
    )
    assert holds({"flag": ["a", "c"]}, launch) == ["--a 1", '--c {"k":5}']
    assert holds({"flag": "c", "key": "k"}, launch) == ['--c with "k": 5']
    assert holds({"env": "A_*"}, launch) == ["-e A_1=x", "-e A_2"]
    assert holds({"restart": "always"}, launch) == ["--restart always"]
    assert holds({"shm_above": "1g"}, launch) == ["--shm-size 64g"]
    assert holds({"engine": "vllm"}, launch) == ["Org/Model-NVFP4"]
    short = vllm(flags={"spec-method": "mtp", "spec-tokens": "5"})
    config = {"flag": "speculative-config"}
    assert holds({**config, "key": "num_speculative_tokens", "above": 4}, short) == ["--spec-tokens 5"]
    assert holds(config, short) == ["--spec-method mtp"]


def test_an_image_configured_by_variables_lacks_no_flag() -> None:
    assert not holds({"absent": "x"}, Launch("m", "", "vllm"))
