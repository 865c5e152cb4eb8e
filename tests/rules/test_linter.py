"""Whole texts, and the comments that suppress findings."""

from __future__ import annotations

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.errors import UsageError
from firesteel.rules.linter import LintOptions, engine_version, known_patterns, lint
from firesteel.values import replace

ASKED = LintOptions(shipped().images)
LINE = "vllm serve org/m --gpu-memory-utilization 0.7 --moe-backend b12x"


def rules_of(text: str, asked: LintOptions = ASKED) -> set[str]:
    return {finding.rule for finding in lint(text, "run.sh", asked).findings}


def test_the_version_that_the_text_does_not_tell() -> None:
    assert "value-refused" not in rules_of(LINE)
    assert "value-refused" in rules_of(LINE, replace(ASKED, versions={"vllm": "0.18.0"}))
    image = (
        "docker run --gpus all vllm/vllm-openai:v0.32.0 org/m --gpu-memory-utilization 0.7 --moe-backend b12x"
    )
    assert "value-refused" not in rules_of(image, replace(ASKED, versions={"vllm": "0.18.0"}))


def test_select_ignore_and_level() -> None:
    text = "vllm serve org/m --speculative-disable-by-batch-size 32 --gpu-memory-utilization 0.95"
    everything = rules_of(text)
    assert "spec-disable-flag-gone" in everything and len(everything) > 1
    assert rules_of(text, replace(ASKED, select=("spec-*",))) == {"spec-disable-flag-gone"}
    assert rules_of(text, replace(ASKED, ignore=("spec-*",))) == everything - {"spec-disable-flag-gone"}
    stops = lint(text, "run.sh", replace(ASKED, level="stop")).findings
    assert stops and all(finding.level == "stop" for finding in stops)


def test_a_pattern_must_fit_a_rule() -> None:
    assert known_patterns(("spec-*",)) == ("spec-*",)
    with pytest.raises(UsageError, match="there is no rule `specc-"):
        known_patterns(("specc-*",))


def test_a_text_without_a_launch() -> None:
    found = lint("echo hello", "run.sh", ASKED)
    assert (found.launches, found.findings, found.unread) == ((), (), ())
    broken = lint("vllm serve 'm", "run.sh", ASKED)
    assert "never closed" in broken.unread[0][1].what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.28.0", ("vllm", "0.28.0")),
        ("v0.28", ("vllm", "0.28")),
        ("0.5.9", ("sglang", "0.5.9")),
        ("b11549", ("llamacpp", "11549")),
        ("5000", ("llamacpp", "5000")),
    ],
)
def test_versions_as_people_write_them(text: str, expected: tuple[str, str]) -> None:
    assert engine_version(text) == expected


def test_text_that_is_not_a_version() -> None:
    with pytest.raises(UsageError, match="`banana` is not an engine version"):
        engine_version("banana")


FLAG_OF_A_FORK = "vllm serve org/m --gpu-memory-utilization 0.7 --mxfp4-layers moe"


@pytest.mark.parametrize(
    "text",
    [
        f"docker exec -it dev bash -c '{FLAG_OF_A_FORK}'",
        f"kubectl exec pod -- {FLAG_OF_A_FORK}",
        f"export PYTHONPATH=/workspace/flashinfer:/workspace/vllm\n{FLAG_OF_A_FORK}",
        f"git clone -b x https://github.com/someone/vllm.git\ncd vllm\n{FLAG_OF_A_FORK}",
        f"# for GCU\n{FLAG_OF_A_FORK}",
        f"uv pip install git+https://github.com/someone/vllm@main\n{FLAG_OF_A_FORK}",
        "docker run --gpus all vllm/vllm-openai:v0.28.0 --entrypoint bash -c "
        f"'pip install git+https://github.com/a/vllm && {FLAG_OF_A_FORK}'",
    ],
)
def test_an_engine_that_is_no_release_may_have_any_flag(text: str) -> None:
    assert "flag-in-no-release" not in rules_of(text)


def test_a_release_has_no_flags_of_its_own() -> None:
    clone = "git clone https://github.com/vllm-project/vllm.git"
    assert "flag-in-no-release" in rules_of(f"{clone}\n{FLAG_OF_A_FORK}")
    assert "flag-in-no-release" in rules_of(f"export PYTHONPATH=/opt/vllm-tools\n{FLAG_OF_A_FORK}")


