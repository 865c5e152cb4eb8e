"""`firesteel bench compare` and `firesteel bench list` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from firesteel.bench.compare.runs import Comparison, compare, were_interleaved
from firesteel.bench.measurements import RequestSettings, StoredRun, Subject
from firesteel.bench.results.history import open_history
from firesteel.edge.home import Home
from firesteel.errors import UsageError
from firesteel.library.bench import RunFinished, RunLimits, Sizes, measure_in_turns
from firesteel.library.documents.all import schemas
from firesteel.values import replace
from tests.bench.faulty_server import FaultyServer, serving
from tests.bench.stored_runs import POINT, SUBJECT, rates, stored_run
from tests.cli.inside import inside
from tests.conftest import Firesteel

OTHER_TOOLS = Path(__file__).parents[1] / "bench" / "other_tools"
PLAN = {"decode_tokens_per_s": {"low": 45.0, "expected": 50.0, "high": 55.0}, "why": "fitted to runs"}


def keep(home: Path, made: StoredRun, at: int) -> None:
    with open_history(Home(home)) as history:
        history.begin(replace(made.run, began=f"2026-11-15T10:00:0{at}+00:00"))
        history.add(made.run.id, *made.samples)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Firesteel:
    home = tmp_path / "home"
    keep(home, stored_run("slow", rates(50, seed=1), answers="abcdefgh"), 0)
    planned = replace(SUBJECT, plan=PLAN, launch={"flags": {"kv-cache-dtype": "fp8"}})
    keep(home, stored_run("fast", rates(60, seed=2), answers="abcdefgX", subject=planned), 1)
    keep(home, stored_run("thinks", rates(60), settings=RequestSettings(thinking=True)), 2)
    return inside(home, monkeypatch, capsys)


def test_two_runs(run: Firesteel) -> None:
    done = run("bench", "compare", "slow", "fast")
    assert done.code == 0
    assert "faster by 2" in done.out and "p < 0.001" in done.out
    assert "kv-cache-dtype: not set, fp8" in done.out
    assert "vary by themselves" in done.out


def test_two_runs_as_json(run: Firesteel) -> None:
    result = run("bench", "compare", "last~2", "last~1", "--json").json
    jsonschema.validate(result, schemas()["firesteel.compare/1"])
    decode = next(row for row in result["rows"] if row["measure"] == "decode")
    assert (result["first"], result["second"]) == ("slow", "fast")
    assert decode["difference"]["verdict"] == "faster"
    assert decode["difference"]["low"] < 1.2 < decode["difference"]["high"]
    assert result["answers"] is None, "two runs of themselves have other prompts"


def test_not_comparable_and_despite(run: Firesteel) -> None:
    done = run("bench", "compare", "slow", "thinks")
    assert done.code == 1
    assert "not comparable because thinking differs: the model's default and on" in done.out
    assert "tok/s" not in done.out
    assert run("bench", "compare", "slow", "thinks", "--despite", "thinking").code == 0
    assert run("bench", "compare", "slow", "thinks", "--json").json["why_not"][0]["setting"] == "thinking"


def test_against_the_plan(run: Firesteel) -> None:
    done = run("bench", "compare", "fast", "--plan")
    assert done.code == 0 and "faster than planned" in done.out and "fitted to runs" in done.out
    result = run("bench", "compare", "fast", "--plan", "--json").json
    assert result["rows"][0]["planned"] == PLAN["decode_tokens_per_s"]
    refused = run("bench", "compare", "slow", "--plan")
    assert refused.code == 2 and "has no plan" in refused.err


def test_against_a_plan_where_nothing_was_measured(run: Firesteel, tmp_path: Path) -> None:
    planned = stored_run("none", rates(50), subject=replace(SUBJECT, plan=PLAN))
    bare = replace(planned.run, figures=(), is_whole=False)
    keep(tmp_path / "home", StoredRun(bare), 4)
    refused = run("bench", "compare", "none", "--plan")
    assert refused.code == 2 and "ended before a repetition of it counted" in refused.err
    assert "bench --resume none" in refused.err
    keep(tmp_path / "home", StoredRun(replace(bare, id="some"), planned.samples), 5)
    assert "inside the band" in run("bench", "compare", "some", "--plan").out


def test_against_published_runs(run: Firesteel, tmp_path: Path) -> None:
    subject = Subject("", "x", "llamacpp", launch={"model": "ggml-org/gpt-oss-20b-GGUF", "sparks": 1})
    point = replace(POINT, prompt_tokens=512, answer_tokens=32)
    keep(tmp_path / "home", stored_run("oss", rates(80), point=point, subject=subject), 3)
    done = run("bench", "compare", "oss", "--published")
    assert done.code == 0 and "https://" in done.out and "within the usual difference" in done.out
    assert run("bench", "compare", "oss", "--published", "--json").json["rows"]
    assert "there is no published run" in run("bench", "compare", "slow", "--published").err


def test_a_file_of_another_tool(run: Firesteel) -> None:
    name = str(OTHER_TOOLS / "llama-benchy-0.4.0.json")
    done = run("bench", "compare", name, name)
    assert done.code == 0 and "no difference seen" in done.out
    assert run("bench", "compare", "slow", name).code == 1, "no point is in both"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            (
                "bench",
                "compare",
            ),
            "give 2 RUNs, not 0",
        ),
        (("bench", "compare", "slow"), "give 2 RUNs, not 1"),
        (("bench", "compare", "slow", "fast", "--plan"), "give 1 RUN, not 2"),
        (("bench", "compare", "slow", "--plan", "--published"), "only one of"),
        (("bench", "compare", "slow", "nothing"), "no run nothing"),
        (("bench", "compare", "slow", "./nothing.json"), "not the id of a run"),
        (("bench", "compare", "slow", "a\nb"), "not the id of a run"),
        (("bench", "compare", "slow", __file__), "is not a result of"),
        (("bench", "compare", "slow", "/"), "not a file"),
        (("bench", "compare", "--ab", "slow", "fast"), "neither a URL nor a running service"),
        (("bench", "show", "x y"), "not the id of a run"),
        (("bench", "delete", "%"), "not the id of a run"),
        (("bench", "import", "/nothing/there"), "not a file"),
        (("bench", "export", "--samples"), "one RUN"),
    ],
)
def test_invalid_arguments(run: Firesteel, arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert done.code == 2 and says in done.err and "next:" in done.err


def test_the_history(run: Firesteel) -> None:
    assert [line.split()[0] for line in run("bench", "list").out.splitlines()] == [
        "name",
        "thinks",
        "fast",
        "slow",
    ]
    result = run("bench", "list", "--json").json
    jsonschema.validate(result, schemas()["firesteel.history/1"])
    assert [row["samples"] for row in result["runs"]] == [8, 8, 8]
    assert "1,000 + 100" in run("bench", "show", "slow").out
    assert run("bench", "show", "slow", "--json").json["id"] == "slow"
    assert "deleted slow" in run("bench", "delete", "slow").out
    assert "slow" not in run("bench", "list").out


def test_an_empty_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    firesteel = inside(tmp_path, monkeypatch, capsys)
    assert "no runs yet; next: firesteel bench" in firesteel("bench", "list").out


def test_export_and_import(run: Firesteel, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    assert run("bench", "export", "slow", "fast", "--file", str(rows)).code == 0
    assert len(json.loads(rows.read_text())["rows"]) == 2
    assert run("bench", "import", str(rows)).out.count("reported") == 2
    assert run("bench", "import", str(rows)).out.count("already") == 2
    whole = tmp_path / "whole.json"
    whole.write_text(run("bench", "export", "slow", "--samples").out)
    assert run("bench", "compare", "slow", str(whole)).code == 0
    origins = [row["origin"] for row in run("bench", "list", "--json").json["runs"]]
    assert sorted(origins) == ["measured here"] * 3 + ["reported"] * 2


async def in_turns(*urls: str) -> tuple[list[StoredRun], Comparison]:
    stored: dict[int, StoredRun] = {}
    sizes, limits = Sizes(depths=(60,), answer=40), RunLimits(60.0, 0.2)
    async for event in measure_in_turns(*urls, shapes=("single",), sizes=sizes, limits=limits):
        if not isinstance(event, tuple):
            return [stored[side] for side in (0, 1)], event
        if isinstance(event[1], RunFinished):
            stored[event[0]] = StoredRun(event[1].run, event[1].samples)
    raise AssertionError("the last event is the comparison")


@pytest.mark.simulated_time
@pytest.mark.usefixtures("simulated_clock")
async def test_two_servers_in_turns_are_two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path))
    home = Home(tmp_path)
    async with serving(FaultyServer(token_s=0.004)) as one, serving(FaultyServer(token_s=0.006)) as other:
        (first, second), result = await in_turns(one, other)
        with pytest.raises(UsageError, match="from its cache"):
            await in_turns(one, f"{one}/v1/")
    with open_history(home) as history:
        again = [history.run(stored.run.id) for stored in (first, second)]
    assert again == [first, second]
    assert were_interleaved(*again)
    assert result == compare(*again, is_interleaved=True)
    assert result.rows[0].difference.verdict == "slower"
    assert result.answers is not None and result.answers.changed == 0
    assert not list((tmp_path / "locks").iterdir())


def test_what_bench_printed_can_be_compared(run: Firesteel, tmp_path: Path) -> None:
    printed = tmp_path / "printed.json"
    printed.write_text(run("bench", "show", "slow", "--json").out)
    done = run("bench", "compare", "slow", str(printed))
    assert done.code == 0 and "no difference seen" in done.out
