"""The runner's policy, second by second."""

from __future__ import annotations

import pytest

from firesteel.hosts.cluster.watch import ClusterWatch, Happened, RankReport

GOOD = RankReport(is_alive=True, carrier={"rail": True}, mtu={"rail": 9000})


def happened(*steps: tuple[float, dict[str, RankReport]]) -> list[Happened]:
    watch, found = ClusterWatch.begin(("one", "two"), 0.0), []
    for now_s, reports in steps:
        watch, what = watch.after(now_s, {"one": GOOD, **reports})
        found.append(what)
    return found


def test_all_is_well() -> None:
    assert happened(*((float(second), {"two": GOOD}) for second in range(1, 60)))[-1] == Happened()


def test_silence_is_told_then_ridden_out() -> None:
    found = happened((2, {}), (3, {}), (4, {}), (9, {"two": GOOD}), (10, {"two": GOOD}))
    assert [what.notices for what in found] == [
        (), ("two: no answer over the link for 3 s; waiting until 12 s",), (),
        ("two: the link is back after 9 s",), (),
    ]  # fmt: skip
    assert not any(what.loss for what in found)


def test_a_busy_host_does_not_take_its_own_silence_for_a_lost_link() -> None:
    watch = ClusterWatch.begin(("one", "two"), 0.0)
    for second in range(1, 30):  # nobody reports, not even the agent of this host
        watch, what = watch.after(float(second), {})
        assert what == Happened(), second
    watch, what = watch.after(30.0, {"one": GOOD})
    assert what == Happened(), "what was late does not count afterwards"
    watch, what = watch.after(31.0, {"one": GOOD, "two": GOOD})
    assert what == Happened()
    for second in range(32, 43):
        watch, what = watch.after(float(second), {"one": GOOD})
        assert what.loss is None
    assert watch.after(43.0, {"one": GOOD})[1].loss, "then only the link can be the reason"
    watch = ClusterWatch.begin(("one", "two"), 0.0)
    assert watch.after(70.0, {})[1].loss, "not for ever"


def test_the_host_that_is_away_is_named_beside_the_rank_that_ended_of_it() -> None:
    """A node that reboots: llama.cpp's head aborts at once, before the silence counts."""
    watch = ClusterWatch.begin(("one", "two"), 0.0)
    watch, _ = watch.after(1.0, {"one": GOOD, "two": GOOD})
    watch, _ = watch.after(3.5, {"one": GOOD})
    _, what = watch.after(4.0, {"one": RankReport(False, exit=134)})
    assert what.loss == "one: its rank was killed by signal 6; no answer from two for 3 s"


def test_a_worker_that_ended_is_the_reason_not_the_head_that_ended_with_it() -> None:
    ended = {"one": RankReport(False, exit=134), "two": RankReport(False, why="it was told to stop")}
    assert happened((1.0, ended))[-1].loss == "two: its rank ended: it was told to stop"


def test_a_longer_silence_is_a_loss() -> None:
    found = happened(*((float(second), {}) for second in range(1, 12)), (11.9, {}), (12, {}))
    assert [bool(what.loss) for what in found] == [False] * 12 + [True]


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (RankReport(False, exit=137), "two: its rank was killed by signal 9"),
        (RankReport(False, exit=1), "two: its rank exited with code 1"),
        (RankReport(False, why="the memory guard"), "two: its rank ended: the memory guard"),
        (RankReport(False), "two: its rank ended"),
    ],
)
def test_a_rank_that_ended_is_lost_at_once(report: RankReport, text: str) -> None:
    assert happened((1, {"two": report}))[0].loss == text


@pytest.mark.parametrize(
    ("report", "text"),
    [
        (RankReport(True, carrier={"rail": False}), "rail has no carrier"),
        (RankReport(True, stuck="10.0.0.1:50052"), "its connection to 10.0.0.1:50052 is stuck"),
    ],
)
def test_a_report_without_a_link_counts_as_silence(report: RankReport, text: str) -> None:
    found = happened(*((float(second), {"two": report}) for second in range(1, 13)))
    assert text in found[2].notices[0] and text in (found[-1].loss or "")


def test_a_changed_mtu_is_told_once() -> None:
    smaller = RankReport(True, carrier={"rail": True}, mtu={"rail": 1500})
    found = happened((1, {"two": GOOD}), (2, {"two": smaller}), (3, {"two": smaller}))
    assert found[1].notices == ("two: the MTU of rail changed from 9000 to 1500",)
    assert found[2] == Happened()


def test_a_stuck_connection_has_time_again_after_the_link_was_away() -> None:
    stuck = RankReport(True, carrier={"rail": True}, stuck="10.0.0.1:50052")
    away: list[tuple[float, dict[str, RankReport]]] = [(3.0, {}), (6.0, {})]
    again = [(float(second), {"two": stuck}) for second in range(9, 22)]
    assert not any(what.loss for what in happened(*away, *again[:-1], (21, {"two": GOOD})))
    assert "10.0.0.1:50052 is stuck for 12 s" in (happened(*away, *again)[-1].loss or "")
