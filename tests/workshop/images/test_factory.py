"""`image watch`: a factory day in simulated time, crashes in the middle of actions, policies, upstreams."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from firesteel.bench.compare.answers import QualityComparison, QuestionScore
from firesteel.bench.compare.runs import AnswerComparison, ComparedFigure, Comparison
from firesteel.bench.compare.stats import FigureDifference, Measure
from firesteel.bench.measurements import MeasuredFigure, Point
from firesteel.bench.upgrade.trial import judge_trial
from firesteel.catalog.image_recipe import image_recipe, read_image_recipe
from firesteel.edge.home import Home
from firesteel.edge.programs.build import BuildProgress
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.shipped_data import read_text
from firesteel.values import replace
from firesteel.workshop.images.build import image_tag
from firesteel.workshop.images.factory.effects import git_tags
from firesteel.workshop.images.factory.factory import (
    ActionDone,
    action_line,
    all_candidates,
    next_action,
    read_factory_state,
    run_policy,
    state_path,
    try_again,
)
from firesteel.workshop.images.factory.policy import (
    ActionResult,
    FactoryAction,
    FactoryState,
    ImagePolicy,
    LookUpstream,
    ReleaseAction,
    ReleaseSource,
    RemoveImage,
    UpstreamRelease,
    decide,
    read_policies,
    wanted_releases,
    with_release,
)
from firesteel.workshop.images.retention import ImageStock, OwnImage
from tests.conftest import Firesteel
from tests.needs import needs_programs

HOUR = 3600.0
DAY = datetime(2026, 11, 16, tzinfo=UTC)
POLICY = ImagePolicy(
    recipe="vllm-gb10", releases=ReleaseSource(git="/upstream"), tags=r"v([\d.]+)", every=3600, keep=2
)


class Crash(BaseException):
    """The process ends here."""


class SimulatedFactory:
    """Upstream, docker and the measurement of a simulated day. The process can end before each action, and
    after it has done its work."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.upstream: dict[str, str] = {}
        """Tag -> what becomes of it: better, worse, broken."""
        self.images: dict[str, OwnImage] = {}
        self.containers: set[str] = set()
        self.catalog: set[str] = set()
        self.log: list[str] = []
        self.crash_at: int | None = None
        self.steps = 0

    def stock(self) -> ImageStock:
        return ImageStock(tuple(self.images.values()), frozenset(self.containers), frozenset(self.catalog))

    def step(self, what: str) -> None:
        self.steps += 1
        if self.steps == self.crash_at:
            raise Crash(what)

    async def do(
        self, action: FactoryAction, state: FactoryState
    ) -> AsyncIterator[BuildProgress | ActionResult]:
        self.step(f"before {action}")
        yield BuildProgress("working")
        result = self._do(action, state)
        self.step(f"after {action}")
        yield result

    def _do(self, action: FactoryAction, state: FactoryState) -> ActionResult:
        if isinstance(action, LookUpstream):
            tags = {tag: f"{ord(tag[-1]):040x}" for tag in self.upstream}
            return ActionResult(found=wanted_releases(POLICY, tags))
        if isinstance(action, RemoveImage):
            assert action.image.id not in self.containers, "never what runs"
            self.images.pop(action.image.id, None)
            return ActionResult()
        found, fate = state.release(action.tag), self.upstream[action.tag]
        if action.do == "build":
            if fate == "broken":
                raise FiresteelError("the image was not built: a compiler was killed", next="less build.log")
            id = f"sha256:{self.steps:064}"
            self.images[id] = OwnImage(id, None, f"{self.steps:09}", 100)
            return ActionResult(image_id=id, folder=f"/builds/{action.tag}")
        if action.do == "compare":
            slow = fate == "worse"
            why = ("decode (prose, 1 user) is slower by 8.0%",) if slow else ("as fast as before",)
            return ActionResult(accepted=not slow, why=why)
        tag = f"firesteel/llm:{found.version}-202611{int(self.now_s // 86400) % 28 + 1:02}-{found.pin[:7]}"
        self.images[found.image_id] = replace(self.images[found.image_id], tag=tag)
        self.catalog = {tag}
        return ActionResult(image_tag=tag)

    def run(self, home: Home) -> list[str]:
        async def collect() -> list[str]:
            return [
                action_line(event)
                async for event in run_policy("llm", POLICY, self, home, lambda: self.now_s)
                if isinstance(event, ActionDone)
            ]

        return asyncio.run(collect())

    def run_to_the_end(self, home: Home) -> None:
        """As a timer does: a process that ended is started again."""
        for _ in range(20):
            try:
                self.log += self.run(home)
                return
            except Crash:
                self.crash_at = None
        raise AssertionError("it never ends")


