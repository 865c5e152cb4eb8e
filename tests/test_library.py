"""`import firesteel`: the same values as the commands show."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import pytest
import yaml

import firesteel
from firesteel.bench.compare.runs import Comparison
from firesteel.bench.load.measure import RunFinished, SampleTaken
from firesteel.bench.load.schedule import RunLimits, Sizes
from firesteel.bench.results.history import open_history
from firesteel.bench.tune.journal import TuneOptions, read_journal, write_journal
from firesteel.bench.tune.tune import begin, environment, resume
from firesteel.edge.home import Home
from firesteel.errors import HostNotReady, UsageError
from firesteel.launch import Ask
from firesteel.planner.rendered import CLUSTER_FORMS, FORMS
from firesteel.run.events import PhaseDone
from firesteel.run.service import Service, ServiceSpec
from firesteel.run.verify.verify import Verification
from firesteel.values import replace
from tests.bench.faulty_server import MODEL, FaultyServer, serving
from tests.bench.stored_runs import rates, stored_run

T = TypeVar("T")
EXAMPLES = re.findall(
    r"```python\n(.*?)```", (Path(__file__).parents[1] / "docs/library.md").read_text(), re.DOTALL
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


async def last(events: AsyncIterator[T]) -> T:
    return [event async for event in events][-1]


def test_everything_that_is_exported_is_there() -> None:
    for name in firesteel.__all__:
        assert getattr(firesteel, name) is not None
    assert not hasattr(firesteel, "nonsense")


def test_what_a_function_takes_can_be_made() -> None:
    """Its options are exported too; other values are what functions return."""
    functions = [each for name in firesteel.__all__ if inspect.isfunction(each := getattr(firesteel, name))]
    written = " ".join(
        str(each.annotation) for f in functions for each in inspect.signature(f).parameters.values()
    )
    taken = set(re.findall(r"\b(?:\w+(?:Limits|Options|Settings)|Ask|Cluster|Sizes)\b", written))
    assert len(taken) > 9 and taken <= set(firesteel.__all__)


def test_no_function_hides_a_package() -> None:
    """`firesteel.bench` is a package: after its first import, a function of that name would be gone."""
    names = {path.stem for path in Path(firesteel.__file__).parent.iterdir()}
    assert not names & set(firesteel.__all__)


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = ("pydantic", "rich", "aiohttp", "yaml")
    program = f"import firesteel, sys; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- plans and texts ---


def test_plan_and_models() -> None:
    best, *others = firesteel.plan("gpt-oss-120b", host_name="gb10")
    assert best.plan.fits and {other.name for other in others} == {"gpt-oss-120b-sglang", "gpt-oss-120b-vllm"}
    assert {proposal.name for proposal in firesteel.models("gb10")} >= {best.name, "smollm2"}


def test_check_and_docker_agree() -> None:
    best = firesteel.plan("qwen3.6-35b-a3b-nvfp4", host_name="gb10")[0]
    assert not [finding for finding in firesteel.check(firesteel.docker(best)) if finding.level == "stop"]


def test_render_as() -> None:
    best, other = (firesteel.plan(name, host_name="gb10")[0] for name in ("gpt-oss-20b", "gpt-oss-120b"))
    for form in FORMS:
        assert best.plan.launch.model in firesteel.render_as(best, form)
    for form in CLUSTER_FORMS:
        assert other.plan.launch.name in firesteel.render_as([best, other], form)
    assert len(yaml.safe_load(firesteel.render_as([best, other], "compose"))["services"]) == 2
    assert "0.0.0.0:" in firesteel.render_as(best, listen="0.0.0.0")
    for proposals, form in ((best, "nonsense"), ([best, other], "docker")):
        with pytest.raises(UsageError):
            firesteel.render_as(proposals, form)


def test_diagnose(tmp_path: Path) -> None:
    text = "INFO vLLM API server version 0.24.0\ntorch.OutOfMemoryError: CUDA out of memory.\n"
    (tmp_path / "engine.log").write_text(text)
    from_text, from_file = (
        firesteel.diagnose(text, "vllm"),
        firesteel.diagnose(tmp_path / "engine.log", "vllm"),
    )
    assert from_text.causes and from_text == from_file


def test_compatibility_and_learn(home: Home) -> None:
    assert firesteel.compatibility("sm121").rows
    schema = asyncio.run(firesteel.learn("vllm", "v0.24.0"))
    assert schema.version == "0.24.0" and "max-model-len" in schema.flags
    assert not home.root.exists(), "a release that is known is neither fetched nor stored"
    with pytest.raises(UsageError):
        asyncio.run(firesteel.learn("vllm", "newest"))


def test_learn_image_needs_a_container_runtime(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostNotReady, match="neither docker nor podman"):
        firesteel.learn_image("vllm/vllm-openai:v0.33.0")


# --- services ---


def test_unused_files_are_listed_and_removed(home: Home) -> None:
    old = home.engines / "xllamacpp-1.0"
    old.mkdir(parents=True)
    files = firesteel.unused_files()
    assert [(file.kind, file.path) for file in files] == [("engine", old)]
    assert firesteel.remove_files(files) == () and not old.exists()


def test_logs(home: Home) -> None:
    with pytest.raises(firesteel.FiresteelError):
        firesteel.logs()
    log = home.services / "mine" / "engine.log"
    log.parent.mkdir(parents=True)
    log.write_text("one\ntwo\nthree\n")
    assert firesteel.logs("mine", lines=2) == firesteel.logs(lines=2) == ["two", "three"]
    assert firesteel.log_file("mine") == log


def test_client_settings_of_a_plan(home: Home) -> None:
    target = firesteel.client_target("gpt-oss-120b")
    assert target.kind == "plan" and target.endpoint.url in firesteel.client_settings("opencode", target)


def test_verify_a_url(home: Home) -> None:
    async def verify() -> str | Verification:
        async with serving(FaultyServer()) as url:
            return await last(firesteel.verify(url=url))

    result = asyncio.run(verify())
    assert isinstance(result, Verification) and result.checks and not result.is_good


@pytest.mark.real
def test_pull_of_what_is_there(engine_home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(engine_home.root))

    async def pull() -> list[str]:
        return [event.text async for event in firesteel.pull("smollm2") if isinstance(event, PhaseDone)]

    assert asyncio.run(pull()) == []


# --- the gateway ---


def test_keys(home: Home) -> None:
    key, token = firesteel.add_key("laptop", models=("coder",))
    assert firesteel.keys() == (key,) and token not in str(key)
    assert firesteel.revoke_key("laptop") == key and firesteel.keys() == ()


def test_serve(home: Home, tmp_path: Path, free_port: int) -> None:
    file = tmp_path / "firesteel.yaml"
    file.write_text("models:\n  other: {url: http://127.0.0.1:9, memory: 1GiB}\n")

    async def serve() -> list[str]:
        ends = asyncio.Event()
        kinds: list[str] = []
        async for event in firesteel.serve(firesteel.ServeOptions(file, f"127.0.0.1:{free_port}"), ends):
            kinds.append(event.kind)
            if event.kind == "listening":
                ends.set()
        return kinds

    kinds = asyncio.run(serve())
    assert kinds[0] == "reading" and "listening" in kinds and kinds[-1] == "ended"


# --- measurements ---


def test_measure_is_stored(home: Home) -> None:
    async def measure() -> object:
        async with serving(FaultyServer()) as url:
            sizes, limits = Sizes(users=(1,), depths=(64,), answer=8), RunLimits(60.0, 0.9)
            return await last(firesteel.measure(url=url, sizes=sizes, limits=limits))

    finished = asyncio.run(measure())
    assert isinstance(finished, RunFinished) and finished.run.subject.model == MODEL
    assert firesteel.stored_run("last").run.figures == finished.run.figures
    assert firesteel.compare_with_plan() == () == firesteel.compare_with_published()


def test_an_interrupted_measurement_continues(home: Home) -> None:
    async def measure() -> tuple[str, object]:
        async with serving(FaultyServer()) as url:
            sizes, limits = Sizes(users=(1,), depths=(64,), answer=8), RunLimits(60.0, 0.9)
            events = firesteel.measure(url=url, sizes=sizes, limits=limits)
            async for event in events:
                if isinstance(event, SampleTaken):
                    break
            await events.aclose()
            interrupted = firesteel.stored_run("last").run
            assert not interrupted.is_whole
            return interrupted.id, await last(firesteel.measure(url=url, resume="last"))

    name, finished = asyncio.run(measure())
    assert isinstance(finished, RunFinished) and finished.run.id == name and finished.run.is_whole


def test_two_servers_are_compared_in_turns(home: Home) -> None:
    async def measure() -> object:
        async with serving(FaultyServer(token_s=0.004)) as one, serving(FaultyServer(token_s=0.03)) as other:
            sizes, limits = Sizes((1,), (40,), ("prose",), answer=16), RunLimits(120, 0.5, 3, 4)
            return await last(firesteel.compare_in_turns(one, other, sizes=sizes, limits=limits))

    comparison = asyncio.run(measure())
    assert isinstance(comparison, Comparison) and comparison.is_interleaved
    assert comparison.rows[0].measure == "decode" and comparison.rows[0].difference.ratio < 0.8


def test_compare(home: Home) -> None:
    with open_history(home) as history:
        for name, rate in (("slow", 50.0), ("fast", 60.0)):
            stored = stored_run(name, rates(rate))
            history.begin(stored.run)
            history.add(stored.run.id, *stored.samples)
    comparison = firesteel.compare("slow", "fast")
    assert any(row.difference.verdict == "faster" for row in comparison.rows)


def test_tune_begins_a_search_or_continues_one(home: Home, tmp_path: Path) -> None:
    options = TuneOptions(max_runs=2)
    ask = Ask("smollm2")
    new = begin(home, ask, options, ())
    assert (new.name, new.options, new.before) == ("smollm2", options, None)
    spec = ServiceSpec("smollm2", "http://127.0.0.1:8123", "smollm2", ())
    running = Service("smollm2", tmp_path, spec, None, "ready", None)
    of_running = begin(home, ask, options, (running,))
    assert of_running.before is not None and of_running.ask.port == of_running.before.ask.port == 8123
    with pytest.raises(UsageError, match="no interrupted search"):
        resume(home, ask, options, ())
    write_journal(home, new)
    with pytest.raises(UsageError, match="was interrupted after 0 runs"):
        begin(home, ask, options, ())
    again = resume(home, ask, replace(options, max_runs=9), (running,))
    assert (again.id, again.options.max_runs) == (new.id, 9)
    assert begin(home, ask, options, (), anew=True).id != new.id
    assert read_journal(home, new.id).ended == "left"
    with open_history(home) as history:
        assert environment(home, history).propose(Ask("smollm2"))[0].name == "smollm2"


# --- the examples of docs/library.md ---


@pytest.mark.parametrize("example", [text for text in EXAMPLES if "asyncio" not in text])
def test_an_example_runs(example: str, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    exec(example, {"__name__": "__main__"})
    assert capsys.readouterr().out or "history" in example


@pytest.mark.real
def test_the_example_with_an_engine_runs(quick_home: Home, free_port: int, tmp_path: Path) -> None:
    (example,) = [text for text in EXAMPLES if "asyncio" in text]
    program = tmp_path / "example.py"
    program.write_text(example.replace('plan("smollm2")', f'plan("smollm2", port={free_port})'))
    env = {"FIRESTEEL_HOME": str(quick_home.root), "PYTHONPATH": str(Path(firesteel.__file__).parents[1])}
    done = subprocess.run([sys.executable, program], env=env, capture_output=True, text=True, check=True)
    assert "ServiceReady" in done.stdout and "Verification" in done.stdout
