from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from firesteel.gateway.endpoints import SLACK, Replicas


def test_strangers_spread_evenly() -> None:
    replicas = Replicas(4)
    picked = Counter(replicas.pick(prefix, [0] * 4, [True] * 4) for prefix in range(1, 401))
    assert picked == {0: 100, 1: 100, 2: 100, 3: 100}


def test_the_least_busy_is_taken() -> None:
    assert Replicas(3).pick(0, [2, 1, 3], [True] * 3) == 1
    assert Replicas(3).pick(7, [2, 1, 3], [True] * 3) == 1


def test_a_conversation_stays_where_it_was_read() -> None:
    replicas = Replicas(3)
    home = replicas.pick(7, [1, 0, 1], [True] * 3)
    assert home == 1
    assert replicas.pick(7, [0, SLACK, 0], [True] * 3) == home


def test_but_does_not_queue_there() -> None:
    replicas = Replicas(3)
    replicas.pick(7, [1, 0, 1], [True] * 3)
    assert replicas.pick(7, [0, SLACK + 1, 1], [True] * 3) == 0
    assert replicas.pick(7, [1, 0, 0], [True] * 3) == 1  # two know it now: the less busy of them


def test_one_beginning_for_all_makes_no_hot_spot() -> None:
    replicas, busy = Replicas(4), [0] * 4
    for _ in range(400):
        index = replicas.pick(7, busy, [True] * 4)
        assert index is not None
        busy[index] += 1
        assert max(busy) - min(busy) <= SLACK + 1
    assert sum(busy) == 400


def test_a_dead_one_is_not_chosen() -> None:
    replicas = Replicas(2)
    assert replicas.pick(7, [0, 1], [True, True]) == 0
    assert replicas.pick(7, [0, 9], [False, True]) == 1
    assert replicas.pick(7, [0, 0], [False, False]) is None


def test_memory_is_bounded() -> None:
    replicas = Replicas(2, max_prefixes=100)
    for prefix in range(1, 10_001):
        replicas.pick(prefix, [0, 0], [True, True])
    assert len(replicas._by_prefix) == 100
    assert sum(replicas._prefix_counts) == 100
    assert min(replicas._prefix_counts) >= 49


LOADS = st.integers(1, 5).flatmap(
    lambda count: st.lists(
        st.tuples(
            st.integers(0, 9),
            st.lists(st.integers(0, 9), min_size=count, max_size=count),
            st.lists(st.booleans(), min_size=count, max_size=count),
        ),
        min_size=1,
        max_size=30,
    )
)


@given(LOADS)
def test_whoever_is_chosen_is_up_and_near_the_least(
    asked: list[tuple[int, list[int], list[bool]]],
) -> None:
    replicas = Replicas(len(asked[0][1]), max_prefixes=4)
    for prefix, busy, is_up in asked:
        index = replicas.pick(prefix, busy, is_up)
        assert (index is None) == (not any(is_up))
        if index is None:
            continue
        assert is_up[index]
        assert busy[index] <= min(load for load, up in zip(busy, is_up, strict=True) if up) + SLACK
        known = Counter(one for knowing in replicas._by_prefix.values() for one in knowing)
        assert replicas._prefix_counts == [known[one] for one in range(len(busy))]


# -- what it is good for: agents at work, and engines that keep some of what they read --


@dataclass
class Engine:
    """Keeps the last conversations it read, up to a number of tokens."""

    cache_tokens: int
    cached: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def read(self, session: int, tokens: int) -> int:
        """How many of the tokens it need not compute."""
        had = min(self.cached.pop(session, 0), tokens)
        self.cached[session] = tokens
        while sum(self.cached.values()) > self.cache_tokens:
            self.cached.popitem(last=False)
        return had


def agents_at_work(seed: int, agents: int = 12, steps: int = 3000) -> list[tuple[int, int, int]]:
    """Session, tokens of its prompt, and how long its answer takes, one request after the other.

    Twelve agents take turns at random. A turn adds a tool's output to the conversation; at 60,000 tokens the
    agent begins a new one, with the 12,000 of its instructions.
    """
    chance = random.Random(seed)
    sessions = {agent: (agent, 12_000) for agent in range(agents)}
    trace = []
    for step in range(steps):
        agent = chance.randrange(agents)
        session, tokens = sessions[agent]
        tokens += chance.randrange(200, 4000)
        if tokens > 60_000:
            session, tokens = agents + step, 12_000
        sessions[agent] = (session, tokens)
        trace.append((session, tokens, chance.randrange(1, 8)))
    return trace


def share_not_computed(policy: str, seed: int, count: int = 3) -> float:
    engines = [Engine(cache_tokens=200_000) for _ in range(count)]
    replicas = Replicas(count)
    ends: list[list[int]] = [[] for _ in range(count)]
    had = total = 0
    for now, (session, tokens, length) in enumerate(agents_at_work(seed)):
        busy = [sum(end > now for end in one) for one in ends]
        prefix = session + 1 if policy == "prefix" else 0
        index = now % count if policy == "turns" else replicas.pick(prefix, busy, [True] * count)
        assert index is not None
        ends[index] = [end for end in ends[index] if end > now] + [now + length]
        had += engines[index].read(session, tokens)
        total += tokens
    return had / total


def test_agents_find_what_was_read_before() -> None:
    """Twice as much as in turns or by load alone, which find the little that chance leaves."""
    turns, least, prefix = (share_not_computed(policy, seed=1) for policy in ("turns", "least", "prefix"))
    assert prefix > 0.7
    assert prefix > 1.9 * max(turns, least)
