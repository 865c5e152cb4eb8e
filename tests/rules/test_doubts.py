"""What a stop must prove: the text is read by a shell, meant to run, and about a release of the engine."""

from __future__ import annotations

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.rules.checker import Finding
from firesteel.rules.linter import LintOptions, lint

OPTIONS = LintOptions(shipped().images, hardware=None)
BAD = "vllm serve org/model --max-model-length-of-all 4096"
RULE = "flag-in-no-release"


def findings(text: str, path: str = "guide.md") -> dict[str, Finding]:
    return {finding.rule: finding for finding in lint(text, path, OPTIONS).findings}


def block(text: str, language: str = "bash") -> str:
    return f"Run it.\n\n```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (BAD, "run.sh"),
        (block(BAD), "guide.md"),
        (block(f"# Do not stop it.\n{BAD}"), "guide.md"),
        (block(f"sudo -u llm nohup {BAD}"), "guide.md"),
        (block(BAD) + "The fork is quicker than vLLM.", "guide.md"),
        (BAD, "tests/run.sh"),
    ],
)
def test_a_proved_stop(text: str, path: str) -> None:
    assert findings(text, path)[RULE].level == "stop"


@pytest.mark.parametrize(
    ("text", "path", "why"),
    [
        (block(f"# WRONG: no such flag\n{BAD}"), "guide.md", "as a mistake"),
        (f"\u274c Do not use this:\n\n```bash\n{BAD}\n```\n", "guide.md", "as a mistake"),
        (f"{BAD}  # this fails", "run.sh", "as a mistake"),
        (BAD, "tests/fixtures/run.sh", "fixture"),
        (block(BAD), "CHANGELOG.md", "other releases"),
        (BAD, "notes.md", "no block of code"),
        (BAD, "start.ps1", "another shell"),
        (block(BAD) + "\nWe run our own fork of vLLM.", "guide.md", "a fork"),
        (block(BAD) + "\nSee https://github.com/someone/vllm-turbo", "guide.md", "a fork"),
    ],
)
def test_a_doubt_makes_it_a_warning(text: str, path: str, why: str) -> None:
    found = findings(text, path)[RULE]
    assert found.level == "warn"
    assert why in found.says


def test_an_unknown_script_may_start_another_build() -> None:
    assert RULE not in findings(block(f"./launch-cluster.sh -t own-image exec {BAD}"))
    broken = "./launch-cluster.sh exec vllm serve org/model --dtype auto \\ \n  --port 80"
    assert findings(block(broken))["shell-blank-after-backslash"].level == "stop"


def test_a_stated_release_is_no_fork() -> None:
    text = block(f"pip install vllm==0.24.0\n{BAD}") + "\nThere is a fork of vLLM too."
    assert findings(text)["flag-unknown"].level == "stop"


LINES = "vllm serve org/model --dtype auto\n  --max-model-len 4096"


@pytest.mark.parametrize(
    ("text", "path", "rule"),
    [
        (LINES, "run.sh", "shell-flags-lost"),
        (block(LINES), "guide.md", "shell-flags-lost"),
        (block(LINES.replace("auto", "auto \\ # all")), "guide.md", "shell-flags-lost"),
        (block(LINES, "text"), "guide.md", "shell-flags-apart"),
        (block(LINES, ""), "guide.md", "shell-flags-apart"),
        (block(LINES.replace("model ", "model \\\n"), ""), "guide.md", "shell-flags-lost"),
        (block(LINES.replace("--dtype auto", "...")), "guide.md", "shell-flags-lost"),
        (block(LINES.replace("--dtype auto", "\\\n  ...")), "guide.md", "shell-flags-apart"),
        ("a:\n  server_cmd: >\n    vllm serve org/model\n      --port 1\n", "a.yaml", "shell-flags-apart"),
        ("commands:\n  - |\n    vllm serve org/model\n      --port 1\n", "a.yaml", "shell-flags-lost"),
    ],
)
def test_flags_are_lost_where_a_shell_reads_them(text: str, path: str, rule: str) -> None:
    found = findings(text, path)
    assert {"shell-flags-lost", "shell-flags-apart"} & found.keys() == {rule}
    assert found[rule].level == ("stop" if rule == "shell-flags-lost" else "warn")


def test_a_chart_adds_the_program() -> None:
    values = (
        "worker:\n  image: {repository: lmsysorg/sglang, tag: latest}\n  extraArgs: [--trust-remote-code]\n"
    )
    assert "image-needs-program" not in findings(values, "chart/values.yaml")
    manifest = "docker run --gpus all lmsysorg/sglang:latest --model-path org/model --host 0.0.0.0"
    assert findings(manifest, "run.sh")["image-needs-program"].level == "stop"


