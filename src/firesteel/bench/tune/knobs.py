"""The settings that `tune` may change for a launch: knobs with their choices. Pure.

A knob is a name with choices, and a choice is what it does to the flags of the launch. The values are data
(`data/bench/space.yaml`); speculation and the number of sequences follow from the launch itself. A flag or
value that the engine's release does not accept is never a choice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Literal

from firesteel import shipped_data
from firesteel.catalog.recipe import Recipe
from firesteel.edge.programs import embedded_server
from firesteel.engines.engine import expand_shortcuts, served_capacity, size_flags
from firesteel.engines.metrics import is_same_kernel
from firesteel.engines.schema.releases import nearest_schemas, newest_schema
from firesteel.engines.schema.symbols import Schema
from firesteel.facts.evidence import Evidence
from firesteel.facts.model.tensors import Role
from firesteel.launch import FlagValue, Launch
from firesteel.planner.propose import Proposal
from firesteel.values import FileValue, Regex, Value

Goal = Literal["latency", "throughput"]
Moves = Literal["speed", "start"]

SPECULATION = "speculation"
AS_IT_IS = "left to the engine"
OFF = "off"
_DEPTHS: Mapping[str, tuple[int, ...]] = {"mtp": (1, 2, 3), "dflash": (3, 5, 7, 11, 15)}
"""Tokens to draft. MTP layers draft one token after the other, and five have crashed a Spark
(https://github.com/eugr/spark-vllm-docker/issues/308, seen 2026-11-15); a block drafter drafts all at
once."""
_OTHER_DEPTHS = (2, 3, 5)
_LLAMACPP_DEPTHS = (3, 8, 16)
_LLAMACPP_DRAFTERS = ("spec-type", "spec-draft-model", "spec-draft-hf", "model-draft", "hf-repo-draft")
_LLAMACPP_DEPTH_FLAGS = ("spec-draft-n-max", "draft-max")


class KnobSchema(FileValue, kw_only=True):
    knob: str
    flags: list[str]
    values: list[str]
    ladder: bool = False
    empty: bool = False
    default: str | None = None
    seen: Regex | None = None
    moves: Moves = "speed"
    where: Literal["embedded"] | None = None
    why: str
    source: Evidence


class KnobChoice(Value):
    label: str
    flags: Mapping[str, FlagValue | None] = {}
    """The flags that it sets; None: left out."""


class Knob(Value):
    name: str
    choices: tuple[KnobChoice, ...]
    is_ladder: bool = False
    """The choices are ordered: each behaves like its neighbours."""
    moves: Moves = "speed"
    why: str = ""
    seen: str = ""
    """Finds in the engine's log what it took where the knob was left to it."""

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(choice.label for choice in self.choices)

    def current_choice(self, launch: Launch) -> int:
        """The choice that the launch already has; every knob has one."""
        for index, choice in enumerate(self.choices):
            if all(launch.flags.get(flag) == value for flag, value in choice.flags.items()):
                return index
        raise AssertionError(f"{self.name} lacks the choice of the launch")

    def settled(self, log: str) -> str | None:
        """The choice that `left to the engine` came to; None: the log does not say, or it is none of them."""
        found = set(re.findall(self.seen, log)) if self.seen else set()
        if len(found) != 1:
            return None
        (logged,) = found
        named = (label for label in self.labels if label != AS_IT_IS)
        return next((label for label in named if _is_settled(label, logged)), None)


def _is_settled(label: str, logged: str) -> bool:
    return label == logged if logged.isdigit() else is_same_kernel(label, logged)


def knobs_of(base: Proposal, goal: Goal, users: int, recipes: Iterable[Recipe]) -> tuple[Knob, ...]:
    """All knobs of this launch with more than one choice."""
    launch = base.plan.launch
    knobs = [_speculation(base, recipes), _sequences(launch, goal, users)]
    knobs += [_from_schema(schema, base) for schema in _schemas().get(launch.engine, [])]
    return tuple(knob for knob in knobs if knob is not None and len(knob.choices) > 1)


@cache
def _schemas() -> Mapping[str, list[KnobSchema]]:
    return shipped_data.load("bench/space.yaml", dict[str, list[KnobSchema]])


# --- knobs of the data file ---


def _from_schema(schema: KnobSchema, base: Proposal) -> Knob | None:
    launch = base.plan.launch
    if schema.where == "embedded" and not base.is_embedded:
        return None
    if not all(_accepts(base, flag) for flag in schema.flags):
        return None
    values = [value for value in _resolved(schema, base) if _accepts(base, schema.flags[0], value)]
    own = {value for flag in schema.flags if isinstance(value := launch.flags.get(flag), str)}
    if len(own) > 1:  # these flags differ on purpose
        return None
    current = next(iter(own), None)
    if current is not None:
        values = [current, *(value for value in values if not _is_same(value, current))]
    else:  # setting the default explicitly is not another setting
        default = schema.default or _default(base, schema.flags[0])
        values = [value for value in values if value != default]
    if schema.ladder:
        values.sort(key=int)
    choices = [KnobChoice(value, dict.fromkeys(schema.flags, value)) for value in values]
    if schema.empty or current is None:
        index = 0
        if schema.default is not None and schema.default.isdigit():  # at its place in the order
            index = sum(int(value) < int(schema.default) for value in values)
        choices.insert(index, KnobChoice(AS_IT_IS, dict.fromkeys(schema.flags)))
    return Knob(schema.knob, tuple(choices), schema.ladder, schema.moves, schema.why, schema.seen or "")


def _is_same(one: str, other: str) -> bool:
    """`flashinfer` and `FLASHINFER` are one backend."""
    return one.lower().replace("-", "_") == other.lower().replace("-", "_")


def _resolved(schema: KnobSchema, base: Proposal) -> list[str]:
    """With numbers for `half` and `all` of the cores."""
    cores = base.plan.host.cores or 1
    amounts = {"half": str(max(1, cores // 2)), "all": str(cores)} if schema.where == "embedded" else {}
    return list(dict.fromkeys(amounts.get(value, value) for value in schema.values))


def _accepts(base: Proposal, flag: str, value: str | None = None) -> bool:
    """Whether the release certainly accepts it; the embedded engine accepts what our program maps."""
    if base.is_embedded:
        return flag in embedded_server.TAKES_VALUE
    schemas = _releases(base)
    if not schemas or any(flag not in schema.flags for schema in schemas):
        return False
    return value is None or all(schema.flags[flag].value.accepts(value) for schema in schemas)


def _releases(base: Proposal) -> tuple[Schema, ...]:
    """The release, or its neighbours; an image without a fixed version counts as the newest, as in the
    rules."""
    launch = base.plan.launch
    return (
        nearest_schemas(launch.engine, launch.version) if launch.version else (newest_schema(launch.engine),)
    )


def _default(base: Proposal, flag: str) -> str | None:
    defaults = {str(schema.flags[flag].value.default) for schema in _releases(base) if flag in schema.flags}
    return defaults.pop() if len(defaults) == 1 else None


# --- speculation ---


def _speculation(base: Proposal, recipes: Iterable[Recipe]) -> Knob | None:
    """Only drafters that the launch has, or that another recipe of the same weights uses without more
    files."""
    match base.plan.launch.engine:
        case "vllm":
            return _speculation_vllm(base, recipes)
        case "llamacpp":
            return _speculation_llamacpp(base)
        case "sglang":
            return _speculation_sglang(base.plan.launch)


def _speculation_vllm(base: Proposal, recipes: Iterable[Recipe]) -> Knob | None:
    own = expand_shortcuts(base.plan.launch).get("speculative-config")
    config = own if isinstance(own, dict) else _config_of_another_recipe(base, recipes)
    if config is None or not _accepts(base, "speculative-config"):
        return None
    method = str(config.get("method", "draft model"))
    depths = set(next((depths for name, depths in _DEPTHS.items() if name in method), _OTHER_DEPTHS))
    current = config.get("num_speculative_tokens")
    if isinstance(current, int) and config is own:
        depths.add(current)
    choices = [KnobChoice(OFF, {"speculative-config": None})]
    for depth in sorted(depths):
        value = {**config, "num_speculative_tokens": depth}
        choices.append(KnobChoice(f"{method} {depth}", {"speculative-config": value}))
    return Knob(SPECULATION, tuple(choices), True, why="tokens drafted ahead; the gain depends on the text")


def _config_of_another_recipe(base: Proposal, recipes: Iterable[Recipe]) -> dict[str, object] | None:
    """How another recipe of the same checkpoint drafts with the drafter inside it."""
    if not base.plan.weights.bytes_by_role.get(Role.DRAFTER) or base.recipe is None:
        return None
    for other in recipes:
        flag = other.flags.get("speculative-config")
        value = flag.value if flag else None
        is_same = (other.model, other.image) == (base.recipe.model, base.recipe.image)
        if is_same and isinstance(value, dict) and "model" not in value and not other.assets:
            return value
    return None


def _speculation_llamacpp(base: Proposal) -> Knob | None:
    """Off, and depths of the drafter that the launch has."""
    flags = base.plan.launch.flags
    drafter = {flag: flags[flag] for flag in _LLAMACPP_DRAFTERS if flag in flags}
    depth_flag = next((flag for flag in _LLAMACPP_DEPTH_FLAGS if _accepts(base, flag)), None)
    if not drafter or depth_flag is None:
        return None
    current = flags.get(depth_flag)
    choices = [KnobChoice(OFF, dict.fromkeys((*drafter, depth_flag)))]
    if current is None:
        choices.append(KnobChoice("as the engine picks", {**drafter, depth_flag: None}))
    own = [int(current)] if isinstance(current, str) and current.isdigit() else []
    for depth in sorted({*_LLAMACPP_DEPTHS, *own}):
        choices.append(KnobChoice(f"draft {depth}", {**drafter, depth_flag: str(depth)}))
    return Knob(SPECULATION, tuple(choices), current is not None, why="tokens drafted ahead")


def _speculation_sglang(launch: Launch) -> Knob | None:
    """Off, or as it is: its three numbers depend on each other."""
    own = {name: value for name, value in launch.flags.items() if name.startswith("speculative-")}
    if "speculative-algorithm" not in own:
        return None
    choices = (KnobChoice(OFF, dict.fromkeys(own)), KnobChoice(str(own["speculative-algorithm"]), own))
    return Knob(SPECULATION, choices, True, why="tokens drafted ahead")


# --- number of sequences ---


def _sequences(launch: Launch, goal: Goal, users: int) -> Knob | None:
    """How many sequences at once; never fewer than users, except for throughput, where queueing may pay."""
    served = served_capacity(launch)
    if served.context is None or served.users is None:
        return None
    least = users // 2 if goal == "throughput" and users >= 4 else users
    counts = sorted({served.users, *(count for count in (least, users, 2 * users) if count >= 1)})
    choices = tuple(
        KnobChoice(str(count), dict(size_flags(launch.engine, served.context, count))) for count in counts
    )
    # The knob is named after the flag whose value is the number itself.
    probe = size_flags(launch.engine, served.context, 7)
    name = next((flag for flag, value in probe.items() if value == "7"), "users")
    why = "sequences that decode together; with more of them, users wait less and each is slower"
    return Knob(name, choices, True, why=why)
