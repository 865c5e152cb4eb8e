"""`firesteel check` as people and their tools call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.inside import inside as in_process
from tests.conftest import Firesteel

BAD = "docker run --gpus all vllm/vllm-openai:v0.28.0 vllm serve org/m --gpu-memory-utilization 0.7\n"
DEAD = (
    "docker run --gpus all -p 127.0.0.1:8000:8000 -e VLLM_FP8_MOE_BACKEND=x -v ~/.cache/huggingface:/hub \\\n"
    "  -e HF_HOME=/hub vllm/vllm-openai:v0.28.0 org/m --gpu-memory-utilization 0.7\n"
)


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Firesteel:
    return in_process(tmp_path / "home", monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bad.sh").write_text(BAD)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "guide.md").write_text(f"# Guide\n\n```bash\n{DEAD}```\n")
    (tmp_path / "other.yaml").write_text("a: 1\n")
    (tmp_path / "broken.yaml").write_text("services: [\n")
    (tmp_path / "image.png").write_bytes(b"\0")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hook.sh").write_text(BAD)
    return tmp_path


def test_a_folder(firesteel: Firesteel, folder: Path) -> None:
    ran = firesteel("check", "--json", str(folder))
    assert ran.code == 3
    result = json.loads(ran.out)
    assert [Path(name).name for name in result["files"]] == ["bad.sh", "guide.md"]
    assert result["launches"] == 2
    assert [Path(row["file"]).name for row in result["unread"]] == ["broken.yaml"]
    stop = next(row for row in result["findings"] if row["level"] == "stop")
    assert (stop["rule"], stop["line"], stop["column"]) == ("vllm-entrypoint-twice", 1, 48)


def test_several_files_and_one_that_starts_nothing(firesteel: Firesteel, folder: Path) -> None:
    wide = {"COLUMNS": "400"}  # a long path may be broken into lines otherwise
    ran = firesteel("check", str(folder / "bad.sh"), str(folder / "other.yaml"), env=wide)
    assert ran.code == 3 and "bad.sh:1:48" in ran.out
    alone = firesteel("check", str(folder / "other.yaml"))
    assert alone.code == 2 and "has no command" in alone.err
    assert firesteel("check", "--skip-others", str(folder / "other.yaml")).code == 0


def test_fix_writes_and_shows_the_diff(firesteel: Firesteel, folder: Path) -> None:
    path = folder / "sub" / "guide.md"
    path.chmod(0o640)
    before = path.read_text()
    shown = firesteel("check", "--diff", str(path))
    assert "-docker run --gpus all" in shown.out and path.read_text() == before
    assert "vllm-env-never-existed" in shown.out
    ran = firesteel("check", "--fix", str(path))
    assert "+docker run --gpus all" in ran.out
    assert path.read_text() == before.replace(" -e VLLM_FP8_MOE_BACKEND=x", "")
    assert path.stat().st_mode & 0o777 == 0o640
    assert [file.name for file in path.parent.iterdir()] == ["guide.md"]
    assert "nothing here has a safe fix" in firesteel("check", "--fix", str(path)).err


def test_fix_keeps_windows_line_ends(firesteel: Firesteel, tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_bytes(DEAD.replace("\n", "\r\n").encode())
    firesteel("check", "--fix", str(path))
    assert path.read_bytes() == DEAD.replace(" -e VLLM_FP8_MOE_BACKEND=x", "").replace("\n", "\r\n").encode()


def test_fix_of_a_line_prints_it(firesteel: Firesteel) -> None:
    ran = firesteel("check", "--fix", DEAD.replace("\\\n", ""))
    assert "docker run --gpus all -p 127.0.0.1:8000:8000 -v" in ran.out


def test_select_ignore_and_level(firesteel: Firesteel, folder: Path) -> None:
    path = str(folder / "bad.sh")
    assert firesteel("check", "--ignore", "vllm-entrypoint-twice", path).code == 0
    assert firesteel("check", "--select", "image-*,utilization-*", path).code == 0
    only = json.loads(firesteel("check", "--level", "stop", "--json", path).out)
    assert {row["level"] for row in only["findings"]} == {"stop"}
    wrong = firesteel("check", "--select", "no-such-rule", path)
    assert wrong.code == 2 and "--explain '*'" in wrong.err


def test_sarif(firesteel: Firesteel, folder: Path) -> None:
    ran = firesteel("check", "--sarif", str(folder))
    log = json.loads(ran.out)
    (run,) = log["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert log["version"] == "2.1.0" and ran.code == 3
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        (place,) = result["locations"]
        assert place["physicalLocation"]["region"]["startLine"] >= 1


def test_github_annotations(firesteel: Firesteel, folder: Path) -> None:
    ran = firesteel("check", "--github", str(folder / "bad.sh"))
    first = ran.out.splitlines()[0]
    assert first.startswith("::error file=") and ",line=1,col=48,title=vllm-entrypoint-twice::" in first
    assert all(line.startswith("::") for line in ran.out.splitlines())


def test_explain_by_pattern(firesteel: Firesteel) -> None:
    ran = firesteel("check", "--explain", "shell-*")
    assert ran.code == 0 and ran.out.count("\nhit ") >= 3 and "--fix fixes it" in ran.out


def test_unreadable_files(firesteel: Firesteel, tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    big.write_text("a: " + "x" * (11 * 2**20))
    ran = firesteel("check", str(big))
    assert ran.code == 2 and "longer than" in ran.err
    locked = tmp_path / "a.sh"
    locked.write_text("vllm serve 'm")
    assert "never closed" in firesteel("check", str(locked)).err


def test_names_with_blanks_and_a_missing_file(firesteel: Firesteel, tmp_path: Path) -> None:
    path = tmp_path / "bad run.sh"
    path.write_text(BAD)
    assert firesteel("check", str(path)).code == 3
    assert firesteel("check", "--skip-others", str(path), str(path)).code == 3
    missing = firesteel("check", str(path), "nosuch.sh")
    assert missing.code == 2 and "`nosuch.sh` is not a file" in missing.err


def test_options_may_follow_a_file_a_folder_stdin_or_a_quoted_line(folder: Path, inside: Firesteel) -> None:
    path = str(folder / "bad.sh")
    before = inside("check", "--json", "--level", "stop", path)
    assert before.code == 3
    assert inside("check", path, "--json", "--level", "stop") == before
    assert inside("check", "--json", path, "--level", "stop") == before
    assert inside("check", path, "--level", "stop", path, "--json").json["files"] == [path, path]
    assert inside("check", str(folder), "--json").json["launches"] == 2
    assert inside("check", BAD.strip(), "--json").json["launches"] == 1
    assert inside("check", path, "--json", "--ignore", "vllm-entrypoint-twice").code == 0
    unknown = inside("check", path, "--lvel", "stop")
    assert unknown.code == 2 and "No such option" in unknown.err
    (folder / "Makefile").write_text(f"run:\n\t{BAD}")
    assert inside("check", str(folder / "Makefile"), "--level", "stop").code == 3


def test_what_follows_a_program_belongs_to_it(
    folder: Path, inside: Firesteel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even next to a folder or an executable of that name."""
    monkeypatch.chdir(folder)
    (folder / "docker").mkdir()
    program = folder / "llama-server"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert inside("check", *BAD.split()).code == 3
    line = inside("check", "./llama-server", "-m", "a.gguf", "--json")
    assert line.code == 3 and "no known release has `--json`" in line.out and "read as llamacpp" in line.out
    assert inside("check", "--json", "./llama-server", "-m", "a.gguf").json["launches"] == 1


