"""`firesteel logs --why` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from firesteel.library.documents.all import schemas
from tests.conftest import Firesteel

LOGS = Path(__file__).parent.parent / "engines" / "logs"
TOO_SMALL = LOGS / "vllm-0.32.0-cpu-kv-too-small.log"


def test_a_failed_start(firesteel: Firesteel) -> None:
    ran = firesteel("logs", "--why", str(TOO_SMALL))
    assert ran.code == 0
    assert "vllm 0.32.0" in ran.out and "failed" in ran.out
    assert "context-larger-than-cache" in ran.out and "--max-model-len 2688" in ran.out
    assert f"{TOO_SMALL}:80" in ran.out
    assert ran.out.index("context-larger-than-cache") < ran.out.index("engine-core-failed")


def test_as_json_from_stdin(firesteel: Firesteel) -> None:
    ran = firesteel("logs", "--why", "-", "--json", stdin=TOO_SMALL.read_text())
    assert ran.code == 0
    result = json.loads(ran.out)
    jsonschema.validate(result, schemas()["firesteel.diagnose/1"])
    assert result["causes"][0]["id"] == "context-larger-than-cache" and result["stage"] == "kv"


def test_a_healthy_start(firesteel: Firesteel) -> None:
    ran = firesteel("logs", "--why", str(LOGS / "llamacpp-11549.log"))
    assert ran.code == 0 and "started normally" in ran.out


def test_an_unknown_failure_exits_1_and_shows_its_line(firesteel: Firesteel) -> None:
    ran = firesteel("logs", "--why", "-", stdin="well\nodd.OddError: nobody has seen this\n")
    assert ran.code == 1
    assert "does not know this failure" in ran.out and "stdin:2  odd.OddError" in ran.out


def test_an_unfinished_log(firesteel: Firesteel) -> None:
    ran = firesteel("logs", "--why", "-", "--engine", "vllm", stdin="Starting to load model x...\n")
    assert ran.code == 0 and "not up yet; last message: loading weights" in ran.out


def test_the_log_of_a_service(firesteel: Firesteel, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "services" / "coder"
    folder.mkdir(parents=True)
    (folder / "engine.log").write_text("OSError: [Errno 28] No space left on device\n")
    ran = firesteel("logs", "--why", "coder")
    assert ran.code == 0 and "disk-full" in ran.out and "df -h" in ran.out


@pytest.mark.parametrize("what", ["nosuch", "/dev/zero", "x" * 5000])
def test_something_that_is_not_a_log(firesteel: Firesteel, what: str) -> None:
    ran = firesteel("logs", "--why", what)
    assert ran.code == 2 and "is not a file" in ran.err and "firesteel logs FILE --why" in ran.err


def test_a_binary_is_not_a_log(firesteel: Firesteel, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF\x03\0\0\0")
    ran = firesteel("logs", "--why", str(tmp_path / "x.gguf"))
    assert ran.code == 2 and "is not text" in ran.err


def test_a_hostile_log_does_not_move_the_cursor(firesteel: Firesteel) -> None:
    text = "vllm: error: unrecognized arguments: --x \x1b]52;c;ZXZpbA==\x07 \x08\x08 \x1b[2J\n"
    ran = firesteel("logs", "--why", "-", stdin=text)
    assert ran.code == 0 and not {"\x1b", "\x07", "\x08"} & set(ran.out)


@pytest.mark.parametrize("text", ["", "the quick brown fox\njumps\n"])
def test_a_log_of_no_engine_prints_what_to_type(firesteel: Firesteel, text: str) -> None:
    ran = firesteel("logs", "--why", "-", stdin=text, env={"FIRESTEEL_COMMAND": "./firesteel"})
    assert ran.code == 1
    assert "type   docker logs NAME 2>&1 | ./firesteel logs - --why" in ran.out


def test_an_empty_log_of_an_engine_that_was_named(firesteel: Firesteel) -> None:
    ran = firesteel("logs", "--why", "-", "--engine", "vllm", stdin="")
    assert ran.code == 1 and "type   " in ran.out


def test_an_empty_log_of_a_service(firesteel: Firesteel, tmp_path: Path) -> None:
    folder = tmp_path / "home" / "services" / "coder"
    folder.mkdir(parents=True)
    (folder / "engine.log").touch()
    ran = firesteel("logs", "--why", "coder")
    assert ran.code == 1 and "type   firesteel ps" in ran.out


def test_hints_are_spelled_as_firesteel_was_started(firesteel: Firesteel) -> None:
    line = "vllm: error: unrecognized arguments: --swap-space 4\n"
    ran = firesteel("logs", "--why", "-", stdin=line, env={"FIRESTEEL_COMMAND": "./firesteel --sim"})
    assert "type   ./firesteel --sim check" in ran.out


@pytest.mark.parametrize(
    ("engine", "has", "has_not"),
    [
        ("vllm", "--max-model-len", "--ctx-size"),
        ("sglang", "--mem-fraction-static", "--gpu-memory-utilization"),
        ("llamacpp", "--ctx-size", "--gpu-memory-utilization"),
    ],
)
@pytest.mark.parametrize("line", ["torch.OutOfMemoryError: CUDA out of memory.", "CUDA error: out of memory"])
def test_out_of_memory_names_the_flags_of_the_engine(
    firesteel: Firesteel, engine: str, has: str, has_not: str, line: str
) -> None:
    causes = firesteel("logs", "--why", "-", "--engine", engine, "--json", stdin=f"{line}\n").json["causes"]
    assert len(causes) == 1 and causes[0]["next"].startswith("firesteel up MODEL --context ")
    assert has in causes[0]["next"] and has_not not in causes[0]["next"]