def test_a_dockerfile_above_that_builds_a_fork() -> None:
    def open_sibling(path: str, name: str) -> str | None:
        return "ARG VLLM_REPO=https://github.com/a/vllm.git" if name == "../Dockerfile" else None

    assert "flag-in-no-release" not in rules_of(FLAG_OF_A_FORK, replace(ASKED, open_sibling=open_sibling))


@pytest.mark.parametrize(
    ("between", "is_lost"),
    [("\n  ", True), (" \\ # why\n  ", True), (" \\\n  # why\n  ", True), ("  # why\n\n# Or this:\n", False)],
)
def test_flags_on_lines_of_their_own(between: str, is_lost: bool) -> None:
    assert ("shell-flags-lost" in rules_of(f"vllm serve org/m --seed 1{between}--seed 2")) is is_lost


def test_the_lines_of_an_array_are_no_commands() -> None:
    array = "f() {\n  local cmd=(\n    vllm serve org/m\n    --enforce-eager\n  )\n"
    found = rules_of(array + '  cmd+=(--mxfp4-layers x)\n  "${cmd[@]}" &\n}')
    assert "shell-flags-lost" not in found and {"enforce-eager-slow", "flag-in-no-release"} <= found
    twice = "if a\nthen CMD=(vllm serve org/m\n --mxfp4-layers x)\nelse CMD=(vllm serve org/n)\nfi\n"
    assert len(lint(f'{twice}"${{CMD[@]}}"', "run.sh", ASKED).launches) == 2


def test_flags_of_sglang_serve() -> None:
    """The subcommand hands LLMs to the parser of `launch_server`; a diffusion model's flags are not known."""
    serve = "sglang serve --model-path org/m --mem-fraction-static 0.7"
    assert "flag-in-no-release" in rules_of(f"{serve} --context-length 8192 --nonsense 1")
    assert "flag-in-no-release" not in rules_of(f"{serve} --context-length 8192 --model-type llm")
    assert "flag-in-no-release" not in rules_of(f"{serve} --num-inference-steps 4")
    known = replace(ASKED, versions={"sglang": "0.5.23"})
    assert "flag-unknown" in rules_of(f"{serve} --context-length 8192 --nonsense 1", known)
    assert "flag-unknown" not in rules_of(f"{serve} --context-length 8192 --model-type llm", known)


BAD = "vllm serve org/m --gpu-memory-utilization 0.7 --speculative-disable-by-batch-size 32\n"
CONTINUED = BAD.replace(" --sp", " \\\n  --sp")
RULE = "spec-disable-flag-gone"


def told(text: str, path: str = "run.sh") -> tuple[list[int], list[int]]:
    """The lines on which the rule is told, and those on which it is allowed."""
    found = lint(text, path, ASKED)
    return (
        [finding.location.line for finding in found.findings if finding.rule == RULE and finding.location],
        [finding.location.line for finding, reason in found.allowed if finding.location and reason],
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BAD, ([1], [])),
        (f"{BAD.rstrip()} # firesteel: allow {RULE} because it is old\n", ([], [1])),
        (f"# firesteel: allow {RULE} because it is old\n{BAD}{BAD}", ([3], [2])),
        (f"# firesteel: allow spec-*: it is old\n{BAD}", ([], [2])),
        (f"# firesteel: allow other because it is old\n{BAD}", ([2], [])),
        (f"# firesteel: allow a, {RULE} - old\n\n{BAD}", ([], [3])),
        (f"# firesteel: allow-file {RULE} because it is old\necho\necho\n\n\n\n\n\n{BAD}", ([], [9])),
        (f"# firesteel: allow {RULE} because it is old\necho\necho\n\n\n\n\n\n{BAD}", ([9], [])),
        (f"# firesteel: allow {RULE} because old\n{CONTINUED}", ([], [3])),
    ],
)
def test_scope(text: str, expected: tuple[list[int], list[int]]) -> None:
    assert told(text) == expected


def test_in_markdown() -> None:
    text = f"<!-- firesteel: allow {RULE} because it is history -->\n```bash\n{BAD}```\n"
    assert told(text, "guide.md") == ([], [3])


@pytest.mark.parametrize("reason", ["", " because", ":", " -->", " because ..."])
def test_a_reason_is_needed(reason: str) -> None:
    with pytest.raises(UsageError, match=r"run.sh:1: .* without a reason"):
        told(f"# firesteel: allow {RULE}{reason}\n{BAD}")