def a_day(factory: SimulatedFactory, home: Home) -> None:
    """Three releases after the first one: worse, broken, better; an hour apart."""
    for tag, fate in [("v0.1", "better"), ("v0.2", "worse"), ("v0.3", "broken"), ("v0.4", "better")]:
        factory.upstream[tag] = fate
        factory.now_s += HOUR
        factory.run_to_the_end(home)
        if tag == "v0.1":
            factory.containers = {id for id, image in factory.images.items() if image.tag}


Outcome = tuple[dict[str, object], str, list[str], list[OwnImage], set[str]]


def outcome(factory: SimulatedFactory, home: Home) -> Outcome:
    state = read_factory_state(home, "llm")
    stages: dict[str, object] = {found.tag: (found.stage, found.why) for found in state.releases}
    assert state.current is not None
    tags = sorted(image.tag.rpartition("-")[0] for image in factory.images.values() if image.tag)
    untagged = [image for image in factory.images.values() if not image.tag]
    return stages, state.current.tag, tags, untagged, {tag.partition("-")[0] for tag in factory.catalog}


def test_a_factory_day(tmp_path: Path) -> None:
    factory, home = SimulatedFactory(), Home(tmp_path)
    a_day(factory, home)
    stages, current, tags, untagged, catalog = outcome(factory, home)
    assert stages == {
        "v0.4": ("promoted", ("as fast as before",)),
        "v0.3": ("refused", ("the image was not built: a compiler was killed", "less build.log")),
        "v0.2": ("refused", ("decode (prose, 1 user) is slower by 8.0%",)),
        "v0.1": ("promoted", ("the first image of this policy",)),
    }
    assert current == "v0.4" and catalog == {"firesteel/llm:0.4"}
    assert len(tags) == 2 and untagged == [], "two are kept, what was refused is removed"
    assert [line.partition(" as ")[0] for line in factory.log] == [
        "looked upstream: 1 release, 1 not tried yet",
        "built and verified v0.1",
        "promoted v0.1",
        "looked upstream: 2 releases, 1 not tried yet",
        "built and verified v0.2",
        "refused v0.2: decode (prose, 1 user) is slower by 8.0%",
        factory.log[6],
        "looked upstream: 3 releases, 1 not tried yet",
        "refused v0.3: the image was not built: a compiler was killed; less build.log",
        "looked upstream: 4 releases, 1 not tried yet",
        "built and verified v0.4",
        "compared v0.4:",
        "promoted v0.4",
    ]
    assert factory.log[6].startswith("removed sha256:") and factory.log[6].endswith("(refused)")
    # Nothing is due before the hour is over. The first image goes when it is the third and does not run.
    assert factory.run(home) == []
    factory.upstream["v0.5"] = "better"
    factory.now_s += HOUR
    factory.run_to_the_end(home)
    assert len(factory.images) == 3, "v0.1 still runs"
    factory.containers = set()
    assert [line.partition("-")[0] for line in factory.run(home)] == ["removed firesteel/llm:0.1"]


def test_a_crash_anywhere_changes_nothing_of_the_outcome(tmp_path: Path) -> None:
    calm = SimulatedFactory()
    a_day(calm, Home(tmp_path / "calm"))
    expected = outcome(calm, Home(tmp_path / "calm"))
    assert calm.steps > 20
    for step in range(1, calm.steps + 1):
        factory, home = SimulatedFactory(), Home(tmp_path / str(step))
        factory.crash_at = step
        a_day(factory, home)
        stages, current, tags, untagged, catalog = outcome(factory, home)
        # A build that ended once docker had its image leaves one without a tag; `image prune` removes it.
        assert (stages, current, tags, catalog) == (*expected[:3], expected[4]), f"ended at step {step}"
        assert len(untagged) <= 1


