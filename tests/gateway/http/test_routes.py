from __future__ import annotations

import re

import pytest

from firesteel.gateway.http.routes import ROUTES, Route, TranslatedRoute, find_route, query_model
from firesteel.gateway.interfaces import Rejection

VLLM = """
/v1/chat/completions /v1/completions /v1/responses /v1/embeddings /v2/embed /v1/messages
/v1/messages/count_tokens /pooling /classify /score /v1/score /rerank /v1/rerank /v2/rerank /tokenize
/detokenize /v1/audio/transcriptions /v1/audio/translations
"""
"""What vLLM 0.32.0 answers by POST for whoever uses it (`api_router.py` files of its wheel, 2026-11-15)."""
LLAMA_CPP = """
/v1/completions /completion /v1/chat/completions /v1/responses /v1/audio/transcriptions /v1/messages
/infill /v1/embeddings /rerank /v1/rerank /tokenize /detokenize /apply-template
/v1/chat/completions/input_tokens /v1/responses/input_tokens /v1/messages/count_tokens
"""
"""https://github.com/ggml-org/llama.cpp/blob/b21e4de74567f5eef213765c9476a843c2e43f0d/tools/server/server.cpp"""
SGLANG = """
/v1/completions /v1/chat/completions /v1/embeddings /v1/classify /classify /v1/tokenize /tokenize
/v1/detokenize /detokenize /v1/audio/transcriptions /v1/score /v1/responses /v1/rerank /v1/messages
/v1/messages/count_tokens
"""
"""python/sglang/srt/entrypoints/http_server.py of cce0a1244b5a3ee60411fb403f65f856a1d012f0"""
OPENAI = "/v1/audio/speech /v1/images/generations /v1/images/edits /v1/images/variations"


def test_every_path_is_some_engines() -> None:
    known = {path.encode() for path in (VLLM + LLAMA_CPP + SGLANG + OPENAI).split()}
    translated = {path for path, route in ROUTES.items() if isinstance(route, TranslatedRoute)}
    assert set(ROUTES) - translated == known
    assert translated == {b"/api/chat", b"/api/generate", b"/api/embed", b"/api/embeddings"}


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_all_are_posted(path: bytes) -> None:
    assert isinstance(find_route(b"POST", path), Route)
    for method in (b"GET", b"PUT", b"DELETE", b"OPTIONS", b"post", b""):
        rejection = find_route(method, path)
        assert isinstance(rejection, Rejection)
        assert (rejection.status, rejection.kind) == (405, "method_not_allowed")
        assert "Use POST" in rejection.why


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_only_exact_bytes_are_a_route(path: bytes) -> None:
    spellings = [
        path + b"/",
        b"/" + path,
        path.upper(),
        path.replace(b"/", b"//"),
        path.replace(b"/", b"/./", 1),
        b"/x/.." + path,
        re.sub(rb"[a-z]", lambda hit: b"%%%02x" % hit[0][0], path, count=1),
        path + b"%00",
        path + b"?model=a",
        path + b";a",
        path + b" ",
        path[1:],
        b"http://127.0.0.1" + path,
    ]
    assert [find_route(b"POST", spelling) for spelling in spellings] == [None] * len(spellings)


def test_families_and_bodies() -> None:
    def known(path: bytes) -> tuple[str, str, bool, str]:
        route = find_route(b"POST", path)
        assert isinstance(route, Route)
        return route.family, route.body, route.is_streamable, route.kind

    assert known(b"/v1/messages") == ("anthropic", "json", True, "message")
    assert known(b"/v1/messages/count_tokens") == ("anthropic", "json", False, "count")
    assert known(b"/v1/chat/completions") == ("openai", "json", True, "chat")
    assert known(b"/v1/embeddings") == ("openai", "json", False, "embedding")
    assert known(b"/v1/audio/transcriptions") == ("openai", "multipart", True, "transcription")
    assert known(b"/v1/images/edits") == ("openai", "either", True, "image")


def test_administrative_paths_are_no_routes() -> None:
    paths = (
        b"/slots /props /sleep /wake_up /metrics /v1/load_lora_adapter /collective_rpc /update_weights /tools"
    )
    assert {find_route(b"POST", path) for path in paths.split()} == {None}


@pytest.mark.parametrize(
    ("method", "path", "is_route"),
    [
        (b"GET", b"/v1/responses/resp_123-a", True),
        (b"POST", b"/v1/responses/resp_123/cancel", True),
        (b"POST", b"/v1/responses/resp_123", False),
        (b"GET", b"/v1/responses/resp_123/cancel", False),
    ],
)
def test_stored_responses(method: bytes, path: bytes, is_route: bool) -> None:
    found = find_route(method, path)
    assert isinstance(found, Route if is_route else Rejection)
    if isinstance(found, Route):
        assert found.body == "none"


@pytest.mark.parametrize(
    "rest", [b"", b"a/", b"/cancel", b"..", b"a%2f", b"a/cancel/", b"a//cancel", b"\xe9", b"a/b"]
)
def test_odd_stored_responses(rest: bytes) -> None:
    assert find_route(b"GET", b"/v1/responses/" + rest) is None


@pytest.mark.parametrize(
    ("query", "model"),
    [
        (b"model=coder", "coder"),
        (b"a=b&model=org%2Fname&c", "org/name"),
        (b"model=a+b", "a b"),
        (b"model=", None),
        (b"", None),
        (b"xmodel=a", None),
        (b"model=a&model=b", None),
        (b"model=%ff", None),
        (b"model=%zz", "%zz"),
        (b"&" * 100_000 + b"model=a", None),
    ],
)
def test_a_query_may_name_the_model(query: bytes, model: str | None) -> None:
    assert query_model(query) == model
