"""The web page at `/` of the gateway: HTML, CSS and JavaScript modules, served as they are.

`read_files` reads them, `page_responses` makes responses of them, and `run_command` answers what only the
planner knows, in a separate process: the gateway's stays small. The files are public, and may load nothing
from anywhere else. Who starts the gateway passes files and `run_command` in. `DESIGN.md` has the rules.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from firesteel.gateway.interfaces import GatewayResponse

_SUFFIXES = (".html", ".css", ".js", ".svg")


def read_files() -> dict[str, bytes]:
    """By name."""
    folder = Path(__file__).parent
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES}


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


async def run_command(arguments: Sequence[str], text: bytes) -> bytes:
    """Runs `firesteel` in a separate process. Its standard output, whatever its exit code: with `--json` a
    failure is also a document.

    It reads `text` from a file: uvloop raises when a command ends before it has read a pipe.
    """
    with tempfile.TemporaryFile() as file:
        file.write(text)
        file.seek(0)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "firesteel", *arguments, stdin=file, stdout=PIPE, stderr=DEVNULL
        )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:  # the request was cancelled
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return output
