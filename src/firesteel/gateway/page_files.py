"""The files of the web page, as responses. Public, and allowed to load nothing from anywhere else."""

from __future__ import annotations

from collections.abc import Mapping

from firesteel.gateway.interfaces import GatewayResponse

_TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    b"trusted-types 'none'"
)
_HEADERS = (
    (b"Content-Security-Policy", _POLICY),
    (b"X-Content-Type-Options", b"nosniff"),
    (b"Referrer-Policy", b"no-referrer"),
    (b"Cross-Origin-Opener-Policy", b"same-origin"),
    (b"Cross-Origin-Resource-Policy", b"same-origin"),
    (b"Cache-Control", b"no-cache"),
)


def page_responses(files: Mapping[str, bytes]) -> dict[bytes, GatewayResponse]:
    """`files` by name. `index.html` is at `/`, the others are below `/page/`."""
    return {
        b"/" if name == "index.html" else f"/page/{name}".encode(): GatewayResponse(
            200, content, _TYPES[name.rpartition(".")[2]], _HEADERS
        )
        for name, content in files.items()
    }
