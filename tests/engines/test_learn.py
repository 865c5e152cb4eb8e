"""The reader of `llama-server --help`, held against the sources of the same build."""

from __future__ import annotations

import subprocess

import pytest

from firesteel.edge.home import Home
from firesteel.engines.llamacpp import learn
from firesteel.engines.schema.releases import find_schema
from firesteel.engines.schema.symbols import Flag, SymbolValue
from firesteel.errors import FiresteelError

# llama.cpp's own parser prints its help and exits. `CommonParams` holds its struct right after Python's head
# of an object, and 12 is the server among the programs of b11549.
PRINT = """
import ctypes, xllamacpp
library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
parse = library._Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E
parse.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
params = xllamacpp.CommonParams()
words = (ctypes.c_char_p * 3)(b"llama-server", b"--help", None)
parse(2, words, id(params) + object.__basicsize__, 12, None)
"""
FACTS = ("takes", "aliases", "negatives", "variables", "deprecated")


@pytest.mark.real
def test_what_the_real_program_prints_is_what_its_sources_say(pulled: Home) -> None:
    python = next(pulled.engines.glob("*/bin/python"))
    text = subprocess.run([python, "-c", PRINT], check=True, capture_output=True, text=True).stdout
    schema, known = learn.learn_from_help("11549", text), find_schema("llamacpp", "11549")
    assert known is not None and known.is_exact
    assert schema.variables.keys() == known.variables.keys()
    parsed = {name: [getattr(flag, fact) for fact in FACTS] for name, flag in schema.flags.items()}
    assert parsed == {name: [getattr(flag, fact) for fact in FACTS] for name, flag in known.flags.items()}
    assert schema.names("cache-type-k") == known.names("cache-type-k")


BOOL = SymbolValue("bool")


@pytest.mark.parametrize(
    ("head", "about", "flag"),
    [
        (
            "-c,    --ctx-size N",
            "how long (env: LLAMA_ARG_CTX_SIZE)",
            Flag("ctx-size", SymbolValue(), aliases=("-c",), variables=("LLAMA_ARG_CTX_SIZE",)),
        ),
        ("--verbose-prompt", "say more", Flag("verbose-prompt", BOOL, "nothing")),
        (
            "-kvo,  --kv-offload, -nkvo, --no-kv-offload",
            "DEPRECATED: where",
            Flag("kv-offload", BOOL, "nothing", ("-kvo",), ("-nkvo", "--no-kv-offload"), deprecated=True),
        ),
        ("--jinja, --no-jinja", "how", Flag("jinja", BOOL, "nothing", (), ("--no-jinja",))),
        ("--no-host", "skip it", Flag("no-host", BOOL, "nothing")),
        (
            "-fa,   --flash-attn [on|off]",
            "",
            Flag("flash-attn", SymbolValue("str", ("off", "on")), aliases=("-fa",)),
        ),
        ("--range START END", "from, to", Flag("range", SymbolValue(), "many")),
        (
            "-ot,   --override-tensor <a b>=<c>,...",
            "",
            Flag("override-tensor", SymbolValue(), aliases=("-ot",)),
        ),
        ("--old N", "the argument has been removed", None),
    ],
)
def test_lines(head: str, about: str, flag: Flag | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let through although there is only one. A long head has a line of its own."""
    monkeypatch.setattr(learn, "self_check", lambda schema, *_, **__: schema)
    lines = [head.ljust(40) + about] if len(head) < 38 else [head, " " * 40 + about]
    read = learn.learn_from_help("1", "\n".join(["----- common params -----", "", *lines]))
    assert list(read.flags.values()) == ([flag] if flag else [])


@pytest.mark.parametrize(
    "text", ["", "error while loading shared libraries: libcuda.so.1", "--model M\n--port N\n"]
)
def test_text_that_is_not_help_fails_loudly(text: str) -> None:
    with pytest.raises(FiresteelError, match=r"was not found in the sources of llama\.cpp 1"):
        learn.learn_from_help("1", text)
