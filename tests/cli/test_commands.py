"""The commands as a user types them: exit codes, messages, and one JSON document on stdout."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest

from firesteel.cli.main import COMMANDS, RENAMED
from firesteel.cli.main import firesteel as program
from firesteel.edge.home import Home, lock
from firesteel.gateway.address import Address, lock_path, write_address
from firesteel.library.documents.all import schemas
from tests.conftest import Firesteel, Ran

SCHEMAS = schemas()


def _command(group: click.Group, name: str) -> click.Command:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    return command


def document(ran: Ran) -> Any:
    """The one document on stdout, validated against its published schema."""
    result = json.loads(ran.out)
    jsonschema.validate(result, SCHEMAS[result["document"]])
    return result


def test_every_command_takes_json() -> None:
    """A group that does nothing itself lists its commands."""

    def lacking(group: click.Group, name: str) -> list[str]:
        found = []
        for word in group.list_commands(click.Context(group)):
            command = _command(group, word)
            takes = {option for each in command.params for option in each.opts}
            if "--json" not in takes and not (isinstance(command, click.Group) and not command.params):
                found.append(f"{name}{word}")
            if isinstance(command, click.Group):
                found += lacking(command, f"{name}{word} ")
        return found

    assert lacking(program, "") == []


def test_every_command_has_help(firesteel: Firesteel) -> None:
    whole = firesteel("--help")
    assert whole.code == 0
    for name in COMMANDS:
        assert name in whole.out
        ran = firesteel(name, "--help")
        assert ran.code == 0 and ran.out.startswith("Usage: firesteel"), name


@pytest.mark.parametrize("name", RENAMED)
def test_an_old_name_names_the_new_one(firesteel: Firesteel, name: str) -> None:
    ran = firesteel(name, "x")
    assert ran.code == 2 and f"next: firesteel {RENAMED[name]}\n" in ran.err
    command, *rest = RENAMED[name].split()
    whole = firesteel(command, "--help").out
    assert all(word in whole for word in rest if word.islower())


def test_a_first_word_is_a_subcommand_or_an_argument(firesteel: Firesteel) -> None:
    for words in (["list", "--json"], ["--json", "list"]):
        assert document(firesteel("bench", *words))["document"] == "firesteel.history/1"
    assert "nothing is running" in firesteel("bench", "coder").err
    assert "nothing is running" in firesteel("bench", "--", "list").err
    assert "No such option '--users'" in firesteel("bench", "--users", "4", "list").err
    assert "next: firesteel bench list --help" in firesteel("bench", "list", "x").err
    assert document(firesteel("serve", "key", "list", "--json"))["keys"] == []
    assert "does not go with a MODEL, --keep" in firesteel("serve", "--running", "--keep", "key-value").err


def test_help_of_a_command_with_subcommands_lists_both(firesteel: Firesteel) -> None:
    bench = firesteel("bench", "--help").out
    assert bench.startswith(
        "Usage: firesteel bench [OPTIONS] [NAME]\n       firesteel bench COMMAND [ARGS]..."
    )
    assert "--users" in bench and "compare" in bench and "delete" in bench
    assert firesteel("bench", "show", "--help").out.startswith("Usage: firesteel bench show [OPTIONS] [RUN]")
    assert "--running" in (serve := firesteel("serve", "--help").out) and "usage" in serve


def test_bare_firesteel_says_what_to_type(firesteel: Firesteel) -> None:
    ran = firesteel()
    assert ran.code == 0
    assert "next" in ran.out and "firesteel up" in ran.out
    result = document(firesteel("--json"))
    assert result["best"] in result["fits"] and result["next"].startswith("firesteel up")


def test_models(firesteel: Firesteel) -> None:
    ran = firesteel("models", "--host", "gb10")
    assert ran.code == 0 and "gpt-oss-120b-llamacpp" in ran.out and "tok/s" in ran.out
    result = document(firesteel("models", "--host", "gb10", "--json"))
    assert all(row["can_run"] for row in result["models"] if row["name"] != "llama-3.1-405b")


def test_plan_for_a_spark_without_a_network(firesteel: Firesteel) -> None:
    dead = dict.fromkeys(("HF_ENDPOINT", "http_proxy", "https_proxy"), "http://127.0.0.1:1")
    ran = firesteel("plan", "qwen3.6-35b-a3b-nvfp4", "--host", "gb10", "--json", env=dead)
    assert ran.code == 0, ran.err
    result = document(ran)
    assert result["memory"]["verdict"] == "fits"
    assert result["launch"]["flags"]["kv-cache-memory-bytes"]
    assert "docker run" in result["launch"]["docker"]


def test_plan_shows_memory_by_part_and_a_bar(firesteel: Firesteel) -> None:
    ran = firesteel("plan", "gpt-oss-120b", "--host", "gb10")
    assert ran.code == 0
    for word in ("weights", "KV cache", "needed", "decode", "█", "also"):
        assert word in ran.out


def test_plan_exits_4_when_it_does_not_fit(firesteel: Firesteel) -> None:
    ran = firesteel(
        "plan", "qwen3-coder-next-fp8", "--host", "gb10", "--users", "64", "--context", "262144", "--json"
    )
    assert ran.code == 4
    assert document(ran)["memory"]["verdict"] == "does not fit"


@pytest.mark.parametrize(
    ("arguments", "code", "says", "types"),
    [
        (
            ["plan", "gpt-os-120b"],
            2,
            "nothing called `gpt-os-120b`; the nearest are `gpt-oss-120b`",
            "firesteel models",
        ),
        (["plan"], 2, "Missing argument", "firesteel plan --help"),
        (["plan", "smollm2", "--context", "0"], 2, "0 is not in the range", "firesteel plan --help"),
        (["plan", "smollm2", "--context", "999999"], 2, "takes 8,192 tokens at most", "--context 8192"),
        (["plan", "smollm2", "--host", "gb300"], 2, "`gb300` is not a known machine", "--host gb10"),
        (["plan", "./none.gguf"], 2, "does not exist", "firesteel models"),
        (["up", "nonsense"], 2, "nothing called `nonsense`", "firesteel models"),
        (["dwn"], 2, "there is no command `dwn`; did you mean `firesteel down`?", "firesteel --help"),
        (["down", "x"], 1, "nothing is running", "firesteel up"),
        (["logs"], 1, "there is no log", "firesteel up"),
        (["logs", "x"], 2, "there is no log of `x`", "firesteel ps"),
        (["verify"], 5, "nothing is running", "firesteel up"),
        (["check"], 2, "there is nothing to check", "firesteel check run.sh"),
        (["check", "none.sh"], 2, "`none.sh` is not a file", "firesteel check -"),
        (["check", "--host", "spark", "vllm serve x"], 2, "`spark` is not a known machine", "--host gb10"),
        (["check", "--explain", "no-such-rule"], 2, "there is no rule `no-such-rule`", "firesteel"),
    ],
)
def test_every_error_is_a_sentence_and_says_what_to_type(
    firesteel: Firesteel, arguments: list[str], code: int, says: str, types: str
) -> None:
    ran = firesteel(*arguments)
    assert ran.code == code and ran.out == ""
    assert says in ran.err
    assert f"next: {types}" in ran.err
    assert "Traceback" not in ran.err


def test_errors_are_json_too(firesteel: Firesteel) -> None:
    ran = firesteel("plan", "nonsense", "--json")
    assert ran.code == 2
    result = document(ran)
    assert result["exit_code"] == 2 and result["next"] == "firesteel models"


def test_up_refuses_what_does_not_fit_before_anything_is_pulled(firesteel: Firesteel, tmp_path: Path) -> None:
    ran = firesteel("up", "gpt-oss-120b-llamacpp", "--users", "256")
    assert ran.code == 4
    assert "does not fit" in ran.err and "next: " in ran.err
    assert not (tmp_path / "home" / "engines").exists() and not (tmp_path / "home" / "services").exists()


def test_a_bad_recipe_is_reported_with_file_and_line(firesteel: Firesteel, tmp_path: Path) -> None:
    recipe = tmp_path / "home" / "catalog" / "recipes" / "mine.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text("title: x\nmodel: openai/gpt-oss-120b\nengine: vlm\nflag: {}\n")
    ran = firesteel("models")
    assert ran.code == 2
    assert f"{recipe}:3: `engine`" in ran.err
    assert f"{recipe}:4: `flag`: no such key" in ran.err
    assert f"next: correct {recipe}" in ran.err
    assert firesteel("check", "vllm serve x").code == 0


def test_check_a_pasted_line(firesteel: Firesteel) -> None:
    line = "docker run --gpus all vllm/vllm-openai:v0.24.0 vllm serve openai/gpt-oss-20b"
    for ran in (
        firesteel("check", "-", stdin=line),
        firesteel("check", line),
        firesteel("check", *line.split()),
    ):
        assert ran.code == 3
        assert "vllm-entrypoint-twice" in ran.out
    assert firesteel("check", "--host", "GB10", line).code == 3
    assert document(firesteel("check", line, "--json")) == document(firesteel("--json", "check", line))
    result = document(firesteel("check", "--json", "-", stdin=line))
    assert result["findings"][0]["level"] == "stop" and result["findings"][0]["line"] == 1


def test_check_passes_what_we_render(firesteel: Firesteel) -> None:
    text = firesteel("render", "qwen3.6-35b-a3b-nvfp4").out
    ran = firesteel("check", "-", stdin=text)
    assert ran.code == 0, ran.out


def test_explain(firesteel: Firesteel) -> None:
    ran = firesteel("check", "--explain", "vllm-entrypoint-twice")
    assert ran.code == 0
    assert "hit" in ran.out and "miss" in ran.out and "seen" in ran.out
    assert document(firesteel("check", "--json", "--explain", "vllm-entrypoint-twice"))["level"] == "stop"


def test_render(firesteel: Firesteel) -> None:
    ran = firesteel("render", "gpt-oss-120b-llamacpp", "--as", "docker")
    assert ran.code == 0 and "\ndocker run" in ran.out
    assert document(firesteel("render", "smollm2", "--json"))["format"] == "docker"


def test_a_dry_run_prints_steps_and_starts_nothing(firesteel: Firesteel, tmp_path: Path) -> None:
    ran = firesteel("up", "smollm2", "--dry-run")
    assert ran.code == 0 and re.search(r"server\.py'? --model", ran.out)
    assert document(firesteel("up", "smollm2", "--dry-run", "--json"))["steps"][0]["command"][:2] == [
        "firesteel",
        "pull",
    ]
    assert not (tmp_path / "home" / "services").exists()


def test_nothing_runs(firesteel: Firesteel) -> None:
    assert "nothing is running" in firesteel("ps").out
    assert document(firesteel("ps", "--json"))["services"] == []
    assert document(firesteel("--json", "ps"))["services"] == []
    assert firesteel("down").code == 0
    assert document(firesteel("down", "--all", "--json"))["done"] == []


def test_a_closed_pipe_prints_no_traceback(firesteel: Firesteel, tmp_path: Path) -> None:
    import subprocess
    import sys

    done = subprocess.run(
        f"{sys.executable} -m firesteel models --host gb10 --json | head -c 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
        env={"FIRESTEEL_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert "Traceback" not in done.stderr


def test_the_shell_completes_recipes_and_options(firesteel: Firesteel) -> None:
    def offered(*words: str) -> list[str]:
        env = {
            "_FIRESTEEL_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("firesteel", *words)),
            "COMP_CWORD": str(len(words)),
        }
        return [line.partition(",")[2] for line in firesteel(env=env).out.split()]

    assert "gpt-oss-20b" in (offer := offered("plan", "gpt")) and "smollm2" not in offer
    assert offered("up", "smol") == ["smollm2"]
    assert "--engine-path" in offered("up", "--engine") and offered("down", "smol") == []
    assert offered("bench", "sh") == ["show"] and "--users" in offered("bench", "--us")
    assert offered("bench", "list", "--a") == ["--all"] and "delete" in offered("bench", "")
    assert {"key", "usage", "smollm2"} <= set(offered("serve", "")) and offered(
        "serve", "smollm2", "us"
    ) == []
    assert offered("serve", "key", "re") == ["revoke"]


def test_a_gateway_that_goes_on_is_told(firesteel: Firesteel, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with lock(lock_path(home)):
        write_address(home, Address("http://127.0.0.1:9", ("small",), has_keys=False, pid=os.getpid()))
        ran = firesteel("down", "--all")
        assert ran.code == 0 and "keeps running, and loads what it is asked for; it ends by Ctrl-C" in ran.err
        assert f"kill {os.getpid()}" in ran.err
    assert "keeps running" not in firesteel("down", "--all").err