def test_a_program_that_a_variable_names_may_be_an_old_build() -> None:
    script = "llama-server -m m.gguf -fa --port 1"
    assert findings(script, "run.sh")["llamacpp-flash-attn-bare"].level == "stop"
    chosen = script.replace("llama-server", '"$LLAMA_SERVER"')
    assert findings(chosen, "run.sh")["llamacpp-flash-attn-bare"].level == "warn"


@pytest.mark.parametrize("model", ["{your model directory}", "<path to your model>", "[your model]"])
def test_a_placeholder_of_several_words_is_one(model: str) -> None:
    text = block(f"pip install vllm==0.24.0\nvllm serve {model} \\\n  --port 8000")
    assert not [finding for finding in findings(text).values() if finding.level == "stop"]


COMPOSE = """services:
  a:
    image: vllm/vllm-openai:v0.26.0
    environment: {%s: "0"}
    command: [org/one, --gpu-memory-utilization, "0.7"]
  b:
    image: vllm/vllm-openai:v0.26.0
    environment: {%s: "%s"}
    command: [org/two, --gpu-memory-utilization, "0.7"]
"""


@pytest.mark.parametrize(
    ("comment", "variable", "second", "is_told"),
    [
        ("", "A", "1", True),
        ("# two Gaudi 2 cards\n", "HABANA_VISIBLE_DEVICES", "1", False),
        ("# one H200\n", "A", "1", False),
        ("# one H200\n", "CUDA_VISIBLE_DEVICES", "0", True),
        ("# two H200\n", "CUDA_VISIBLE_DEVICES", "1", False),
    ],
)
def test_shares_are_added_up_for_one_gpu(comment: str, variable: str, second: str, is_told: bool) -> None:
    """Another machine may have a card for each service, unless both name the same."""
    text = comment + COMPOSE % (variable, variable, second)
    found = lint(text, "compose.yaml", LintOptions(shipped().images)).findings
    assert ("memory-shares-above-all" in {finding.rule for finding in found}) == is_told


@pytest.mark.parametrize("more", ["$EXTRA", '"$@"', '"${ARGS[@]}"', "...", "$(get_flags)"])
def test_what_is_missing_may_be_in_a_variable(more: str) -> None:
    line = "vllm serve org/model --enable-auto-tool-choice"
    assert findings(line, "run.sh")["tool-choice-without-parser"].level == "stop"
    assert findings(f"{line} {more}", "run.sh")["tool-choice-without-parser"].level == "warn"


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("~/llama.cpp/build/bin/llama-server -m m.gguf -ctk turbo3", "stop"),
        ("/opt/llama.cpp-b9536/bin/llama-server -m m.gguf -ctk turbo3", "stop"),
        ("~/llama-cpp-turboquant/build/bin/llama-server -m m.gguf -ctk turbo3", "warn"),
        ("# the fork of somebody\nllama-server -m m.gguf -ctk turbo3", "warn"),
        ("# with PR #12345\nllama-server -m m.gguf -ctk turbo3", "warn"),
    ],
)
def test_the_folder_or_a_comment_may_name_a_fork(text: str, level: str) -> None:
    assert findings(block(text))["value-in-no-release"].level == level


@pytest.mark.parametrize(
    ("script", "level"),
    [
        ("ARGS=(--dtype auto)\nARGS+=(--no-such-flag-here)\nvllm serve org/m ${ARGS[@]}", "stop"),
        ("ARGS=(--dtype auto)\n[ $X ] && ARGS+=(--no-such-flag-here)\nvllm serve org/m ${ARGS[@]}", "warn"),
        ("if [ $X ]; then\n  MORE=--no-such-flag-here\nfi\nvllm serve org/m $MORE", "warn"),
        ("if [ $X ]; then\n  NAME=x\nfi\nvllm serve org/m --no-such-flag-here", "stop"),
    ],
)
def test_what_a_script_adds_under_a_condition(script: str, level: str) -> None:
    assert findings(script, "run.sh")["flag-in-no-release"].level == level


@pytest.mark.parametrize(
    ("first", "text", "level"),
    [
        ("", COMPOSE, "stop"),
        ("# docker compose up -d\n", COMPOSE, "stop"),
        ("# docker compose up -d a\n", COMPOSE, "warn"),
        ("", COMPOSE.replace("org/two", "org/one"), "warn"),
    ],
)
def test_services_may_be_alternatives(first: str, text: str, level: str) -> None:
    found = lint(first + text % ("A", "A", "1"), "compose.yaml", LintOptions(shipped().images)).findings
    assert {each.level for each in found if each.rule == "memory-shares-above-all"} == {level}


