"""Pictures, sounds, embeddings and rankings: what a good server answers passes, and each fault is found."""

from __future__ import annotations

import base64
import json
import math
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from firesteel.edge.sim.completion import seen
from firesteel.launch import Task
from firesteel.run.verify import questions
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import Expected
from firesteel.run.verify.session import VerifySession
from firesteel.run.verify.verify import Verification, verify
from firesteel.shipped_data import DATA

ABLE = Expected(engine="vllm", parameters=8_000_000_000, embedding_size=3)


@dataclass
class Server:
    fault: str | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        content = body["messages"][-1]["content"]
        parts = [part for part in content if part["type"] != "text"] if isinstance(content, list) else []
        if parts and self.fault == "refused":
            return web.json_response({"error": {"message": "at most 0 images"}}, status=400)
        text = seen(parts[0]) or "" if parts else "I see nothing."
        if parts and self.fault == "same answer":
            text = "It is a nice picture."
        if parts and self.fault == "wrong":
            text = {"It is red.": "It is green.", "It is blue.": "It is yellow."}.get(text, f"not {text[:2]}")
        tokens = 20 + (0 if self.fault == "dropped" else 64 * len(parts))
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": tokens, "completion_tokens": 4, "total_tokens": tokens + 4}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        if body.get("stream"):
            chunk = {"choices": [{"index": 0, "delta": message, "finish_reason": "stop"}], "usage": usage}
            data = json.dumps(chunk)
            return web.Response(text=f"data: {data}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
        return web.json_response({"choices": [choice], "usage": usage})

    async def embed(self, request: web.Request) -> web.Response:
        """A vector by the pair that a text is of."""
        texts = (await request.json())["input"]
        found: list[list[float | None]] = []
        for text in texts:
            pair = next((at for at, pair in enumerate(questions.PAIRS) if text in pair), None)
            angle = 4.5 if pair is None else pair + 0.1 * questions.PAIRS[pair].index(text)
            found.append([math.cos(angle), math.sin(angle), 0.1])
        if self.fault == "constant":
            found = [[1.0, 2.0, 3.0] for _ in texts]
        if self.fault == "NaN":
            found[-1][0] = None
        if self.fault == "dimension":
            found = [vector[:2] for vector in found]
        if self.fault == "ragged":
            found[0] = found[0][:2]
        if self.fault == "zeros":
            found[-1] = [0.0, 0.0, 0.0]
        if self.fault == "lost":
            found = found[:-1]
        if self.fault == "batch" and len(texts) == 1:
            found = [[0.0, 0.0, 1.0]]
        if self.fault == "order":
            found = [[math.cos(at * 2.1), math.sin(at * 2.1), 0.1] for at in range(len(texts))]
        rows = [{"index": at, "embedding": vector} for at, vector in enumerate(found)]
        return web.json_response({"data": rows})

    async def rank(self, request: web.Request) -> web.Response:
        scores: list[float | None] = [0.01, 0.98, 0.02]
        if self.fault == "constant":
            scores = [0.5, 0.5, 0.5]
        if self.fault == "order":
            scores = [0.98, 0.01, 0.02]
        if self.fault == "NaN":
            scores[0] = None
        rows = [{"index": at, "relevance_score": score} for at, score in enumerate(scores)]
        return web.json_response({"results": rows[1:] if self.fault == "lost" else rows[::-1]})


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/v1/embeddings", server.embed)
    app.router.add_post("/v1/rerank", server.rank)
    async with TestServer(app) as running:
        yield str(running.make_url("")).rstrip("/")


async def shown(server: Server, kind: str) -> CheckResult:
    async with serving(server) as url:
        session = VerifySession(url, "m", ABLE, None, None, math.inf, 60, 1)
        (found,) = await (questions.images if kind == "image" else questions.sounds)(session)
    return found


async def proved(server: Server, task: Task) -> Verification:
    async with serving(server) as url:
        async for item in verify(url, "m", Expected(task=task, embedding_size=3)):
            if isinstance(item, Verification):
                return item
    raise AssertionError("verify ends with the proof")


@pytest.mark.parametrize("kind", ["image", "sound"])
async def test_one_who_looks_and_listens_passes(kind: str) -> None:
    found = await shown(Server(), kind)
    assert found.passed, found.observed
    assert ("red" if kind == "image" else "seven") in found.observed


@pytest.mark.parametrize("kind", ["image", "sound"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("dropped", "ignored: 20 tokens"),
        ("same answer", "the same answer"),
        ("refused", "at most 0"),
        ("wrong", ""),
    ],
)
async def test_faults_of_pictures_and_sounds(kind: str, fault: str, says: str) -> None:
    found = await shown(Server(fault), kind)
    assert found.fails_launch and says in found.observed


async def test_embeddings_and_rankings_that_are_right() -> None:
    assert (await proved(Server(), "embeddings")).is_good
    assert (await proved(Server(), "rerank")).is_good


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("constant", "all texts have one vector"),
        ("NaN", "not finite"),
        ("dimension", "2 numbers a text, the model has 3"),
        ("ragged", "2 and 3 numbers"),
        ("zeros", "all zeros"),
        ("lost", "7 texts were sent, 6 vectors"),
        ("batch", "another vector in a batch"),
        ("order", "are nearest to their like"),
    ],
)
async def test_faults_of_embeddings(fault: str, says: str) -> None:
    (failed,) = (await proved(Server(fault), "embeddings")).failed
    assert says in failed.observed


@pytest.mark.parametrize(
    ("fault", "says"),
    [("constant", "one score"), ("NaN", "not finite"), ("lost", "2 of 3 documents"), ("order", "the second")],
)
async def test_faults_of_rankings(fault: str, says: str) -> None:
    (failed,) = (await proved(Server(fault), "rerank")).failed
    assert says in failed.observed


def test_the_sounds_are_short_words() -> None:
    for path in (DATA / "verify").glob("*.wav"):
        with wave.open(str(path)) as sound:
            assert sound.getframerate() == 8000 and 0.3 < sound.getnframes() / 8000 < 1.5
        part = {"type": "input_audio", "input_audio": {"data": base64.b64encode(path.read_bytes()).decode()}}
        assert seen(part) == path.stem