def test_unread_files_are_reported_and_fail(firesteel: Firesteel, tmp_path: Path) -> None:
    good, broken, silent = (tmp_path / name for name in ("good.sh", "broken.yaml", "silent.sh"))
    good.write_text("llama-server -m a.gguf\n")
    broken.write_text("services: [\n")
    silent.write_text(f"# firesteel: allow vllm-entrypoint-twice\n{BAD}")
    assert firesteel("check", str(good), str(broken)).code == 2
    assert "not read" in firesteel("check", "--github", str(good), str(broken)).out
    log = json.loads(firesteel("check", "--sarif", str(good), str(broken)).out)
    assert log["runs"][0]["invocations"][0]["executionSuccessful"] is False
    broken.unlink()
    assert firesteel("check", str(tmp_path)).code == 2
    silent.unlink()
    broken.write_text("services: [\n")
    assert firesteel("check", str(tmp_path)).code == 0


def test_engine_versions(firesteel: Firesteel) -> None:
    line = "vllm serve org/m --gpu-memory-utilization 0.7 --moe-backend b12x"
    assert firesteel("check", "--engine-version", "0.18.0", line).code == 3
    assert firesteel("check", "--engine-version", "b5000", line).code == 0
    assert firesteel("check", "--engine-version", "banana", line).code == 2


