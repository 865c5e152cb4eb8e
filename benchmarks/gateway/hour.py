#!/usr/bin/env python3
"""An hour of the gateway: two embedded models of which one fits, a mock, six kinds of clients, many faults.

    PYTHONPATH=src python benchmarks/gateway/hour.py [--home HOME] [--seconds 3600] [--every 60] [--log FILE]

`--home`: a FIRESTEEL_HOME with `smollm2` pulled; its engines and weights are used, nothing else of it. There
is one fault a minute (`--every`), of eight kinds in turn. `--log` keeps what the gateway printed, each line
with its second, between the faults.

Every client has a key of its own, so that its rows of the request log can be held against what it saw: every
request that was sent has one row; an answer that came whole was charged with the tokens that the client read
in `usage`; a cut one with at least one token where text had come. Exits 1 where that is not so, where a
request did not end, or where the gateway does not answer in the end.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from served import ServedGateway, free_ports

STUCK_S = 900.0
"""On two cores at a load of 30 two loads in a row, each with a full proof after a crash, take six minutes."""
FILE = """\
listen: 127.0.0.1:{0}
memory: {{ceiling: 500MiB}}
queue: {{min_dwell: 2s, max_wait: 20s}}
models:
  first: {{recipe: smollm2, context: 2048, port: {1}}}
  second: {{recipe: smollm2, context: {4}, port: {2}}}
  mock: {{url: "http://127.0.0.1:{3}", memory: 1MiB}}