def test_a_release_that_ends_the_factory_three_times_is_refused(tmp_path: Path) -> None:
    factory, home = SimulatedFactory(), Home(tmp_path)
    factory.upstream["v0.1"] = "better"
    for _ in range(3):
        factory.crash_at = factory.steps + (3 if not factory.steps else 1)
        with pytest.raises(Crash):
            factory.run(home)
    factory.crash_at = None
    assert factory.run(home) == ["refused v0.1: the factory ended 3 times in the middle of it"]
    assert try_again(home, "llm", "v0.1") and not try_again(home, "llm", "v0.1")
    factory.run(home)
    assert read_factory_state(home, "llm").release("v0.1").stage == "promoted"


def test_what_is_wrong_with_the_host_refuses_nothing(tmp_path: Path) -> None:
    class WithoutDocker(SimulatedFactory):
        def _do(self, action: FactoryAction, state: FactoryState) -> ActionResult:
            if isinstance(action, ReleaseAction):
                raise HostNotReady("docker does not answer", next="sudo systemctl start docker")
            return super()._do(action, state)

    factory, home = WithoutDocker(), Home(tmp_path)
    factory.upstream["v0.1"] = "better"
    for _ in range(5):
        with pytest.raises(HostNotReady):
            factory.run(home)
    found = read_factory_state(home, "llm").release("v0.1")
    assert (found.stage, found.attempts) == ("seen", 0)


def test_a_run_that_takes_longer_than_the_interval_ends(tmp_path: Path) -> None:
    class Slow(SimulatedFactory):
        def step(self, what: str) -> None:
            self.now_s += 2 * HOUR
            assert self.steps < 100, "it looks for ever"
            super().step(what)

    factory = Slow()
    factory.upstream["v0.1"] = "better"
    lines = factory.run(Home(tmp_path))
    assert [line.split()[0] for line in lines] == ["looked", "built", "promoted"]


def test_the_newest_goes_first_and_its_predecessor_where_it_is_refused(tmp_path: Path) -> None:
    factory, home = SimulatedFactory(), Home(tmp_path)
    factory.upstream = {"v0.9": "better", "v0.10": "broken", "v0.8": "better"}
    lines = factory.run(home)
    assert [line.split()[1 if "refused" in line else -1].rstrip(":") for line in lines[1:3]] == [
        "v0.10",
        "v0.9",
    ]
    assert read_factory_state(home, "llm").release("v0.8").stage == "seen", "older than the current one"


def test_candidates_are_safe_from_prune_and_dry_runs_change_nothing(tmp_path: Path) -> None:
    factory, home = SimulatedFactory(), Home(tmp_path)
    factory.upstream = {"v0.1": "better"}
    assert asyncio.run(next_action("llm", POLICY, factory, home, factory.now_s)) == "would build v0.1"
    assert not state_path(home, "llm").exists()
    factory.crash_at = factory.steps + 5  # before the promotion
    with pytest.raises(Crash):
        factory.run(home)
    assert all_candidates(home) == set(factory.images) and factory.images


def test_a_damaged_state_stops_it(tmp_path: Path) -> None:
    path = state_path(Home(tmp_path), "llm")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(FiresteelError, match="cannot be read"):
        SimulatedFactory().run(Home(tmp_path))


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["seen", "promoted", "refused"])), max_size=6))
def test_an_older_release_is_never_built(found: list[tuple[int, str]]) -> None:
    from firesteel.workshop.images.factory.policy import ReleaseProgress

    releases = tuple(
        ReleaseProgress(f"v{number}", str(number), "", stage=cast(Any, stage), ended_s=number)
        for number, stage in dict(found).items()
    )
    state = FactoryState(0.0, tuple(sorted(releases, key=lambda one: one.release.order, reverse=True)))
    action = decide(POLICY, state, ImageStock(), 1.0, "llm")
    if isinstance(action, ReleaseAction) and state.current:
        assert state.release(action.tag).release.order > state.current.release.order


# --- policies and upstreams ---


