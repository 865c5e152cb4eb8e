"""Requests and the answers of the mock upstream, shared by the mock, the load client and the soak test.

The answer follows from the beginning of the prompt, `order SEED-EVENTS-PACE-DIES-LEAVES-FAT`, so the order
determines every byte that must come back. Only the times differ: each event carries `@` and 16 digits of the
time at which it was sent (both sides use the same clock), which `times_in` removes before bytes are compared.
No two events of a stream are equal, since LiteLLM ends a stream that repeats itself.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass

STAMP = re.compile(rb"@(\d{16})")
ORDER = re.compile(rb"order (\d+)-(\d+)-(\d+)-(\d+)-(\d+)-(\d+);")
LINE = 'def step_%d(state):\n\treturn {"at": state["at"] + %d, "why": "caf\u00e9 \\\\ row"}\n'
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Order:
    """How the mock has to answer."""

    seed: int
    events: int = 0
    """0: no stream."""
    pace_us: int = 0
    dies_after: int = 0
    """Reset the connection after so many events; 0: never."""
    leaves: int = 0
    """1: close the connection after the answer, without announcing it in the head."""
    fat: int = 0
    """How often an event repeats its word, to fill buffers."""

    @property
    def text(self) -> str:
        return f"{self.seed}-{self.events}-{self.pace_us}-{self.dies_after}-{self.leaves}-{self.fat}"


def read_order(body: bytes) -> Order:
    found = ORDER.search(body)
    return Order(*(int(each) for each in found.groups())) if found else Order(0)


def prompt(size: int) -> str:
    """Code with quotes, tabs and accents, which is what escapes are made of; about `size` bytes as JSON."""
    whole = "".join(LINE % (n, n) for n in range(size // 60 + 1))
    return whole[: int(size * len(whole) / len(json.dumps(whole)))]


def body(order: Order, text: str, model: str = "bench") -> bytes:
    """Messages first, as the openai client writes it: who looks for `model` has the prompt before it."""
    content = f"order {order.text}; {text}"
    fields: dict[str, object] = {"messages": [{"role": "user", "content": content}], "model": model}
    if order.events:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(fields, separators=(",", ":")).encode()


def request(payload: bytes, headers: bytes) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: bench.local\r\nAccept: */*\r\nUser-Agent: bench/1\r\n"
        b"Content-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s" % (headers, len(payload), payload)
    )


def word(seed: int, n: int) -> str:
    return f"{zlib.crc32(b'%d:%d' % (seed, n)):08x}"


def event(order: Order, n: int) -> bytes:
    """With a bare `@` where the time goes."""
    text = word(order.seed, n).encode()
    return (
        b'data: {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
        b'"choices":[{"index":0,"delta":{"content":" %s %d @%s"},"logprobs":null,"finish_reason":null}]}\n\n'
    ) % (order.seed, text, n, text * order.fat)


def ending(order: Order) -> bytes:
    return (
        b'data: {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1700000000,"model":"bench",'
        b'"choices":[],"usage":{"prompt_tokens":250,"completion_tokens":%d,"total_tokens":%d}}\n\n'
    ) % (order.seed, order.events, order.events + 250) + DONE


def stream(order: Order) -> bytes:
    return b"".join(event(order, n) for n in range(order.events)) + ending(order)


def text_of(order: Order) -> str:
    """What a client that reads the events has in the end; for gateways that write the events anew."""
    if order.events:
        return "".join(f" {word(order.seed, n)} {n} @" for n in range(order.events))
    return " ".join(word(order.seed, n) for n in range(38))


def answer(order: Order, asked: bytes) -> bytes:
    """About 0.6 KB, with the checksum of the body as it arrived upstream."""
    fields = {
        "id": f"chatcmpl-{order.seed}",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "bench",
        "system_fingerprint": f"crc-{zlib.crc32(asked):08x}",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text_of(order)},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 250, "completion_tokens": 38, "total_tokens": 288},
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def times_in(data: bytes) -> tuple[bytes, list[int]]:
    """The bytes without their times, and the times."""
    return STAMP.sub(b"@", data), [int(digits) for digits in STAMP.findall(data)]


def fault(order: Order, asked: bytes, got: bytes, is_exact: bool = True) -> str | None:
    """What is wrong with a whole answer; None when every byte is right."""
    if not is_exact:
        return _text_fault(order, got)
    bare, times = times_in(got)
    if bare != (stream(order) if order.events else answer(order, asked)):
        return f"order {order.text}: {len(got)} bytes differ from the expected answer"
    if len(times) != order.events or times != sorted(times):
        return f"order {order.text}: times out of order"
    return None


def _text_fault(order: Order, got: bytes) -> str | None:
    lines = got.split(b"\n") if order.events else [b"data: " + got]
    told = ""
    for line in lines:
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices", ()):
                told += (choice.get("delta") or choice.get("message") or {}).get("content") or ""
    same = STAMP.sub(b"@", told.encode()) == text_of(order).encode()
    return None if same else f"order {order.text}: the text differs from the expected answer"
