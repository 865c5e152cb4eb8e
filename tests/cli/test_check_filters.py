"""`check --strict`, `--baseline` and `--changed-since`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.inside import inside as in_process
from tests.conftest import Firesteel
from tests.needs import needs_programs

BAD = "docker run --gpus all vllm/vllm-openai:v0.28.0 vllm serve org/m --gpu-memory-utilization 0.7\n"
GOOD = "docker run --gpus all vllm/vllm-openai:v0.28.0 org/m --gpu-memory-utilization 0.7\n"
LOST = '```python\nrun(["vllm", "serve", "org/m"])\n```\n'


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Firesteel:
    run = in_process(tmp_path / "home", monkeypatch, capsys)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return run


def test_strict(inside: Firesteel) -> None:
    Path("good.sh").write_text(GOOD)
    Path("guide.md").write_text(LOST)
    ran = inside("check", ".")
    assert ran.code == 0 and "this looks like a launch of vLLM" in ran.out
    assert inside("check", "--strict", ".").code == 2
    assert inside("check", "--strict", "good.sh").code == 0
    assert inside("check", "guide.md").code == 2
    Path("broken.yaml").write_text("a: [\n")
    assert inside("check", "--strict", "good.sh", "broken.yaml").code == 2
    Path("bad.sh").write_text(BAD)
    assert inside("check", "--strict", ".").code == 3


def test_baseline(inside: Firesteel) -> None:
    Path("a.sh").write_text(BAD)
    first = inside("check", "--json", "a.sh")
    assert first.code == 3
    Path("known.json").write_text(first.out)
    again = inside("check", "--baseline", "known.json", "./a.sh")
    assert again.code == 0 and "nothing found" in again.out
    Path("a.sh").write_text(f"# moved\n{BAD}{BAD}")
    more = json.loads(inside("check", "--json", "--baseline", "known.json", "a.sh").out)
    assert [(row["rule"], row["line"]) for row in more["findings"] if row["level"] == "stop"] == [
        ("vllm-entrypoint-twice", 3)
    ]


@pytest.mark.parametrize("text", [None, "", "[]", '{"document": "firesteel.plan/1", "findings": []}'])
def test_what_is_no_baseline(inside: Firesteel, text: str | None) -> None:
    Path("a.sh").write_text(GOOD)
    if text is not None:
        Path("known.json").write_text(text)
    ran = inside("check", "--baseline", "known.json", "a.sh")
    assert ran.code == 2 and "firesteel check --json ... > known.json" in ran.err


def git(*args: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *args], check=True, capture_output=True)


@needs_programs("git")
def test_changed_since(inside: Firesteel) -> None:
    git("init", "-q")
    Path("old.sh").write_text(BAD)
    Path("a b.sh").write_text(f"{BAD}echo\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    assert inside("check", ".").code == 3
    assert inside("check", "--changed-since", "HEAD", ".").code == 0
    Path("a b.sh").write_text(f"{BAD}{BAD}echo\n")
    Path("new.sh").write_text(BAD)
    ran = json.loads(inside("check", "--json", "--changed-since", "HEAD", ".").out)
    stops = [(row["file"], row["line"]) for row in ran["findings"] if row["level"] == "stop"]
    assert sorted(stops) == [("a b.sh", 2), ("new.sh", 1)]


@pytest.mark.parametrize("ref", ["nope", "-x"])
@needs_programs("git")
def test_changed_since_what_is_no_commit(inside: Firesteel, ref: str) -> None:
    git("init", "-q")
    Path("a.sh").write_text(GOOD)
    ran = inside("check", f"--changed-since={ref}", "a.sh")
    assert ran.code == 2 and ref in ran.err


@needs_programs("git")
def test_changed_since_outside_of_a_repository(inside: Firesteel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(Path.cwd().parent))
    Path("a.sh").write_text(GOOD)
    ran = inside("check", "--changed-since", "HEAD", "a.sh")
    assert ran.code == 2 and "git" in ran.err


def test_files_outside_of_the_checked_folder_are_not_read(inside: Firesteel) -> None:
    Path("secret.env").write_text("VLLM_NOPE=1\n")
    Path("sub").mkdir()
    Path("sub/link.env").symlink_to(Path("secret.env").resolve())
    line = "docker run --gpus all --env-file {} vllm/vllm-openai:v0.28.0 org/m --gpu-memory-utilization 0.7\n"
    for name in ("../secret.env", "link.env", str(Path("secret.env").resolve())):
        Path("sub/a.sh").write_text(line.format(name))
        assert "VLLM_NOPE" not in inside("check", "sub").out
    assert "VLLM_NOPE" not in inside("check", "sub/a.sh").out
    Path("sub/own.env").write_text("VLLM_NOPE=1\n")
    Path("sub/a.sh").write_text(line.format("own.env"))
    assert "VLLM_NOPE" in inside("check", "sub").out
