#!/usr/bin/env python3
"""300 requests at once over three models, with five keys of different limits and priorities: who waited how
long, what each was charged, and by how much a budget was exceeded.

    python benchmarks/gateway/shares.py [TREE]        TREE: another checkout, to compare with

A real `firesteel serve` with keys; two of the three models fit at a time. They are commands: a server that
makes as many tokens as it is asked for, at 400 a second, and writes down what it has made for whom. Clients
try again as the gateway advises, if that is within 10 s, for a minute. Takes two minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from served import ROOT, ServedGateway, free_ports

REQUESTS, LIMIT_S, RETRY_S = 300, 300.0, 60.0
MODELS = ("alpha", "beta", "gamma")
KEYS = {
    "budget": ["--budget", "4000/day"],
    "large": ["--budget", "40k/day"],
    "rate": ["--tokens-rate", "6000/m"],
    "four": ["--at-once", "4"],
    "first": ["--priority", "10"],
}
SERVER = """
import asyncio, json, sys
from aiohttp import web
port, record = int(sys.argv[1]), sys.argv[2]
async def chat(request):
    body = await request.json()
    count = min(body.get("max_tokens") or 10**9, body["seed"]) * body.get("n", 1)
    prompt, made, streams = len(body["messages"][0]["content"]) // 4, 0, body.get("stream", False)
    def usage():
        return {"prompt_tokens": prompt, "completion_tokens": made, "total_tokens": prompt + made}
    try:
        if not streams:
            await asyncio.sleep(count / 400)
            made = count
            message = {"role": "assistant", "content": "word " * count}
            return web.json_response({"choices": [{"index": 0, "message": message}], "usage": usage()})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        while made < count:
            await asyncio.sleep(1 / 400)
            made += 1
            delta = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
            await response.write(b"data: " + json.dumps(delta).encode() + b"\\n\\n")
        await response.write(b"data: " + json.dumps({"choices": [], "usage": usage()}).encode() + b"\\n\\n")
        await response.write(b"data: [DONE]\\n\\n")
        return response
    finally:
        with open(record, "a") as file:
            file.write(json.dumps([body["user"], prompt, made]) + "\\n")
async def health(request):
    return web.Response()
app = web.Application()
app.add_routes([web.post("/v1/chat/completions", chat), web.get("/health", health)])
web.run_app(app, host="127.0.0.1", port=port, print=None)
"""


@dataclass
class Share:
    """What became of one key's requests."""

    statuses: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    waits_s: list[float] = field(default_factory=list)
    retries: int = 0
    cut: int = 0


async def ask(
    session: aiohttp.ClientSession, url: str, token: str, body: dict[str, Any], share: Share
) -> None:
    began = time.monotonic()
    while True:  # ends: for a minute
        status, text, first_s, retry_s = await _try(session, url, token, body)
        if status == 200 or retry_s > 10 or time.monotonic() - began > RETRY_S:
            break
        share.retries += 1
        await asyncio.sleep(retry_s)
    share.cut += status == 200 and b"budget_exceeded" in text
    share.statuses[status] += 1
    if status == 200:
        share.waits_s.append(first_s - began)


async def _try(
    session: aiohttp.ClientSession, url: str, token: str, body: dict[str, Any]
) -> tuple[int, bytes, float, float]:
    """Status, answer, when it began, and when to try again. An error in place of a stream counts as one."""
    headers = {"Authorization": f"Bearer {token}"}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
        text, first_s, status = b"", 0.0, response.status
        async for piece in response.content.iter_any():
            text += piece
            first_s = first_s or (time.monotonic() if b"word " in text else 0.0)
    if status == 200 and not first_s:
        status = 503
    return status, text, first_s, float(response.headers.get("Retry-After", 2))