def test_a_command_is_checked_without_the_planner_and_the_parsers_of_files(tmp_path: Path) -> None:
    """They take longer to import than the check itself."""
    program = (
        "import atexit, sys; from firesteel.cli.main import main\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr)); main()"
    )
    env = {**os.environ, "FIRESTEEL_HOME": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", program, "check", *BAD.split()]
    for heavy in ({"firesteel.planner"}, {"firesteel.planner", "pydantic", "yaml", "importlib.metadata"}):
        # The first run may have to compile the rules, which takes a parser.
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=env)
        assert ran.returncode == 3, ran.stderr
        assert not heavy & set(ran.stderr.split())


EIGHT_GPUS = "vllm serve org/m --gpu-memory-utilization 0.97 -tp 8"


def test_the_machine_that_the_text_speaks_of_another_one_and_none(inside: Firesteel) -> None:
    stated = inside("check", EIGHT_GPUS)
    assert stated.code == 0 and "for another machine (8 GPUs in one host, line:1)" in stated.out
    assert inside("check", "--host", "gb10", EIGHT_GPUS).code == 3
    assert inside("check", "--host", "H200", EIGHT_GPUS.replace(" -tp 8", "")).code == 0
    assert inside("check", "--engine-only", EIGHT_GPUS.replace(" -tp 8", "")).code == 0
    assert inside("check", EIGHT_GPUS.replace(" -tp 8", "")).code == 3
    assert inside("check", "--engine-only", "--host", "gb10", EIGHT_GPUS).code == 2


def test_the_machine_in_json(inside: Firesteel) -> None:
    result = json.loads(inside("check", "--json", EIGHT_GPUS).out)
    machine = {"kind": "other", "what": "8 GPUs in one host", "file": "line", "line": 1}
    assert (result["hardware"], result["machines"]) == ("stated", [machine])


def test_a_report_for_the_authors(inside: Firesteel, folder: Path) -> None:
    (folder / "sub" / "new.sh").write_text("# needs vLLM >= 0.20\nvllm serve a/b --linear-backend marlin\n")
    ran = inside("check", "--markdown", str(folder))
    assert ran.code == 3
    lines = ran.out.splitlines()
    where = f"`{folder}/sub/new.sh:2`"
    entry = next(index for index, line in enumerate(lines) if line.startswith(f"- {where}"))
    assert "with vLLM 0.20.0, which line 1 allows" in lines[entry] and "first in 0.22.0" in lines[entry]
    assert lines[entry + 1] == "  - seen: `--linear-backend`" and lines[entry + 2].startswith("  - fix: ")
    assert "### vllm-entrypoint-twice" in lines and any(line.startswith("Sources: https") for line in lines)
