"""Several users on a real engine, beside the simulation that plans use for them.

    python benchmarks/gpu/serve_users.py measure --url http://127.0.0.1:8000 --model NAME --out RUN.jsonl ...
    PYTHONPATH=src python benchmarks/gpu/serve_users.py compare tests/planner/gpu/served-h200.jsonl

`measure` (needs aiohttp) times what the simulation takes for granted (prompts alone, steps in which so many
users decode) and then what it predicts: users that send the next request as soon as the last is answered.
`compare` fits the costs of a step to the former only, simulates the latter, and prints both.
Prompts are random tokens, so nothing is cached except where a scenario shares its beginning.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

PROMPTS = (256, 512, 1024, 2048, 4096, 8192, 12288, 16384)
DECODING = (1, 2, 5, 10, 20)
DEPTHS = (512, 8192)
SCENARIOS = (
    # users, prompt, answer, shared
    (5, 1024, 512, 0),
    (10, 4096, 256, 0),
    (20, 2048, 256, 0),
    (5, 8192, 512, 0),
    (10, 8192, 256, 0),
    (10, 8192, 256, 6144),
    (10, 16384, 256, 0),
    (20, 8192, 512, 4096),
)
ROUNDS = 4
VOCABULARY = range(1000, 40000)


class Client:
    def __init__(self, session: Any, url: str, model: str, answer_token: int) -> None:
        self.session, self.url, self.model = session, url, model
        self.answer_token = answer_token
        self.random = random.Random(7)
        self.began = time.monotonic()

    def now_ms(self) -> float:
        return 1000 * (time.monotonic() - self.began)

    def tokens(self, count: int) -> list[int]:
        return self.random.choices(VOCABULARY, k=count)

    async def ask(self, prompt: list[int], answer: int) -> tuple[float, list[float]]:
        """When it was sent, and when each event of its answer came; the answer repeats one word."""
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": answer,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "logit_bias": {str(self.answer_token): 100},
        }
        text, events = json.dumps(body), []
        sent = self.now_ms()
        headers = {"Content-Type": "application/json"}
        async with self.session.post(f"{self.url}/v1/completions", data=text, headers=headers) as response:
            if response.status != 200:
                raise SystemExit(f"{response.status}: {await response.text()}")
            async for line in response.content:
                if line.startswith(b"data: {"):
                    events.append(self.now_ms())
        if len(events) < answer / 2:
            raise SystemExit(f"an answer of {answer} tokens came in {len(events)} events")
        return sent, events


async def measure(arguments: argparse.Namespace) -> None:
    import aiohttp

    limits = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        timeout=limits, connector=aiohttp.TCPConnector(limit=0, force_close=True)
    ) as session:
        client = Client(session, arguments.url, arguments.model, arguments.answer_token)
        run: dict[str, Any] = {
            "name": arguments.name,
            "engine": arguments.engine,
            "step_tokens": arguments.step_tokens,
        }
        for size in (64, 2048, 16384):
            await client.ask(client.tokens(size), 64)
        await asyncio.gather(*(client.ask(client.tokens(512), 64) for _ in range(max(DECODING))))
        run["prompts"] = [[size, await first_token_ms(client, size)] for size in PROMPTS]
        run["decoding"] = [
            [users, depth + 160, await step_ms(client, users, depth)]
            for depth in DEPTHS
            for users in DECODING
        ]
        print(json.dumps(run), flush=True)
        deadline = time.monotonic() + arguments.budget
        run["served"] = []
        for users, prompt, answer, shared in SCENARIOS:
            if time.monotonic() > deadline:
                break
            served = await steady(client, users, prompt, answer, shared)
            run["served"].append(
                {"users": users, "prompt": prompt, "answer": answer, "shared": shared, "requests": served}
            )
            print(time.monotonic() - deadline, run["served"][-1], flush=True)
            arguments.out.write_text(json.dumps(run) + "\n")


async def first_token_ms(client: Client, size: int) -> float:
    times = []
    for _ in range(4):
        sent, events = await client.ask(client.tokens(size), 1)
        times.append(events[0] - sent)
    return round(median(times), 2)


async def step_ms(client: Client, users: int, depth: int) -> float:
    """The median step while all decode: from the last one's first token to the first one's last."""
    answers = [event for _, event in await asyncio.gather(
        *(client.ask(client.tokens(depth), 320) for _ in range(users))
    )]  # fmt: skip
    begin, end = max(events[0] for events in answers), min(events[-1] for events in answers)
    inside = [[event for event in events if begin <= event <= end] for events in answers]
    return round(median((events[-1] - events[0]) / (len(events) - 1) for events in inside), 3)


async def steady(
    client: Client, users: int, prompt: int, answer: int, shared: int
) -> list[tuple[float, float, float]]:
    """(arrived, first token, end) in ms, in the order in which they end."""
    beginning = client.tokens(shared)
    await client.ask(beginning + client.tokens(prompt - shared), answer)
    sent, events = await client.ask(beginning + client.tokens(prompt - shared), answer)
    alone_s = (events[-1] - sent) / 1000
    served: list[tuple[float, float, float]] = []

    async def user(number: int) -> None:
        await asyncio.sleep(alone_s * number / users)
        while len(served) < ROUNDS * users:
            sent, events = await client.ask(beginning + client.tokens(prompt - shared), answer)
            served.append((round(sent, 1), round(events[0], 1), round(events[-1], 1)))

    await asyncio.gather(*map(user, range(users)))
    return served[: ROUNDS * users]


class MeasuredSteps:
    """What a step takes, fitted to prompts alone and to users that only decode."""

    def __init__(self, run: dict[str, Any]) -> None:
        import numpy as np

        self.tokens_per_step: int = run["step_tokens"]
        rows, times = [], []
        for size, ms in run["prompts"]:
            firsts = range(0, size, self.tokens_per_step)
            pieces = [(min(self.tokens_per_step, size - first), first) for first in firsts]
            pairs = sum(tokens * (depth + tokens / 2) for tokens, depth in pieces)
            rows.append([1 / ms, len(pieces) / ms, size / ms, pairs / ms])
            times.append(1.0)
        self.start_ms, self.piece_ms, self.token_ms, self.pair_ms = _not_negative(np, rows, times)
        decoding = [users for users, depth, _ in run["decoding"] if depth == run["decoding"][0][1]]
        rows = [
            [float(users == one) / ms for one in decoding] + [users * depth / ms]
            for users, depth, ms in run["decoding"]
        ]
        *weights, self.kv_ms = _not_negative(np, rows, [1.0] * len(rows))
        self.weights_ms = dict(zip(decoding, weights, strict=True))
        self.prompts = self

    def step_ms(self, decoding: int, depth: float, pieces: Sequence[tuple[int, int]]) -> float:
        kv_ms = decoding * depth * self.kv_ms
        if pieces:
            tokens = decoding + sum(size for size, _ in pieces)
            pairs = sum(size * (earlier + size / 2) for size, earlier in pieces)
            return self.piece_ms + tokens * self.token_ms + pairs * self.pair_ms + kv_ms
        below = max(users for users in self.weights_ms if users <= decoding)
        above = min((users for users in self.weights_ms if users >= decoding), default=below)
        share = (decoding - below) / max(1, above - below)
        return self.weights_ms[below] * (1 - share) + self.weights_ms[above] * share + kv_ms


def _not_negative(np: Any, rows: list[list[float]], goals: list[float]) -> list[float]:
    """Least squares; a cost below zero is left out and the rest fitted again."""
    used = list(range(len(rows[0])))
    while True:
        table = np.array(rows)[:, used]
        values = np.linalg.lstsq(table, np.array(goals), rcond=None)[0]
        if (values >= 0).all():
            return [
                float(values[used.index(index)]) if index in used else 0.0 for index in range(len(rows[0]))
            ]
        used.remove(used[int(values.argmin())])


def figures(requests: Sequence[Sequence[float]], users: int, answer: int) -> list[float]:
    """As plans define them: tokens a second of each while decoding, and of all; ms to the first token."""
    each = mean(1000 * (answer - 1) / (end - first) for _, first, end in requests)
    in_all = 1000 * users * answer / mean(end - arrived for arrived, _, end in requests)
    return [each, in_all, mean(first - arrived for arrived, first, _ in requests)]


def simulated(run: dict[str, Any]) -> list[tuple[dict[str, Any], list[float], list[float]]]:
    """Each scenario with what was measured and what is predicted."""
    from firesteel.planner.speed.serving import RequestShape, serve_steadily

    steps: Any = MeasuredSteps(run)
    rows = []
    for row in run["served"]:
        users, answer = row["users"], row["answer"]
        served = serve_steadily(steps, users, RequestShape(row["prompt"], answer, row["shared"]), ROUNDS)
        predicted = [(one.arrived_ms, one.first_token_ms, one.end_ms) for one in served]
        rows.append((row, figures(row["requests"][users:], users, answer), figures(predicted, users, answer)))
    return rows


def compare(file: Path) -> None:
    print("| run | users | prompt | shared | answer | each | in all | first token, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for run in map(json.loads, file.read_text().splitlines()):
        rows = simulated(run)
        for row, measured, predicted in rows:
            cells = [run["name"], row["users"], f"{row['prompt']:,}", f"{row['shared']:,}", row["answer"]]
            for one, other in zip(predicted, measured, strict=True):
                cells.append(f"{one:,.0f}, measured {other:,.0f} ({one / other - 1:+.0%})")
            print("|", " | ".join(map(str, cells)), "|")
        print("mean error:", *(f"{error:.1%}" for error in mean_errors(rows)))


def mean_errors(rows: Sequence[tuple[Any, list[float], list[float]]]) -> list[float]:
    return [mean(abs(predicted[i] / measured[i] - 1) for _, measured, predicted in rows) for i in range(3)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--url", required=True)
    measuring.add_argument("--model", required=True)
    measuring.add_argument("--name", required=True, help="what the run is called in the table")
    measuring.add_argument("--engine", required=True)
    measuring.add_argument("--step-tokens", type=int, required=True, help="the engine's tokens a step")
    measuring.add_argument("--answer-token", type=int, default=260, help="the id of the word in answers")
    measuring.add_argument("--budget", type=float, default=240, help="seconds after which none begins")
    measuring.add_argument("--out", type=Path, required=True)
    comparing = commands.add_parser("compare")
    comparing.add_argument("file", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "measure":
        asyncio.run(measure(arguments))
    else:
        compare(arguments.file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
