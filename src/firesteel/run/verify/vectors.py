"""Embeddings and rerankers: a broken one returns numbers of the right shape, so their order is checked.

    session -> texts of three pairs -> vectors -> each text is nearest to the other of its pair

Pure checks, and the two steps that ask.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from firesteel.edge.http import engine_client
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.session import VerifySession

PAIRS = (
    ("The cat sleeps on the warm sofa.", "A kitten is napping on the couch."),
    ("The bank raised its interest rates again.", "Borrowing money has become more expensive."),
    ("Heavy rain flooded the streets of the town.", "After the storm the roads were under water."),
)
QUERY = "How do I make bread rise?"
DOCUMENTS = (
    "The parliament will vote on the new budget on Thursday.",
    "Yeast turns sugar into gas, which makes the dough of a bread rise before it is baked.",
    "The telescope was launched in December and took its first picture in July.",
)
_RIGHT = 1
_EQUAL = 0.999
_TIMEOUT_S = 60.0

Vector = Sequence[float]


def cosine(one: Vector, other: Vector) -> float:
    norms = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(y * y for y in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / norms if norms else 0.0


def embedded(vectors: Sequence[Vector], alone: Vector, count: int, dimension: int | None) -> CheckResult:
    """`alone`: the first text once more, by itself. `dimension`: as the model's config has it, if known."""
    name = "embeddings"
    sizes = sorted({len(vector) for vector in (*vectors, alone)})
    if len(vectors) != count:
        return CheckResult(name, False, f"{count} texts were sent, {len(vectors)} vectors came back")
    if len(sizes) != 1 or not sizes[0]:
        return CheckResult(name, False, f"the vectors have {' and '.join(map(str, sizes))} numbers")
    if dimension and sizes[0] != dimension:
        return CheckResult(name, False, f"{sizes[0]} numbers a text, the model has {dimension}")
    if not all(math.isfinite(x) for vector in (*vectors, alone) for x in vector):
        return CheckResult(name, False, "a vector has numbers that are not finite (NaN)")
    if any(not any(vector) for vector in vectors):
        return CheckResult(name, False, "a vector is all zeros")
    near = [cosine(vectors[0], vector) for vector in vectors[1:]]
    if min(near) > _EQUAL:
        return CheckResult(name, False, f"all texts have one vector (cosine {min(near):.4f})")
    if cosine(vectors[0], alone) < _EQUAL:
        same = cosine(vectors[0], alone)
        return CheckResult(name, False, f"a text has another vector in a batch than alone: cosine {same:.3f}")
    return CheckResult(name, True, f"{len(vectors)} vectors of {sizes[0]} numbers, alone as in a batch")


def in_order(vectors: Sequence[Vector]) -> CheckResult:
    """Each text is nearest to the one that says the same in other words: texts come in pairs."""
    wrong = []
    for index, vector in enumerate(vectors):
        others = {at: cosine(vector, other) for at, other in enumerate(vectors) if at != index}
        if max(others, key=lambda at: others[at]) != index ^ 1:
            wrong.append(index)
    observed = f"{len(vectors) - len(wrong)} of {len(vectors)} texts are nearest to their like"
    return CheckResult("similarity", len(wrong) <= 1, observed)


def reranked(scores: Sequence[float | None]) -> CheckResult:
    """By document, in the order that they were sent; None: it has no score."""
    name = "rerank"
    known = [score for score in scores if score is not None]
    if len(known) < len(scores):
        return CheckResult(name, False, f"{len(known)} of {len(scores)} documents have a score")
    if not all(math.isfinite(score) for score in known):
        return CheckResult(name, False, "a score is not finite (NaN)")
    shown = ", ".join(f"{score:.3g}" for score in known)
    if len(set(known)) == 1:
        return CheckResult(name, False, f"all documents have one score: {shown}")
    return CheckResult(name, max(known) == known[_RIGHT], f"scores {shown}; the right document is the second")


async def embeddings(session: VerifySession) -> list[CheckResult]:
    texts = [text for pair in PAIRS for text in pair]

    async def asked(some: list[str]) -> list[list[float]]:
        return await engine_client.embeddings(
            session.url, session.model, some, timeout_s=min(_TIMEOUT_S, session.request_s), key=session.key
        )

    vectors = await asked(texts)
    alone = (await asked(texts[:1]) or [[]])[0]
    found = embedded(vectors, alone, len(texts), session.expected.embedding_size)
    return [found, in_order(vectors)] if found.passed else [found]


async def rerank(session: VerifySession) -> list[CheckResult]:
    scores = await engine_client.rerank(
        session.url, session.model, QUERY, list(DOCUMENTS), timeout_s=_TIMEOUT_S, key=session.key
    )
    return [reranked(scores)]
