"""All settings that `tune` may try: one choice for each knob of a launch. Pure.

space = make_search_space(proposal, goal, users, context)
space.start                      the current setting, a tuple with one number per knob
space.proposal(setting)          a whole proposal: planned, and checked against the rules
space.refusal(setting)           why it is never tried, or None

The search sees only these numbers; what a choice means for the launch stands here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from msgspec import Struct

from firesteel.bench.compare.against import PLANNER_TEXTS
from firesteel.bench.tune.knobs import Goal, Knob, knobs_of
from firesteel.bench.tune.proposals import PlanningContext, propose
from firesteel.errors import FiresteelError, UsageError
from firesteel.launch import FlagValue, Text
from firesteel.planner.propose import Proposal

Setting = tuple[int, ...]
"""The index of a choice for each knob."""


class SearchSpace(Struct):
    base: Proposal
    knobs: tuple[Knob, ...]
    start: Setting
    context: PlanningContext
    _proposals: dict[Setting, Proposal | str] = {}

    @property
    def size(self) -> int:
        """Settings of the whole grid that differ in speed."""
        return prod(len(knob.choices) for knob in self.knobs if knob.moves == "speed")

    def only(self, names: Sequence[str]) -> SearchSpace:
        """The space with these knobs alone; without names, all of them."""
        known = [knob.name for knob in self.knobs]
        unknown = next((name for name in names if name not in known), None)
        if unknown is not None:
            raise UsageError(f"there is no knob `{unknown[:40]}`", next=f"--only with {', '.join(known)}")
        chosen = [index for index, name in enumerate(known) if not names or name in names]
        knobs = tuple(self.knobs[index] for index in chosen)
        return SearchSpace(self.base, knobs, tuple(self.start[index] for index in chosen), self.context)

    def proposal(self, setting: Setting) -> Proposal:
        """Raises a FiresteelError if it must not be tried."""
        proposal = self._propose(setting)
        if isinstance(proposal, str):
            raise FiresteelError(proposal, next="another setting")
        return proposal

    def refusal(self, setting: Setting) -> str | None:
        proposal = self._propose(setting)
        return proposal if isinstance(proposal, str) else None

    def _propose(self, setting: Setting) -> Proposal | str:
        if setting not in self._proposals:
            changed: dict[str, FlagValue | None] = {}
            for knob, choice, current in zip(self.knobs, setting, self.start, strict=True):
                if choice != current:
                    changed |= knob.choices[choice].flags
            self._proposals[setting] = propose(self.base, changed, self.context)
        return self._proposals[setting]

    def changes(self, setting: Setting) -> dict[str, str]:
        """By knob, the labels that differ from the current setting."""
        rows = zip(self.knobs, setting, self.start, strict=True)
        return {knob.name: knob.labels[choice] for knob, choice, current in rows if choice != current}

    def labels(self, setting: Setting) -> dict[str, str]:
        rows = zip(self.knobs, setting, strict=True)
        return {knob.name: knob.labels[choice] for knob, choice in rows}

    def setting(self, labels: Mapping[str, str]) -> Setting:
        """The inverse of `labels`; a label that no longer exists means the current setting."""
        rows = zip(self.knobs, self.start, strict=True)
        return tuple(
            knob.labels.index(labels[knob.name]) if labels.get(knob.name) in knob.labels else current
            for knob, current in rows
        )

    def knob_index(self, name: str) -> int | None:
        return next((index for index, knob in enumerate(self.knobs) if knob.name == name), None)

    def with_choice(self, setting: Setting, knob: int, choice: int) -> Setting:
        return (*setting[:knob], choice, *setting[knob + 1 :])

    def refused(self) -> tuple[tuple[dict[str, str], str], ...]:
        """Single changes that are never tried, each with its reason."""
        settings = [
            self.with_choice(self.start, index, choice)
            for index, knob in enumerate(self.knobs)
            for choice in range(len(knob.choices))
            if choice != self.start[index]
        ]
        return tuple((self.changes(each), why) for each in settings if (why := self.refusal(each)))

    def expected_speed(self, setting: Setting, goal: Goal, texts: Sequence[Text], users: int) -> float | None:
        """What the plan expects, so that the search begins with the most promising; None: unknown."""
        proposal = self._propose(setting)
        speed = None if isinstance(proposal, str) else proposal.plan.speed
        if speed is None:
            return None
        if goal == "throughput" and users > 1 and speed.batch:
            return speed.batch.total_tokens_per_s.expected
        drafted: dict[str, float] = {row.text: row.decode_tokens_per_s.expected for row in speed.drafted}
        plain = speed.decode_tokens_per_s.expected
        rates = [drafted.get(PLANNER_TEXTS[text], drafted.get("any", plain)) for text in texts]
        return sum(rates) / len(rates) if rates else plain


def make_search_space(base: Proposal, goal: Goal, users: int, context: PlanningContext) -> SearchSpace:
    """`users`: how many users at once it has to serve well."""
    knobs = knobs_of(base, goal, users, context.recipes)
    start = tuple(knob.current_choice(base.plan.launch) for knob in knobs)
    return SearchSpace(base, knobs, start, context)