def requests() -> list[tuple[str, dict[str, Any]]]:
    dice = random.Random(34)
    made = []
    for number in range(REQUESTS):
        key = [*KEYS][number % len(KEYS)]
        body: dict[str, Any] = {
            "model": dice.choice(MODELS), "user": key, "seed": dice.randrange(40, 200),
            "messages": [{"role": "user", "content": "x " * dice.randrange(40, 200)}],
        }  # fmt: skip
        body |= {"stream": True} if dice.random() < 0.7 else {}
        body |= {"max_tokens": dice.randrange(20, 150)} if dice.random() < 0.5 else {}
        made.append((key, body))
    dice.shuffle(made)
    return made


async def run(folder: Path, tree: Path) -> None:
    script, record = folder / "server.py", folder / "record"
    script.write_text(SERVER)
    record.touch()
    command = json.dumps([sys.executable, str(script), "${PORT}", str(record)])
    ports = free_ports(4)
    gateway = ServedGateway(folder, folder / "pulled", ports[0], tree)
    gateway.file.write_text(
        f"listen: 127.0.0.1:{ports[0]}\nmemory: {{ceiling: 250MiB}}\n"
        "queue: {size: 200, max_wait: 60s, min_dwell: 2s}\nmodels:\n"
        + "".join(
            f"  {name}: {{cmd: {command}, memory: 100MiB, port: {port}}}\n"
            for name, port in zip(MODELS, ports[1:], strict=True)
        )
    )

    def firesteel(*words: str) -> str:
        argv = [sys.executable, "-m", "firesteel", *words]
        return subprocess.run(argv, env=gateway.env, capture_output=True, text=True, timeout=120).stdout

    tokens, shares = {}, {key: Share() for key in KEYS}
    for key, options in KEYS.items():
        tokens[key] = firesteel("serve", "key", "add", key, *options).strip()
        if not tokens[key]:  # a checkout that does not know the option
            tokens[key] = firesteel("serve", "key", "add", key).strip()
    gateway.start()
    began = time.monotonic()
    try:
        connector = aiohttp.TCPConnector(limit=0)
        async with asyncio.timeout(LIMIT_S), aiohttp.ClientSession(connector=connector) as session:
            await asyncio.gather(
                *(ask(session, gateway.url, tokens[key], body, shares[key]) for key, body in requests())
            )
        took_s = time.monotonic() - began
        await asyncio.sleep(2)  # the log writes what it has
        usage = json.loads(firesteel("serve", "usage", "--by", "key", "--json"))
    finally:
        gateway.close()
    show(shares, usage, [json.loads(line) for line in record.read_text().splitlines()], took_s)


def show(shares: dict[str, Share], usage: dict[str, Any], made: list[list[Any]], took_s: float) -> None:
    charged = {row["key"]: row["prompt_tokens"] + row["completion_tokens"] for row in usage["rows"]}
    budgets = {each["key"]: each for each in usage["budgets"]}
    print(f"{REQUESTS} requests at once, {took_s:.0f} s\n")
    columns = ("key", "answered", "refused for its limit, for the queue", "retries", "cut")
    columns += ("first token: median, longest", "engine counted", "charged", "over")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for key, share in shares.items():
        counted = sum(prompt + answer for user, prompt, answer in made if user == key)
        waits = sorted(share.waits_s) or [0.0]
        spent = budgets.get(key)
        over = "-" if spent is None else f"{max(0, spent['spent'] - spent['tokens']):,}"
        refused = f"{share.statuses[429]}, {share.statuses[503]}"
        print(
            f"| `{' '.join(KEYS[key])}` | {share.statuses[200]} | {refused} | {share.retries} | {share.cut} "
            f"| {statistics.median(waits):.1f} s, {waits[-1]:.1f} s | {counted:,} "
            f"| {charged.get(key, 0):,} | {over} |"
        )


def main() -> None:
    tree = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    with tempfile.TemporaryDirectory(prefix="shares-") as name:
        folder = Path(name)
        for part in ("engines", "weights"):
            (folder / "pulled" / part).mkdir(parents=True)
        os.environ.pop("FIRESTEEL_HOME", None)
        asyncio.run(run(folder, tree))


if __name__ == "__main__":
    main()
