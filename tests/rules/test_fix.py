"""Fixes: made where they are safe, proved by reading again, refused elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.catalog.catalog import shipped
from firesteel.reads.launches import scan
from firesteel.reads.source_text import SourceFile
from firesteel.rules.checker import Finding
from firesteel.rules.fix import change
from firesteel.rules.linter import LintOptions, apply_fixes, lint
from firesteel.rules.rule import Fix

ASKED = LintOptions(shipped().images)


def changed(text: str, key: str, fix: Fix) -> str | None:
    (reading,) = scan(SourceFile("run.sh", text), ASKED.images).launches
    finding = Finding("r", "warn", "", None, reading.locations[key], "", "verified", (), "", key, fix)
    return change(text, finding, reading)


DROP = Fix(drop="true")


def test_a_word_behind_many_blanks_is_dropped() -> None:
    """It took a time that grows with the square of the blanks: hours for these."""
    blanks = " " * 1_000_000
    fixed = changed(f"vllm serve m --x 1{blanks}y --z 2\n", "flag:z", DROP)
    assert fixed == f"vllm serve m --x 1{blanks}y\n"


@pytest.mark.parametrize(
    ("text", "key", "fix", "expected"),
    [
        ("vllm serve m --x 1 --y 2\n", "flag:x", DROP, "vllm serve m --y 2\n"),
        ("vllm serve m --x=1\n", "flag:x", DROP, "vllm serve m\n"),
        ("vllm serve m \\\n  --x 1 \\\n  --y 2\n", "flag:x", DROP, "vllm serve m \\\n  --y 2\n"),
        ("vllm serve m \\\n  --y 2 \\\n  --x 1\n", "flag:x", DROP, "vllm serve m \\\n  --y 2\n"),
        ("vllm serve m \\\n  --x \\\n  1 --y\n", "flag:x", DROP, "vllm serve m --y\n"),
        ("export A=1\nvllm serve m\n", "env:A", DROP, "vllm serve m\n"),
        ("docker run -e A=1 -d vllm/vllm-openai:v0.28.0 m", "env:A", DROP,
         "docker run -d vllm/vllm-openai:v0.28.0 m"),
        ("bash -lc 'x && vllm serve m --x 1 --y'", "flag:x", DROP, "bash -lc 'x && vllm serve m --y'"),
        ("bash -lc 'vllm serve m --x 1'", "flag:x", DROP, None),
        ("ARGS='--x 1'\nvllm serve m $ARGS", "flag:x", DROP, None),
        ("vllm serve m --x 1\n", "flag:x", Fix(rename="y"), "vllm serve m --y 1\n"),
        ("vllm serve m --x=1\n", "flag:x", Fix(rename="y"), "vllm serve m --y=1\n"),
        ("vllm serve m --x 1 --z\n", "flag:x", Fix(set="2"), "vllm serve m --x 2 --z\n"),
        ("vllm serve m --x='1'\n", "flag:x", Fix(set="2"), "vllm serve m --x=2\n"),
        ("vllm serve m --x --z\n", "flag:x", Fix(set="on"), "vllm serve m --x on --z\n"),
        ("vllm serve m --x 1\n", "flag:x", Fix(set="a b"), None),
        ("vllm serve m '--x  1' --y\n", "flaw:glued", Fix(separate="true"), "vllm serve m '--x=1' --y\n"),
    ],
)  # fmt: skip
def test_change(text: str, key: str, fix: Fix, expected: str | None) -> None:
    assert changed(text, key, fix) == expected


YAML = (
    "services:\n  a:\n    image: vllm/vllm-openai:v0.28.0\n    gpus: all\n    environment:\n"
    "      VLLM_FP8_MOE_BACKEND: x\n      B: 1\n"
    "    command:\n      - org/m\n      - --gpu-memory-utilization\n      - '0.7'\n"
)


def test_yaml_lists_and_maps() -> None:
    mended, findings = apply_fixes(YAML, "compose.yaml", ASKED)
    assert [finding.rule for finding in findings] == ["vllm-env-never-existed"]
    assert mended == YAML.replace("      VLLM_FP8_MOE_BACKEND: x\n", "")


DEAD = "export VLLM_FP8_MOE_BACKEND=x"
RUN = "vllm serve m/n --gpu-memory-utilization 0.7\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compose.yaml", YAML.replace("      B: 1\n", "")),  # `environment:` would be left empty
        ("compose.yaml", YAML.replace("environment:", "environment: &e")),  # others may share it
        ("run.sh", f"if true; then\n  {DEAD}\nfi\n{RUN}"),
        ("run.sh", f"f() {{\n  {DEAD}\n}}\n{RUN}"),
        ("run.sh", f"for a in b; do\n  {DEAD}\ndone\n{RUN}"),
        ("run.sh", f'[ "$FP8" = 1 ] && {DEAD}\n{RUN}'),
        ("run.sh", f"true ||\n{DEAD}\n{RUN}"),
        ("run.sh", f'{DEAD}\n[ "$VLLM_FP8_MOE_BACKEND" = x ]\n{RUN}'),
        ("run.sh", "docker run --gpus all -e VLLM_USE_V1=1 vllm/vllm-openai:latest m/n\n"),
    ],
)  # fmt: skip
def test_what_would_change_more_is_left_alone(name: str, text: str) -> None:
    assert apply_fixes(text, name, ASKED) == (text, ())


def test_mend_goes_on_until_nothing_is_left() -> None:
    text = (
        "docker run --gpus all -e VLLM_FP8_MOE_BACKEND=a -e VLLM_USE_FLASHINFER_MOE_FP4=1 \\ \n"
        "  -p 127.0.0.1:8000:8000 vllm/vllm-openai:v0.28.0 org/m --gpu-memory-utilization 0.7\n"
    )
    mended, findings = apply_fixes(text, "run.sh", ASKED)
    assert len(findings) == 3 and "VLLM_" not in mended and "\\\n" in mended
    left = lint(mended, "run.sh", ASKED).findings
    assert not [finding for finding in left if finding.fix]


def test_a_fix_that_would_change_anything_else_is_not_made() -> None:
    """Whatever becomes of the variable, its command substitution must not leave words behind."""
    text = "docker run --gpus all -e VLLM_FP8_MOE_BACKEND=$(echo a b) vllm/vllm-openai:v0.28.0 org/m\n"
    mended, findings = apply_fixes(text, "run.sh", ASKED)
    before, after = (
        scan(SourceFile("run.sh", each), ASKED.images).launches[0].launch for each in (text, mended)
    )
    assert (before.model, before.container) == (after.model, after.container)
    assert len(findings) == (text != mended)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.sampled_from(
            ["-e VLLM_FP8_MOE_BACKEND=x", "-e A=1", "--ipc host", "-e VLLM_USE_FLASHINFER_MOE_FP4=1", "--rm"]
        ),
        max_size=5,
        unique=True,
    ),
    st.sampled_from([" ", " \\\n  ", " \\ \n  "]),
)
def test_what_is_mended_stays_the_same_launch(options: list[str], gap: str) -> None:
    words = ["docker run --gpus all", *options, "vllm/vllm-openai:v0.28.0 org/m --gpu-memory-utilization 0.7"]
    text = gap.join(words) + "\n"
    mended, _ = apply_fixes(text, "run.sh", ASKED)
    (before,), (after,) = (scan(SourceFile("run.sh", each), ASKED.images).launches for each in (text, mended))
    assert before.launch.flags == after.launch.flags and before.launch.container == after.launch.container
    assert after.launch.env == {name: value for name, value in before.launch.env.items() if name == "A"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm serve org/m --seed 1\n  --seed 2\n", None),  # given twice: which one was meant?
        ("vllm serve org/m\n  --seed 2\n  --dtype auto\n",
         "vllm serve org/m \\\n  --seed 2 \\\n  --dtype auto\n"),
        ("  vllm serve org/m \\  # why\n    --seed 2\n", "  # why\n  vllm serve org/m \\\n    --seed 2\n"),
        ("vllm serve org/m \\\n  --dtype auto \\\n  # why\n  --seed 2\n",
         "# why\nvllm serve org/m \\\n  --dtype auto \\\n  --seed 2\n"),
        ("vllm serve org/m --chat-template 'a # b'\n  --seed 2\n", None),  # is that a comment? Left alone
        ("vllm serve org/m \u2013\u2013seed 2\n", "vllm serve org/m --seed 2\n"),
        ("docker run --gpus all vllm/vllm-openai:v0.28.0 vllm serve org/m\n",
         "docker run --gpus all vllm/vllm-openai:v0.28.0 org/m\n"),
    ],
)  # fmt: skip
def test_flags_that_the_engine_never_saw(text: str, expected: str | None) -> None:
    stops = LintOptions(ASKED.images, select=("shell-*", "vllm-entrypoint-twice"))
    assert apply_fixes(text, "run.sh", stops)[0] == (expected or text)
    if expected:
        assert not lint(expected, "run.sh", stops).findings
