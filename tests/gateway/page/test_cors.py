"""A page of another origin in a real browser: it may use the models, and never the admin API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser

from firesteel.edge.home import Home
from firesteel.gateway.keys import add_key, keys_path
from tests.gateway.page.conftest import WAIT_MS, Serve, wait_for_key
from tests.http_thread import QuietHandler, serving_http

EVENTS = (
    b'data: {"choices":[{"delta":{"content":"one "}}]}\n\ndata: {"choices":[{"delta":{"content":"two"}}]}\n\n'
)

FETCH = """async ([url, key, body]) => {
  const options = key === null ? {} : {headers: {Authorization: `Bearer ${key}`}};
  if (body !== null) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  try {
    const response = await fetch(url, options);
    let text = "";
    const decoder = new TextDecoder();
    for (const reader = response.body.getReader(); ;) {
      const {done, value} = await reader.read();
      if (done) return [response.status, text];
      text += decoder.decode(value, {stream: true});
    }
  } catch (error) {
    return [0, String(error)];
  }
}"""


class Site(QuietHandler):
    """An empty page, and a server of a model that lets every page read its answers, as engines do."""

    def do_GET(self) -> None:
        self._send(b"<!doctype html><title>page</title>", "text/html")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(EVENTS + b"data: [DONE]\n\n", "text/event-stream")

    def _send(self, body: bytes, kind: str) -> None:
        self.send(body, Content_Type=kind, Access_Control_Allow_Origin="*")


@contextmanager
def site() -> Iterator[int]:
    with serving_http(Site) as url:
        yield int(url.rpartition(":")[2])


def test_a_page_of_a_listed_origin_uses_the_models(browser: Browser, serve: Serve) -> None:
    with site() as port:
        text = f"cors: ['http://localhost:{port}']\nmodels: {{far: {{url: 'http://127.0.0.1:{port}'}}}}\n"
        with serve(text) as gateway:
            _, key = add_key(keys_path(Home(gateway.home)), "page")
            _, admin = add_key(keys_path(Home(gateway.home)), "me", scope="admin")
            wait_for_key(gateway.url, admin)
            listed, other = browser.new_page(), browser.new_page()
            listed.goto(f"http://localhost:{port}/")
            other.goto(f"http://127.0.0.1:{port}/")
            chat, models, state = f"{gateway.url}/v1/chat/completions", "/v1/models", "/api/state"
            body = {"model": "far", "stream": True, "messages": [{"role": "user", "content": "hi"}]}

            def fetch(url: str, key: str | None, body: object = None) -> tuple[int, str]:
                status, answer = listed.evaluate(FETCH, [url, key, body])
                return status, answer

            listed.wait_for_function(  # until the gateway has seen the keys
                "async url => (await fetch(url)).status === 401",
                arg=f"{gateway.url}{models}",
                timeout=WAIT_MS,
            )
            assert fetch(f"{gateway.url}{models}", key)[0] == 200
            status, answer = fetch(chat, key, body)
            assert status == 200 and "one " in answer and "[DONE]" in answer
            status, answer = fetch(chat, "wrong", body)
            assert status == 401 and "invalid_api_key" in answer
            for path in (state, "/metrics", "/api/requests"):
                assert fetch(f"{gateway.url}{path}", admin) == (0, "TypeError: Failed to fetch")
            assert other.evaluate(FETCH, [chat, key, body]) == [0, "TypeError: Failed to fetch"]
            assert other.evaluate(FETCH, [f"{gateway.url}{models}", key, None])[0] == 0
            listed.close()
            other.close()