def test_an_image_without_arguments_takes_no_share() -> None:
    text = (
        "services:\n  a: {image: 'example.com/vllm-warden:1'}\n  b: {image: 'example.com/vllm-warden-ui:1'}\n"
    )
    assert "memory-shares-above-all" not in findings(text, "compose.yaml")


def test_a_placeholder_in_a_variable_is_one_word() -> None:
    text = "DIR=<model storage path>\nsudo docker run -it -v $DIR:$DIR vllm/vllm-openai:v0.24.0 /bin/bash"
    assert findings(block(text))["image-entrypoint-swallows-shell"].level == "stop"


CHOSEN = 'PROGRAM="%s"\nCMD="$PROGRAM -m m.gguf -fa --port 1"\neval "$CMD"'
PYTHON = "python3 -m sglang.launch_server --never-a-flag"


@pytest.mark.parametrize(
    ("doubtful", "certain", "rule"),
    [
        ("# see ik_llama.cpp\nllama-server -fa -c 1", "llama-server -fa -c 1", "llamacpp-flash-attn-bare"),
        ("# see ik_llama.cpp\nllama-server -c=1", "llama-server -c=1", "llamacpp-equals-sign"),
        (CHOSEN % "${SERVER:-llama-server}", CHOSEN % "llama-server", "llamacpp-flash-attn-bare"),
        (f"# pip install sglang==0.5.6.dev8005\n{PYTHON}", PYTHON, RULE),
    ],
)
def test_another_build(doubtful: str, certain: str, rule: str) -> None:
    assert findings(doubtful, "run.sh")[rule].level == "warn"
    assert findings(certain, "run.sh")[rule].level == "stop"


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("vllm serve org/m --never-a-flag", True),
        ("# Gaudi3\nvllm serve org/m --never-a-flag", False),
        ("# Intel XPU\nvllm serve org/m --never-a-flag", False),
        ("docker run lmsysorg/sglang:v0.5.12 python3 -m sglang.launch_server --never-a-flag", True),
        ("docker run lmsysorg/sglang:dev python3 -m sglang.launch_server --never-a-flag", True),
        ("docker run lmsysorg/sglang:qwen38-27b python3 -m sglang.launch_server --never-a-flag", False),
        ("docker run vllm/vllm-openai:nightly-0123abc org/m --never-a-flag", True),
        ("docker run vllm/vllm-openai:gptoss org/m --never-a-flag", False),
    ],
)
def test_a_build_for_one_device_or_one_model_may_have_any_flag(text: str, is_told: bool) -> None:
    found = lint(text, "run.sh", LintOptions(shipped().images)).findings
    assert any("never-a-flag" in finding.says for finding in found if finding.level != "note") == is_told


@pytest.mark.parametrize("value", ["REPLACE_ENV_SHARE", "GPU_SHARE", "changeme"])
def test_a_name_in_place_of_a_number(value: str) -> None:
    for flag in ("--gpu-memory-utilization", "--max-num-seqs"):
        text = f"docker run vllm/vllm-openai:v0.24.0 org/m {flag} {value}"
        assert not {"memory-fraction-not-a-number", "value-refused"} & findings(text, "run.sh").keys()


def test_a_dockerfile_that_removes_the_entrypoint() -> None:
    text = 'FROM vllm/vllm-openai:v0.26.0\nENTRYPOINT []\nCMD ["/bin/bash"]\n'
    assert "image-entrypoint-swallows-shell" not in findings(text, "Dockerfile")
    kept = findings(text.replace("ENTRYPOINT []\n", ""), "Dockerfile")
    assert kept["image-entrypoint-swallows-shell"].level == "stop"


def test_an_abbreviation_that_is_ambiguous_today_may_have_been_one_flag() -> None:
    found = findings("python3 -m sglang.launch_server --model-path org/m --quant fp8", "run.sh")
    assert found["flag-of-older-release"].level == "warn"
    assert RULE not in found


def test_a_choice_in_angle_brackets_is_one_word() -> None:
    text = "pip install sglang==0.5.12\npython3 -m sglang.launch_server --attention-backend <flashinfer|fa3>"
    assert "value-refused" not in findings(block(text))


@pytest.mark.parametrize(("prompt", "is_told"), [("", True), ("$ ", True), ("me@box:~/x$ ", False)])
def test_a_copy_of_a_terminal_has_blanks_at_the_end(prompt: str, is_told: bool) -> None:
    found = findings(block(f"{prompt}vllm serve org/m \\ \n  --port 1"))
    assert ("shell-blank-after-backslash" in found) == is_told