def test_policy_files(tmp_path: Path, firesteel: Firesteel) -> None:
    path = tmp_path / "factory.yaml"
    path.write_text(
        "images:\n  llm: {recipe: a, releases: {git: /x}, tags: 'v(.*)', every: 2h, answers: as_good}\n"
    )
    policy = read_policies(path)["llm"]
    assert (policy.every, policy.keep, policy.answers) == (7200, 2, "as_good")
    for wrong in (
        "images: {}",
        "images: {UPPER: {recipe: a, releases: {git: x}, tags: x}}",
        "images: {a: {recipe: a, releases: {git: x, registry: y}, tags: x}}",
        "images: {a: {recipe: a, releases: {git: --upload-pack=x}, tags: x}}",
        "images: {a: {recipe: a, releases: {git: x}, tags: '('}}",
        "images: {a: {recipe: a, releases: {git: x}, tags: x, every: soon}}",
    ):
        path.write_text(wrong)
        with pytest.raises(UsageError):
            read_policies(path)


def test_tags_from_outside_are_matched_whole_and_sorted_by_number() -> None:
    tags = dict.fromkeys(["v0.9.0", "v0.10.0", "v0.10.0rc1", "xv0.1", "v1;rm -rf /", "v2\nRUN x"], "c")
    assert [found.version for found in wanted_releases(POLICY, tags)] == ["0.10.0", "0.9.0"]
    loose = replace(POLICY, tags=r"(?s).*")
    assert not [found for found in wanted_releases(loose, tags) if set(found.tag) & set(" ;\n")]


def test_a_recipe_for_another_release() -> None:
    recipe, new = image_recipe("vllm-gb10"), "a" * 40
    release = UpstreamRelease("v0.30.0", "0.30.0", new)
    changed = with_release(recipe, ReleaseSource(git="https://github.com/vllm-project/vllm"), release)
    text = str(changed.stages)
    assert changed.version == "0.30.0" and changed.pins[0].commit == new
    assert new in text and "PRETEND_VERSION=0.30.0" in text
    assert str(recipe.pins[0].commit) not in text and "0.27.1" not in text
    document = yaml.safe_load(read_text("image_recipes/llamacpp-here.yaml"))
    document["stages"] = [{"name": "a", "base": "127.0.0.1:5000/llm:b1", "steps": []}]
    based = read_image_recipe("x.yaml", yaml.safe_dump(document))
    digest = f"sha256:{'b' * 64}"
    source = ReleaseSource(registry="127.0.0.1:5000/llm")
    moved = with_release(based, source, UpstreamRelease("b2", "2", digest))
    assert (moved.stages[0].base, moved.stages[0].digest, moved.version) == (
        "127.0.0.1:5000/llm:b2",
        digest,
        "2",
    )
    tags = {
        image_tag(
            "llm", with_release(based, source, UpstreamRelease("b2", "2", f"sha256:{letter * 64}")), DAY
        )
        for letter in "bc"
    }
    assert tags == {"firesteel/llm:2-20261116-bbbbbbb", "firesteel/llm:2-20261116-ccccccc"}
    with pytest.raises(UsageError):
        with_release(image_recipe("llamacpp-here"), source, UpstreamRelease("b2", "2", digest))
    with pytest.raises(UsageError):
        with_release(image_recipe("llamacpp-here"), POLICY.releases, release)


def test_a_release_replaces_the_commit_of_its_own_repository() -> None:
    recipe, new = image_recipe("vllm-gb10"), "a" * 40
    (vllm,) = (pin for pin in recipe.pins if pin.commit)
    other = replace(
        vllm, name="flashinfer", url="https://github.com/flashinfer-ai/flashinfer", commit="b" * 40
    )
    both = replace(recipe, pins=(other, *recipe.pins))
    release = UpstreamRelease("v0.30.0", "0.30.0", new)
    for url in ("https://github.com/vllm-project/vllm", "https://github.com/vllm-project/vllm.git/"):
        changed = with_release(both, ReleaseSource(git=url), release)
        commits = {pin.name: pin.commit for pin in changed.pins}
        assert commits["flashinfer"] == other.commit and commits[vllm.name] == new
        assert str(vllm.commit) not in str(changed.stages)
    mirror = ReleaseSource(git="/srv/mirrors/vllm")
    assert {pin.commit for pin in with_release(recipe, mirror, release).pins if pin.commit} == {new}
    with pytest.raises(UsageError, match="/srv/mirrors/vllm"):
        with_release(both, mirror, release)