"""


class Mock(http.server.BaseHTTPRequestHandler):
    """An engine that is always there, and wrong when told so."""

    protocol_version = "HTTP/1.1"
    fault = ""

    def do_GET(self) -> None:
        self._send(200, b'{"data": [{"id": "mock"}]}')

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if Mock.fault == "500":
            self._send(500, b'{"error": {"message": "a fault of the mock"}}')
        elif Mock.fault == "hangs up":
            self.close_connection = True
        elif asked.get("stream"):
            self._stream()
        else:
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}
            usage = {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
            self._send(200, json.dumps({"choices": [choice | {"text": "hi"}], "usage": usage}).encode())

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(8):
            delta = {"index": 0, "delta": {"content": "hi "}, "text": "hi ", "finish_reason": None}
            self._event({"choices": [delta]})
            time.sleep(0.05)
            if Mock.fault == "breaks off" and number == 3:
                self.close_connection = True
                return
        self._event({"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]})
        usage = {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
        self._event({"choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, content: object) -> None:
        self._chunk(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


class MockServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # the gateway went in the middle of a stream, as its client did


@dataclass
class Client:
    kind: str
    token: str
    port: int
    counts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    """Of answers that came whole, as their `usage` said."""
    slowest_s: float = 0.0

    def run(self, ends: threading.Event) -> None:
        chance = random.Random(self.kind)
        models = ("first", "second") if self.kind == "anthropic" else ("first", "second", "mock")
        while not ends.is_set():
            began = time.monotonic()
            self.counts["sent"] += 1
            try:
                result = self._ask(chance.choice(models), chance)
            except (OSError, http.client.HTTPException) as error:
                is_stuck = isinstance(error, TimeoutError)
                result = "stuck" if is_stuck else "cut"
            self.counts[result] += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            if result == "refused":
                ends.wait(0.5)  # as a client does that is told to come again

    def _ask(self, model: str, chance: random.Random) -> str:
        text = "Say hello." if self.kind != "long" else "Read this: " + "the quick brown fox " * 60
        is_stream = self.kind in ("stream", "leaver", "slow")
        body: dict[str, object] = {"model": model, "max_tokens": 12, "stream": is_stream}
        path = {"anthropic": "/v1/messages", "text": "/v1/completions"}.get(self.kind, "/v1/chat/completions")
        body |= {"prompt": text} if self.kind == "text" else {"messages": [{"role": "user", "content": text}]}
        if is_stream:
            body["stream_options"] = {"include_usage": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=STUCK_S)
        try:
            headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status != 200:
                answer.read()
                return "refused"
            return self._stream(answer, chance) if is_stream else self._plain(answer)
        finally:
            connection.close()

    def _plain(self, answer: http.client.HTTPResponse) -> str:
        usage = json.loads(answer.read())["usage"]
        # Anthropic's API counts what the engine had in its cache beside the other tokens of the prompt.
        messages = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")
        pairs = ("prompt_tokens", "completion_tokens"), messages
        self.tokens += max(sum(usage.get(name) or 0 for name in names) for names in pairs)
        return "answered"

    def _stream(self, answer: http.client.HTTPResponse, chance: random.Random) -> str:
        leaves_after = chance.randrange(1, 6) if self.kind == "leaver" else None
        events, is_error = 0, False
        while line := answer.readline():
            if not line.startswith(b"data: "):
                continue
            if line.startswith(b"data: [DONE]"):
                answer.read()
                return "answered"
            event = json.loads(line[6:])
            is_error = is_error or "error" in event
            if usage := event.get("usage"):
                self.tokens += usage["prompt_tokens"] + usage["completion_tokens"]
            events += 1
            if leaves_after == events:
                return "left"
            if self.kind == "slow":
                time.sleep(0.1)
        return "refused" if is_error and events == 1 else "cut"


KINDS = ("plain", "stream", "leaver", "slow", "text", "anthropic")
FAULTS = (
    "kill an engine", "mock: 500", "stop an engine", "mock: hangs up", "unload", "mock: breaks off",
    "kill a supervisor", "change the file",
)  # fmt: skip


class Hour(ServedGateway):
    def __init__(self, pulled: Path, folder: Path) -> None:
        self.ports = free_ports(4)
        super().__init__(folder, pulled, self.ports[0])
        self.context = 4096
        self.write_file()
        self.admin = self.key("admin", "--admin")
        self.clients = [Client(kind, self.key(kind), self.ports[0]) for kind in KINDS]
        self.mock = MockServer(("127.0.0.1", self.ports[3]), Mock)
        threading.Thread(target=self.mock.serve_forever, daemon=True).start()
        self.began, self.lines = time.monotonic(), list[str]()
        self.start(subprocess.PIPE)
        threading.Thread(target=self.keep_log, daemon=True).start()

    def write_file(self) -> None:
        self.file.write_text(FILE.format(*self.ports, self.context))

    def keep_log(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.note(line.decode(errors="replace").rstrip())

    def note(self, text: str) -> None:
        self.lines.append(f"{time.monotonic() - self.began:7.1f}  {text}")

    def key(self, name: str, *more: str) -> str:
        command = [sys.executable, "-m", "firesteel", "serve", "key", "add", name, *more, "--json"]
        done = subprocess.run(command, env=self.env, capture_output=True, check=True)
        return str(json.loads(done.stdout)["token"])

    def fault(self, kind: str, chance: random.Random) -> None:
        self.note(f"fault     {kind}")
        if kind.startswith("mock: "):
            Mock.fault = kind.removeprefix("mock: ")
            time.sleep(10)
            Mock.fault = ""
        elif kind == "change the file":
            self.context = 3072 if self.context == 4096 else 4096
            self.write_file()
        elif kind == "unload":
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=60)
            name, headers = chance.choice(("first", "second")), {"Authorization": f"Bearer {self.admin}"}
            connection.request("POST", f"/api/models/{name}/unload", headers=headers)
            connection.getresponse().read()
            connection.close()
        else:
            self.signal("supervisor" if "supervisor" in kind else "engine", kind.startswith("kill"))

    def signal(self, whom: str, is_kill: bool) -> None:
        """To the model that runs now, if one does."""
        for path in (self.home / "services").glob("*/state.json"):
            try:
                state = json.loads(path.read_text())
                if state["ended_at"] is None:
                    os.kill(state[whom]["number"], signal.SIGKILL if is_kill else signal.SIGSTOP)
            except (OSError, ValueError, TypeError, KeyError):
                continue

    def close(self) -> int:
        try:
            return super().close()
        finally:
            self.mock.shutdown()

    def slowest(self) -> list[str]:
        """Where the time of the slowest requests went, by the gateway's own log."""
        with sqlite3.connect(self.home / "requests.db") as log:
            rows = log.execute(
                "SELECT key, model, status, how, waited_s, loaded_s, total_s FROM requests "
                "ORDER BY total_s DESC LIMIT 10"
            ).fetchall()
        head = "| client | model | status | end | waited, s | of that for its load, s | in all, s |"
        return [head, "|---|---|---:|---|---:|---:|---:|"] + [
            f"| {' | '.join(map(str, row[:4]))} | {' | '.join(f'{value:.0f}' for value in row[4:])} |"
            for row in rows
        ]

    def table(self) -> tuple[list[str], list[str]]:
        """Rows for people, and what is wrong."""
        rows, wrong = [], []
        with sqlite3.connect(self.home / "requests.db") as log:
            for client in self.clients:
                counts = client.counts
                found = log.execute(
                    "SELECT how, count(*), total(prompt_tokens) + total(completion_tokens) FROM requests "
                    "WHERE key = ? GROUP BY how",
                    (client.kind,),
                ).fetchall()
                logged = {how: (number, round(tokens)) for how, number, tokens in found}
                whole = log.execute(
                    "SELECT total(prompt_tokens) + total(completion_tokens) FROM requests "
                    "WHERE key = ? AND how = 'whole' AND status = 200",
                    (client.kind,),
                ).fetchone()[0]
                rows.append(
                    f"| {client.kind} | {counts['sent']} | {counts['answered']} | {counts['refused']} "
                    f"| {counts['cut']} | {counts['left']} | {counts['stuck']} | {client.slowest_s:.0f} s "
                    f"| {sum(number for number, _ in logged.values())} | {client.tokens} | {round(whole)} "
                    f"| {sum(tokens for _, tokens in logged.values())} |"
                )
                if sum(number for number, _ in logged.values()) != counts["sent"]:
                    wrong.append(f"{client.kind}: {counts['sent']} were sent, the log has {logged}")
                if counts["stuck"]:
                    wrong.append(f"{client.kind}: {counts['stuck']} did not end within {STUCK_S:.0f} s")
                # Who leaves may have an answer that is whole on our side; all others read what they pay for.
                if round(whole) < client.tokens or (client.kind != "leaver" and round(whole) > client.tokens):
                    wrong.append(f"{client.kind}: {client.tokens} tokens were read, {whole} charged")
        return rows, wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", type=Path, default=Path("~/.firesteel").expanduser())
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults")
    parser.add_argument("--log", type=Path, help="where to keep what the gateway printed")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hour, ends = Hour(asked.home, Path(folder)), threading.Event()
        chance, faults = random.Random(1), Counter[str]()
        threads = [threading.Thread(target=client.run, args=(ends,)) for client in hour.clients]
        until = time.monotonic() + asked.seconds
        try:
            for thread in threads:
                thread.start()
            while (left_s := until - time.monotonic()) > 0:
                time.sleep(min(asked.every, left_s))
                if until - time.monotonic() > asked.every:
                    kind = FAULTS[faults.total() % len(FAULTS)]
                    faults[kind] += 1
                    hour.fault(kind, chance)
        finally:
            ends.set()
            for thread in threads:
                thread.join()
            is_healthy, code = hour.is_healthy(), hour.close()
        print(f"{asked.seconds / 60:.0f} minutes, {faults.total()} faults: {dict(faults)}\n")
        print(
            "| client | sent | answered | refused | cut | left | stuck | slowest | rows in the log "
            "| tokens read | charged for whole answers | charged in all |\n"
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
        )
        rows, wrong = hour.table()
        wrong += [] if is_healthy else ["the gateway did not answer in the end"]
        wrong += [f"the gateway ended with {code}"] if code else []
        print("\n".join([*rows, "", *(f"wrong: {text}" for text in wrong)]))
        print("\n".join(hour.slowest()))
        if asked.log:
            asked.log.write_text("\n".join(hour.lines) + "\n")
        elif wrong:
            print("\n".join(hour.lines[-40:]))
        return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
