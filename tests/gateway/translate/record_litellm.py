"""Records what litellm's `ollama_chat` and `ollama` send, and reads what the gateway answers.

    python record_litellm.py http://127.0.0.1:8080 MODEL recorded/litellm-VERSION.json

Run by hand, in an environment with litellm (750 MB, so not a dependency of the tests) and without network:
LITELLM_LOCAL_MODEL_COST_MAP=True. A server in between keeps every request; `test_ollama.py` reads the file.
"""

import importlib.metadata
import json
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import litellm  # type: ignore[import-not-found]  # in an environment of its own

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
HI = [{"role": "user", "content": "Say hi."}]
CALL = {"id": "call_9", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
CASES = {
    "chat": {"messages": HI, "max_tokens": 8, "temperature": 0},
    "stream": {"messages": HI, "max_tokens": 8, "stream": True},
    "tools": {"messages": HI, "max_tokens": 8, "tools": TOOLS},
    "tools stream": {"messages": HI, "max_tokens": 8, "tools": TOOLS, "stream": True},
    "tool result": {
        "messages": [
            *HI,
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_9", "name": "weather", "content": "sunny"},
        ],
        "max_tokens": 8,
        "tools": TOOLS,
    },
    "json": {"messages": HI, "max_tokens": 8, "response_format": {"type": "json_object"}},
    "schema": {
        "messages": HI,
        "max_tokens": 8,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    "image": {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is this?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DOT}"}},
                ],
            }
        ],
        "max_tokens": 8,
    },
    "think": {"messages": HI, "max_tokens": 8, "reasoning_effort": "low"},
    "options": {
        "messages": HI,
        "max_tokens": 8,
        "top_p": 0.9,
        "stop": ["END"],
        "seed": 7,
        "keep_alive": "10m",
    },
}


def record(upstream: str, seen: list[dict[str, object]]) -> ThreadingHTTPServer:
    class Recorder(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = urllib.request.Request(upstream + self.path, body or None, method=self.command)
            request.add_header("content-type", self.headers.get("content-type", "application/json"))
            try:
                answer = urllib.request.urlopen(request, timeout=300)
            except urllib.error.HTTPError as error:
                answer = error
            data = answer.read()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            if body:
                seen.append({"path": self.path, "body": json.loads(body), "status": answer.status})

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(upstream: str, model: str, file: str) -> None:
    seen: list[dict[str, object]] = []
    server = record(upstream, seen)
    base = f"http://127.0.0.1:{server.server_address[1]}"
    kept = []
    for provider in ("ollama_chat", "ollama"):
        for name, case in CASES.items():
            if provider == "ollama" and "tool" in name:
                continue  # litellm writes tools into the prompt there
            seen.clear()
            try:
                answer = litellm.completion(
                    model=f"{provider}/{model}", api_base=base, api_key="fs-x", **case
                )
                if case.get("stream"):
                    answer = "".join(part.choices[0].delta.content or "" for part in answer)
                else:
                    answer = answer.choices[0].message.content
                answer = f"{len(answer or '')} characters"
            except Exception as error:
                answer = f"{type(error).__name__}: {str(error)[:200]}"
            sys.stdout.write(f"{provider:<12} {name:<14} {[each['status'] for each in seen]} {answer}\n")
            kept += [
                {"client": provider, "case": name, **each} for each in seen if each["path"] != "/api/show"
            ]
    version = importlib.metadata.version("litellm")
    Path(file).write_text(json.dumps({"litellm": version, "model": model, "requests": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