def test_a_release_is_newer_than_its_candidate() -> None:
    policy = replace(POLICY, tags=r"v(.*)|b\d+")
    tags = ["v0.9.1rc1", "v0.9.1", "v0.10.0", "v0.9.1rc2", "v0.9.0.post1", "v0.9.1-rc.3"]
    found = [one.tag for one in wanted_releases(policy, dict.fromkeys(tags, "c"))]
    assert found == ["v0.10.0", "v0.9.1", "v0.9.1-rc.3", "v0.9.1rc2", "v0.9.1rc1", "v0.9.0.post1"]
    builds = [one.tag for one in wanted_releases(policy, dict.fromkeys(["b9", "b10"], "c"))]
    assert builds == ["b10", "b9"]


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@needs_programs("git")
def test_tags_of_a_git_remote(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--allow-empty", "--message", "1")
    git(tmp_path, "tag", "v1")
    git(tmp_path, "commit", "--allow-empty", "--message", "2")
    git(tmp_path, "tag", "--annotate", "--message", "x", "v2")
    assert git_tags(str(tmp_path)) == {
        tag: git(tmp_path, "rev-parse", f"{tag}^{{commit}}") for tag in ("v1", "v2")
    }
    with pytest.raises(FiresteelError, match="does not list the tags"):
        git_tags(str(tmp_path / "absent"))


# --- the verdict on a candidate ---


def compared(
    verdict: str, ratio: float = 1.0, answers: AnswerComparison | None = None, measure: Measure = "decode"
) -> Comparison:
    figure = MeasuredFigure(10.0, 9.0, 11.0, 5)
    difference = FigureDifference(ratio, ratio - 0.02, ratio + 0.02, 0.001, cast(Any, verdict), 5)
    point = Point("single")
    return Comparison(
        "a", "b", (ComparedFigure(point, measure, figure, figure, difference),), answers=answers
    )


def quality(verdict: str) -> QualityComparison:
    figure = MeasuredFigure(0.5, 0.4, 0.6, 9)
    score = QuestionScore(9, figure, figure, 3, 0, 0.01, cast(Any, verdict))
    return QualityComparison("a", "b", 9, figure, None, None, None, score, ())


SAME, CHANGED = AnswerComparison(6, 6), AnswerComparison(6, 4)


@pytest.mark.parametrize(
    ("comparison", "policy", "asked", "refused"),
    [
        (compared("no difference seen", 1.01, SAME), "equal", None, None),
        (compared("faster", 1.2, SAME), "equal", None, None),
        (compared("slower", 0.9, SAME), "equal", None, "slower by 10.0%"),
        (compared("too few", 1.0, SAME), "equal", None, "too few"),
        # As seen: decode 0.886 (0.843 to 0.931) among nine figures, so that chance was not ruled out.
        (compared("no difference seen", 0.89, SAME), "equal", None, "may be slower by 11.0%: too few"),
        (compared("no difference seen", 0.97, SAME), "equal", None, None),
        (compared("no difference seen", 1.1, SAME, "TTFT"), "equal", None, "may be slower by 10.0%"),
        (compared("no difference seen", 0.9, SAME, "TTFT"), "equal", None, None),
        (compared("no difference seen", 1.0, CHANGED), "equal", None, "2 of 6 answers changed"),
        (compared("no difference seen", 1.0, None), "equal", None, "not compared"),
        (compared("no difference seen", 1.0, CHANGED), "as_good", None, "not compared"),
        (compared("no difference seen", 1.0, CHANGED), "as_good", quality("cannot tell"), None),
        (
            compared("no difference seen", 1.0, CHANGED),
            "as_good",
            quality("first is better"),
            "3 of 9 questions",
        ),
        (
            replace(compared("faster", 1.2, SAME), why_not=(("thinking", "on and off"),)),
            "equal",
            None,
            "thinking",
        ),
    ],
)
def test_the_verdict(
    comparison: Comparison, policy: str, asked: QualityComparison | None, refused: str | None
) -> None:
    verdict = judge_trial(comparison, cast(Any, policy), asked)
    assert verdict.accepted == (refused is None) and verdict.figures
    assert refused is None or refused in verdict.reasons[0]
    assert refused is not None or verdict.reasons
    has_interval = comparison.rows[0].difference.verdict != "too few"
    assert ("ratio" in verdict.figures[0]) == has_interval, "an interval only where there is one"
