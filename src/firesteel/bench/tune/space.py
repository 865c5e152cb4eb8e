"""What `tune` may change: the few settings that matter, and which of them this launch can have at all. Pure.

    space = make_space(proposal, goal, users, surroundings)
    space.start                      the setting as it is, a tuple with one number a knob
    space.proposal(setting)          a whole proposal: planned, and held against the rules
    space.barred(setting)            why it is never tried, or None

A knob is a name with choices, and a choice is what it does to the flags of the launch. Which values there are
is data (`data/bench/space.yaml`); speculation and the number of sequences come from the launch itself. A flag
or a value that the engine's release does not take is never a choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Literal

from firesteel import engines
from firesteel.bench.values import Text
from firesteel.catalog import Images, Recipe
from firesteel.edge.embedded import server
from firesteel.engines.schema.releases import nearest_schemas, newest_schema
from firesteel.engines.schema.symbols import Schema
from firesteel.errors import FiresteelError
from firesteel.facts import Role
from firesteel.facts.evidence import Evidence
from firesteel.launch import FlagValue, Launch
from firesteel.planner import MeasuredMemory, launch_key, plan
from firesteel.rules import Proposal, check, insist
from firesteel.yaml_schema import FileSchema, load

Goal = Literal["latency", "throughput"]
Moves = Literal["speed", "start"]
Setting = tuple[int, ...]
"""One number a knob: which of its choices."""

SPECULATION = "speculation"
AS_IT_IS = "left to the engine"
OFF = "off"
_DEPTHS: Mapping[str, tuple[int, ...]] = {"mtp": (1, 2, 3), "dflash": (3, 5, 7, 11, 15)}
"""Tokens to draft. A layer of the model's own drafts one after the other, and five have crashed a Spark
(https://github.com/eugr/spark-vllm-docker/issues/308, seen 2026-11-15); a block drafter drafts all in one."""
_OTHER_DEPTHS = (2, 3, 5)
_PLANNED = ("kv-cache-memory-bytes", "gpu-memory-utilization")
"""Flags that the planner sets from its own figures, anew for every setting."""
_DRAFTS_LLAMACPP = ("spec-type", "spec-draft-model", "spec-draft-hf", "model-draft", "hf-repo-draft")
_DRAFT_DEPTH_LLAMACPP = ("spec-draft-n-max", "draft-max")
_DRAFTED_AS: Mapping[Text, str] = {
    "prose": "prose", "code": "code", "json": "structured", "math": "reasoning",
}  # fmt: skip
"""A kind of text, in the planner's words."""


class KnobSchema(FileSchema):
    knob: str
    flags: list[str]
    values: list[str]
    ladder: bool = False
    empty: bool = False
    default: str | None = None
    moves: Moves = "speed"
    where: Literal["embedded"] | None = None
    why: str
    source: Evidence


@dataclass(frozen=True, slots=True)
class KnobChoice:
    label: str
    flags: Mapping[str, FlagValue | None] = field(default_factory=dict)
    """What it sets; None: left out."""


@dataclass(frozen=True, slots=True)
class Knob:
    name: str
    choices: tuple[KnobChoice, ...]
    is_ladder: bool = False
    """In order: a choice behaves like its neighbours."""
    moves: Moves = "speed"
    why: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(choice.label for choice in self.choices)


@dataclass(frozen=True, slots=True)
class PlanningContext:
    """What a plan needs beside the launch. Not what benches found here: they know a few settings only, and
    a measured figure held against estimated ones would decide the ranking."""

    images: Images
    realised: Mapping[str, MeasuredMemory] = field(default_factory=dict)
    recipes: tuple[Recipe, ...] = ()
    """All that are known; another one of the same model may say how it drafts."""


@dataclass(slots=True)
class SearchSpace:
    base: Proposal
    knobs: tuple[Knob, ...]
    start: Setting
    around: PlanningContext
    _made: dict[Setting, Proposal | str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Settings of the whole grid, as far as speed goes."""
        found = 1
        for knob in self.knobs:
            found *= len(knob.choices) if knob.moves == "speed" else 1
        return found

    def proposal(self, setting: Setting) -> Proposal:
        """FiresteelError where it must not be tried."""
        made = self._make(setting)
        if isinstance(made, str):
            raise FiresteelError(made, next="another setting")
        return made

    def barred(self, setting: Setting) -> str | None:
        made = self._make(setting)
        return made if isinstance(made, str) else None

    def _make(self, setting: Setting) -> Proposal | str:
        if setting not in self._made:
            self._made[setting] = _tried(self.base, self._flags(setting), self.around)
        return self._made[setting]

    def _flags(self, setting: Setting) -> dict[str, FlagValue | None]:
        found: dict[str, FlagValue | None] = {}
        for knob, at, was in zip(self.knobs, setting, self.start, strict=True):
            if at != was:
                found |= knob.choices[at].flags
        return found

    def changes(self, setting: Setting) -> dict[str, str]:
        """By knob, what differs from the setting as it is."""
        rows = zip(self.knobs, setting, self.start, strict=True)
        return {knob.name: knob.choices[at].label for knob, at, was in rows if at != was}

    def labels(self, setting: Setting) -> dict[str, str]:
        return {knob.name: knob.choices[at].label for knob, at in zip(self.knobs, setting, strict=True)}

    def setting(self, labels: Mapping[str, str]) -> Setting:
        """The inverse of `labels`; a label that is no more is the setting as it is."""
        rows = zip(self.knobs, self.start, strict=True)
        return tuple(
            knob.labels.index(labels[knob.name]) if labels.get(knob.name) in knob.labels else was
            for knob, was in rows
        )

    def at(self, name: str) -> int | None:
        """Which knob has that name."""
        return next((at for at, knob in enumerate(self.knobs) if knob.name == name), None)

    def moved(self, setting: Setting, knob: int, to: int) -> Setting:
        return (*setting[:knob], to, *setting[knob + 1 :])

    def refused(self) -> tuple[tuple[dict[str, str], str], ...]:
        """Single changes that are never tried, each with its reason."""
        moves = [
            self.moved(self.start, at, to)
            for at, knob in enumerate(self.knobs)
            for to in range(len(knob.choices))
            if to != self.start[at]
        ]
        return tuple((self.changes(each), why) for each in moves if (why := self.barred(each)))

    def worth(self, setting: Setting, goal: Goal, texts: Sequence[Text], users: int) -> float | None:
        """What the plan expects, to begin with the likeliest; None where it does not know."""
        made = self._make(setting)
        speed = None if isinstance(made, str) else made.plan.speed
        if speed is None:
            return None
        if goal == "throughput" and users > 1 and speed.batch:
            return speed.batch.total_tokens_per_s.expected
        drafted = {each.text: each.decode_tokens_per_s.expected for each in speed.drafted}
        plain = speed.decode_tokens_per_s.expected
        rates = [drafted.get(_DRAFTED_AS[text], plain) for text in texts]  # type: ignore[call-overload]  # a kind of text is a key, by its Literal
        return float(sum(rates) / len(rates)) if rates else plain


def make_search_space(base: Proposal, goal: Goal, users: int, around_: PlanningContext) -> SearchSpace:
    """`users`: how many at once it is to be good for."""
    launch = base.plan.launch
    found = [_speculation(base, around_.recipes), _sequences(launch, goal, users)]
    found += [_of_sheet(sheet, base) for sheet in _sheets().get(launch.engine, [])]
    knobs = tuple(knob for knob in found if knob is not None and len(knob.choices) > 1)
    start = tuple(_own(knob, launch) for knob in knobs)
    return SearchSpace(base, knobs, start, around_)


@cache
def _sheets() -> Mapping[str, list[KnobSchema]]:
    name = "data/bench/space.yaml"
    text = (files("firesteel") / "data" / "bench" / "space.yaml").read_text("utf-8")
    return load(name, text, dict[str, list[KnobSchema]])


# --- knobs ---


def _own(knob: Knob, launch: Launch) -> int:
    """The choice that the launch has already: it is always one of them."""
    for at, choice in enumerate(knob.choices):
        if all(launch.flags.get(flag) == value for flag, value in choice.flags.items()):
            return at
    raise AssertionError(f"{knob.name} leaves out what the launch has")


def _of_sheet(sheet: KnobSchema, base: Proposal) -> Knob | None:
    launch = base.plan.launch
    if sheet.where == "embedded" and not base.is_embedded:
        return None
    if not all(_takes(base, flag) for flag in sheet.flags):
        return None
    values = [value for value in _spelled(sheet, base) if _takes(base, sheet.flags[0], value)]
    own = {launch.flags.get(flag) for flag in sheet.flags if isinstance(launch.flags.get(flag), str)}
    if len(own) > 1:  # set apart from each other on purpose
        return None
    said = next(iter(own), None)
    if isinstance(said, str):
        values = [said, *(each for each in values if not _is_same(each, said))]
    else:  # saying what holds anyway is no other setting
        values = [each for each in values if each != (sheet.default or _default(base, sheet.flags[0]))]
    choices = [KnobChoice(value, dict.fromkeys(sheet.flags, value)) for value in values]
    choices = sorted(choices, key=lambda each: int(each.label)) if sheet.ladder else choices
    if sheet.empty or said is None:
        choices = _with_none(choices, KnobChoice(AS_IT_IS, dict.fromkeys(sheet.flags)), sheet.default)
    return Knob(sheet.knob, tuple(choices), sheet.ladder, sheet.moves, sheet.why)


def _with_none(choices: list[KnobChoice], none: KnobChoice, default: str | None) -> list[KnobChoice]:
    """Where in the order it belongs: by what it comes to."""
    if default is None or not default.isdigit():
        return [none, *choices]
    at = sum(int(each.label) < int(default) for each in choices)
    return [*choices[:at], none, *choices[at:]]


def _is_same(one: str, other: str) -> bool:
    """`flashinfer` and `FLASHINFER` are one backend."""
    return one.lower().replace("-", "_") == other.lower().replace("-", "_")


def _spelled(sheet: KnobSchema, base: Proposal) -> list[str]:
    """`half` and `all` of the cores; the rest as it stands."""
    cores = base.plan.host.cores or 1
    amounts = {"half": str(max(1, cores // 2)), "all": str(cores)} if sheet.where == "embedded" else {}
    return list(dict.fromkeys(amounts.get(value, value) for value in sheet.values))


def _takes(base: Proposal, flag: str, value: str | None = None) -> bool:
    """Whether the release at hand is sure to take it; the embedded engine takes what our program maps."""
    if base.is_embedded:
        return flag in server.TAKES_VALUE
    known = _releases(base)
    if not known or any(flag not in each.flags for each in known):
        return False
    return value is None or all(each.flags[flag].value.accepts(value) for each in known)


def _releases(base: Proposal) -> tuple[Schema, ...]:
    """The release, or its neighbours; an image that moves is judged as the newest, as the rules do."""
    launch = base.plan.launch
    return (
        nearest_schemas(launch.engine, launch.version) if launch.version else (newest_schema(launch.engine),)
    )


def _default(base: Proposal, flag: str) -> str | None:
    found = {str(each.flags[flag].value.default) for each in _releases(base) if flag in each.flags}
    return found.pop() if len(found) == 1 else None


def _speculation(base: Proposal, recipes: Iterable[Recipe]) -> Knob | None:
    """Only ways to draft that the launch has, or another recipe of the same weights without a file more."""
    launch = base.plan.launch
    match launch.engine:
        case "vllm":
            return _speculation_vllm(base, recipes)
        case "llamacpp":
            return _speculation_llamacpp(base)
        case "sglang":
            return _speculation_sglang(launch)


def _speculation_vllm(base: Proposal, recipes: Iterable[Recipe]) -> Knob | None:
    launch = base.plan.launch
    own = engines.expand_shortcuts(launch).get("speculative-config")
    config = own if isinstance(own, dict) else _elsewhere(base, recipes)
    if config is None or not _takes(base, "speculative-config"):
        return None
    method = str(config.get("method", "draft model"))
    said = config.get("num_speculative_tokens")
    depths = {*_depths(method), *({said} if isinstance(said, int) and config is own else ())}
    choices = [KnobChoice(OFF, {"speculative-config": None})]
    for depth in sorted(depths):
        value = {**config, "num_speculative_tokens": depth}
        choices.append(KnobChoice(f"{method} {depth}", {"speculative-config": value}))
    return Knob(SPECULATION, tuple(choices), True, why="tokens guessed ahead; its gain hangs on the text")


def _depths(method: str) -> tuple[int, ...]:
    return next((depths for name, depths in _DEPTHS.items() if name in method), _OTHER_DEPTHS)


def _elsewhere(base: Proposal, recipes: Iterable[Recipe]) -> dict[str, object] | None:
    """How another recipe of the same checkpoint drafts with what is in it."""
    if not base.plan.weights.bytes_by_role.get(Role.DRAFTER) or base.recipe is None:
        return None
    for other in recipes:
        setting = other.flags.get("speculative-config")
        value = setting.value if setting else None
        is_same = (other.model, other.image) == (base.recipe.model, base.recipe.image)
        if is_same and isinstance(value, dict) and "model" not in value and not other.assets:
            return value
    return None


def _speculation_llamacpp(base: Proposal) -> Knob | None:
    """Off, and the depths of the drafter that it has."""
    flags = base.plan.launch.flags
    drafter = {flag: flags[flag] for flag in _DRAFTS_LLAMACPP if flag in flags}
    depth_flag = next((flag for flag in _DRAFT_DEPTH_LLAMACPP if _takes(base, flag)), None)
    if not drafter or depth_flag is None:
        return None
    said = flags.get(depth_flag)
    off: dict[str, FlagValue | None] = dict.fromkeys((*drafter, depth_flag))
    choices = [KnobChoice(OFF, off)]
    if said is None:
        choices.append(KnobChoice("as the engine picks", {**drafter, depth_flag: None}))
    depths = sorted({3, 8, 16, *([int(said)] if isinstance(said, str) and said.isdigit() else [])})
    choices += [KnobChoice(f"draft {depth}", {**drafter, depth_flag: str(depth)}) for depth in depths]
    return Knob(SPECULATION, tuple(choices), said is not None, why="tokens guessed ahead")


def _speculation_sglang(launch: Launch) -> Knob | None:
    """Off, or as it is: its three numbers hang together."""
    names = [name for name in launch.flags if name.startswith("speculative-")]
    if "speculative-algorithm" not in names:
        return None
    own = {name: launch.flags[name] for name in names}
    choices = (KnobChoice(OFF, dict.fromkeys(names)), KnobChoice(str(own["speculative-algorithm"]), own))
    return Knob(SPECULATION, choices, True, why="tokens guessed ahead")


def _sequences(launch: Launch, goal: Goal, users: int) -> Knob | None:
    """How many at once; never fewer than are to be served, but for throughput, where waiting may pay."""
    offered = engines.served_capacity(launch)
    if offered.context is None or offered.users is None:
        return None
    least = users // 2 if goal == "throughput" and users >= 4 else users
    many = sorted({offered.users, *(each for each in (least, users, 2 * users) if each >= 1)})
    sized = {each: engines.size_flags(launch.engine, offered.context, each) for each in many}
    name = _counting_flag(launch, offered.context)
    return Knob(
        name, tuple(KnobChoice(str(each), dict(sized[each])) for each in many), True,
        why="sequences that decode together; more wait less, and each gets less",
    )  # fmt: skip


def _counting_flag(launch: Launch, context: int) -> str:
    """The flag whose value is the number itself."""
    flags = engines.size_flags(launch.engine, context, 7)
    return next((name for name, value in flags.items() if value == "7"), "users")


# --- a setting, whole ---


def _tried(base: Proposal, changed: Mapping[str, FlagValue | None], known: PlanningContext) -> Proposal | str:
    """The proposal with these flags, or why there is none."""
    try:
        found = _planned(base, changed, known)
        insist(found)
    except FiresteelError as error:
        return error.what
    return found


def _planned(base: Proposal, changed: Mapping[str, FlagValue | None], known: PlanningContext) -> Proposal:
    was, launch = base.plan, _with(base, changed)
    key = launch_key(launch)
    planned = plan(launch, was.shape, was.weights, was.host, known.realised.get(key))
    findings = check(planned.launch, hardware=was.host.hardware, images=known.images)
    return replace(base, plan=planned, findings=findings)


def _with(base: Proposal, changed: Mapping[str, FlagValue | None]) -> Launch:
    launch = base.plan.launch
    told = base.recipe.flags if base.recipe else {}
    flags = {
        name: value
        for name, value in launch.flags.items()
        if name not in changed and (name not in _PLANNED or name in told)
    }
    flags |= {name: value for name, value in changed.items() if value is not None}
    return replace(launch, flags=flags)
