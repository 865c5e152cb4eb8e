"""`compare --quality`: the statistics by hand, and a small OpenAI server whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import log
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from firesteel.bench.compare.answers import (
    AskedPair,
    compare_quality,
    kl_divergence,
    quality_questions,
    score,
    share_interval,
    sign_test,
)
from firesteel.edge.http.answer import Answer, TokenLogprob
from firesteel.library.documents.all import schemas
from tests.cli.inside import inside
from tests.conftest import Firesteel
from tests.http_thread import QuietHandler, serving_http


def answer(text: str, logprobs: tuple[TokenLogprob, ...] | None = None) -> Answer:
    return Answer(text, "stop", 1, 1, 0.1, 0.1, logprobs=logprobs)


def token(text: str, **top: float) -> TokenLogprob:
    rows = tuple((name.encode(), log(share)) for name, share in top.items())
    return TokenLogprob(text.encode(), log(top[text]), max(logprob for _, logprob in rows), rows)


def test_kl_by_hand() -> None:
    one, other = [(b"a", log(0.5)), (b"b", log(0.5))], [(b"a", log(0.9)), (b"b", log(0.1))]
    assert kl_divergence(one, other) == pytest.approx(0.5 * log(0.5 / 0.9) + 0.5 * log(0.5 / 0.1), abs=1e-4)
    assert kl_divergence(one, one) == pytest.approx(0, abs=1e-9)
    # b and c are joined: at least the KL of (0.6, 0.4) from (0.7, 0.3)
    joined = kl_divergence([(b"a", log(0.6)), (b"b", log(0.4))], [(b"a", log(0.7)), (b"c", log(0.3))])
    assert joined == pytest.approx(0.6 * log(0.6 / 0.7) + 0.4 * log(0.4 / 0.3), abs=1e-4)


@pytest.mark.parametrize(
    ("hits", "total", "low", "high"), [(0, 10, 0.0, 0.278), (10, 10, 0.722, 1.0), (5, 10, 0.237, 0.763)]
)
def test_shares_have_wilsons_interval(hits: int, total: int, low: float, high: float) -> None:
    found = share_interval(hits, total)
    assert found.low == pytest.approx(low, abs=1e-3)
    assert found.high == pytest.approx(high, abs=1e-3)


@pytest.mark.parametrize(
    ("one", "other", "p"), [(0, 0, 1.0), (5, 0, 0.0625), (6, 0, 0.03125), (3, 3, 1.0), (9, 1, 0.0215)]
)
def test_the_sign_test_is_exact(one: int, other: int, p: float) -> None:
    assert sign_test(one, other) == sign_test(other, one) == pytest.approx(p, abs=1e-4)


def test_a_difference_within_chance_is_no_verdict() -> None:
    def pairs(only_first: int, both: int) -> list[AskedPair]:
        right, wrong = answer("it is 43"), answer("it is 44")
        made = [AskedPair("?", right, wrong, r"\b43\b")] * only_first
        return made + [AskedPair("?", right, right, r"\b43\b")] * both

    assert score(pairs(5, 20)).verdict == "cannot tell"
    assert score(pairs(6, 20)).verdict == "first is better"
    turned = [AskedPair(pair.ask, pair.second, pair.first, pair.pattern) for pair in pairs(6, 20)]
    assert score(turned).verdict == "second is better"


def test_tokens_are_compared_until_they_part() -> None:
    """After the first difference both have other words before them, and nothing is comparable."""
    first = (token("a", a=0.9, b=0.1), token("a", a=0.6, b=0.4), token("c", c=0.9, d=0.1))
    second = (token("a", a=0.9, b=0.1), token("b", a=0.4, b=0.6), token("d", c=0.1, d=0.9))
    pair = AskedPair("?", answer("aac", first), answer("abd", second))
    found = compare_quality(("x", "y"), [pair, pair, pair])
    assert found.tokens_until_apart and found.tokens_until_apart.value == pytest.approx(1 / 3)
    assert found.kl
    assert found.kl.value == pytest.approx((0.6 * log(0.6 / 0.4) + 0.4 * log(0.4 / 0.6)) / 2, abs=1e-4)
    assert found.top_token_agreement and found.top_token_agreement.value == pytest.approx(0.5)


def test_without_log_probabilities_there_is_no_kl() -> None:
    found = compare_quality(("x", "y"), [AskedPair("?", answer("a"), answer("a"))])
    assert found.kl is None and "no KL" in found.notes[0]
    assert found.agreement.value == 1.0


def test_our_questions_are_sound() -> None:
    book = quality_questions()
    assert len(book.questions) >= 40 and len(book.prompts) >= 12
    assert len({question.ask for question in book.questions}) == len(book.questions)


# --- against servers ---


@contextmanager
def serving(reply: Callable[[str], str], logprobs: bool = False) -> Iterator[str]:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self._send({"data": [{"id": "m", "owned_by": "x"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if body.get("logprobs") and not logprobs:
                self._send({"error": {"message": "no logprobs here"}}, 400)
                return
            text = reply(body["messages"][0]["content"])
            choice: dict[str, Any] = {"message": {"content": text}, "finish_reason": "stop"}
            self._send({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})

        def _send(self, value: object, status: int = 200) -> None:
            self.send(json.dumps(value).encode(), status, Content_Type="application/json")

    with serving_http(Handler) as url:
        yield f"{url}/v1"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


def knows(question: str) -> str:
    """A right answer to the questions about numbers and capitals; the same to everything else."""
    known = {
        "17 + 26": "43",
        "9 * 8": "72",
        "144": "12",
        "371": "629",
        "23 *": "391",
        "France": "Paris",
        "Japan": "Tokyo",
    }
    return next((text for part, text in known.items() if part in question), "I do not know")


def test_the_command_finds_the_better_one(run: Firesteel) -> None:
    with serving(knows) as good, serving(lambda _: "I do not know") as bad:
        shown = run("bench", "compare", "--quality", good, bad)
        document = run("bench", "compare", "--quality", bad, good, "--json").json
        same = run("bench", "compare", "--quality", good, good)
    assert shown.code == 0, shown.err
    assert "verdict      first is better" in shown.out
    assert "no KL" in shown.out
    jsonschema.validate(document, schemas()["firesteel.compare-quality/1"])
    assert document["comparison"]["questions"]["verdict"] == "second is better"
    assert same.code == 2, "one server would be compared with itself"


def test_equal_servers_cannot_be_told_apart(run: Firesteel) -> None:
    with serving(knows) as one, serving(knows) as other:
        shown = run("bench", "compare", "--quality", one, other)
    assert "answers      100.0%" in shown.out and "cannot tell" in shown.out


def test_only_one_way_to_compare(run: Firesteel) -> None:
    assert run("bench", "compare", "--quality", "--ab", "a", "b").code == 2
    assert run("bench", "compare", "--quality", "a").code == 2
