"""Pictures and sounds for models that take them: two of each, so that one who looks at neither is noticed.

A picture is one colour, made here. A sound is one word, `data/verify/WORD.wav`: spoken by espeak-ng 1.51
(`espeak-ng -v en-us -s 130`), 8,000 samples a second, silence cut off. Both are as small as they can be: a
tower must have run for the answer to be right, and nothing else.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from firesteel.edge.http.answer import Answer
from firesteel.edge.http.engine_client import EngineRefused
from firesteel.run.verify.checks import CheckResult, Level, matches
from firesteel.run.verify.garbage import quote
from firesteel.run.verify.session import VerifySession
from firesteel.shipped_data import DATA

COLOURS = {"red": (220, 20, 20), "blue": (20, 20, 220)}
WORDS = {"seven": r"\bseven\b|\b7\b", "banana": r"\bbanana\b"}
_SIDE = 224
"""Pixels. Towers of 14 and of 16 pixels a patch divide it."""
_TOKENS, _MANY_TOKENS = 24, 512
_IMAGE_QUESTION = "What colour is this picture? Answer with one word."
_SOUND_QUESTION = "Which English word is spoken here? Answer with that word."


def png(colour: tuple[int, int, int], side: int = _SIDE) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(colour) * side) * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


async def images(session: VerifySession) -> list[CheckResult]:
    def part(name: str) -> dict[str, Any]:
        url = f"data:image/png;base64,{base64.b64encode(png(COLOURS[name])).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}

    patterns = {name: rf"\b{name}\b" for name in COLOURS}
    return [await _seen(session, "image", _IMAGE_QUESTION, {name: part(name) for name in patterns}, patterns)]


async def sounds(session: VerifySession) -> list[CheckResult]:
    def part(name: str) -> dict[str, Any]:
        data = base64.b64encode((DATA / "verify" / f"{name}.wav").read_bytes()).decode()
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}

    return [await _seen(session, "sound", _SOUND_QUESTION, {name: part(name) for name in WORDS}, WORDS)]


async def _seen(
    session: VerifySession,
    check: str,
    question: str,
    parts: Mapping[str, dict[str, Any]],
    patterns: Mapping[str, str],
) -> CheckResult:
    tokens = _MANY_TOKENS if session.thinks else _TOKENS
    try:
        alone = await session.ask(question, 1)
        answers = {}
        for name, part in parts.items():
            message = {"role": "user", "content": [{"type": "text", "text": question}, part]}
            answers[name] = await session.ask(question, tokens, {"messages": [message]}, stream=False)
    except EngineRefused as error:
        return CheckResult(
            check, False, f"refused, though its model takes one: {error.what}", cause="refused"
        )
    return perceived(
        check, alone, answers, patterns, "note" if session.expected.size in ("tiny", "small") else "gate"
    )


def perceived(
    check: str, alone: Answer, answers: Mapping[str, Answer], patterns: Mapping[str, str], level: Level
) -> CheckResult:
    """`alone`: the question without a picture or sound. Being ignored is a fault of the engine whatever the
    model's size; a wrong word may be a small model's."""
    for answer in answers.values():
        if alone.prompt_tokens and answer.prompt_tokens and answer.prompt_tokens <= alone.prompt_tokens:
            what = f"{answer.prompt_tokens} tokens in the prompt with it, {alone.prompt_tokens} without"
            return CheckResult(check, False, f"ignored: {what}")
    shown = ", ".join(f"{name}: {quote(answer.full_text, 30)}" for name, answer in answers.items())
    texts = {re.sub(r"\W+", " ", answer.text).strip().lower() for answer in answers.values()}
    if len(texts) == 1 and texts != {""}:
        return CheckResult(check, False, f"ignored: the same answer to two of them: {shown}")
    wrong = [name for name, answer in answers.items() if not matches(answer, patterns[name])]
    return CheckResult(check, not wrong, shown, level)
