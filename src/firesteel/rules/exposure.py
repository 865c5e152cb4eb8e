"""What a launch lets others see, use or run: secrets that are written out, doors without a key, code that its
author may change tomorrow.

A secret is only shown by its beginning: a finding is printed, kept in logs and pasted into issues. What the
shell fills in (`$HF_TOKEN`) and what a guide leaves open (`hf_xxx`, `<token>`) is not written out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from firesteel.launch import FlagValue
from firesteel.rules.context import Context, Match

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?P<kind>hf_|sk-|nvapi-|gh[pousr]_|github_pat_)(?P<rest>[A-Za-z0-9][A-Za-z0-9_-]{15,})(?![A-Za-z0-9])"
)
_STAND_IN = re.compile(r"your|token|secret|example|here|change|xxx|\*\*\*", re.IGNORECASE)
_LEFT_OPEN = re.compile(r"[$`<{]")
_KEY_FLAGS = ("api-key", "admin-api-key")
_KEY_VARIABLES = ("VLLM_API_KEY", "LLAMA_API_KEY")
_ON = ("1", "true")
_COMMIT = re.compile(r"[0-9a-f]{7,40}", re.IGNORECASE)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_id(model: str) -> bool:
    """`org/model`: fetched from the Hub, unless a folder of that name lies there."""
    return bool(_HUB_ID.fullmatch(model)) and not model.endswith(".gguf")


def tokens_written_out(scene: Context) -> list[Match]:
    """Tokens of the Hub, of NVIDIA, of GitHub and of OpenAI's shape, in a variable or a flag."""
    return [_masked(scene, where, name, kind) for where, name, kind in _tokens(scene)]


def _tokens(scene: Context) -> Iterator[tuple[str, str, str]]:
    for name, value in scene.launch.env.items():
        if kind := _kind(value):
            yield "env", name, kind
    for name, given in scene.launch.flags.items():
        if kind := next(filter(None, map(_kind, _texts(given))), ""):
            yield "flag", name, kind


def _kind(text: str) -> str:
    """The beginning that tells whose token it is; nothing for a stand-in."""
    found = _TOKEN.search(text)
    if found is None or _STAND_IN.search(found["rest"]) or len(set(found["rest"])) < 6:
        return ""
    return found["kind"]


def _texts(given: FlagValue) -> list[str]:
    return (
        [str(each) for each in given]
        if isinstance(given, list)
        else [given]
        if isinstance(given, str)
        else []
    )


def _masked(scene: Context, where: str, name: str, kind: str) -> Match:
    typed = f"--{name} {kind}..." if where == "flag" else f"{name}={kind}..."
    shown = f"-e {typed}" if where == "env" and scene.launch.container else typed
    return Match(f"{where}:{name}", shown, name, f"{kind}...")


def keys_written_out(scene: Context) -> list[Match]:
    """An API key of any other shape that stands in the text itself."""
    flags, env = scene.launch.flags, scene.launch.env
    given = [("flag", name, text) for name in _KEY_FLAGS if name in flags for text in _texts(flags[name])]
    given += [("env", name, env[name]) for name in _KEY_VARIABLES if name in env]
    return [
        _masked(scene, where, name, "")
        for where, name, text in given
        if text and not _LEFT_OPEN.search(text) and not _kind(text)
    ]


def unpinned_remote_code(scene: Context) -> list[Match]:
    """Python from a Hub repository is run, and no commit says which."""
    launch = scene.launch
    if launch.flags.get("trust-remote-code") is not True or not is_hub_id(launch.model):
        return []
    if launch.env.get("HF_HUB_OFFLINE", "").lower() in _ON:
        return []
    pins = (launch.flags.get(name) for name in ("revision", "code-revision"))
    if any(isinstance(pin, str) and (_COMMIT.fullmatch(pin) or _LEFT_OPEN.search(pin)) for pin in pins):
        return []
    return [Match("flag:trust-remote-code", "--trust-remote-code", "trust-remote-code", launch.model)]


def developer_mode(scene: Context) -> list[Match]:
    """vLLM's switch for endpoints that put it to sleep or call into it."""
    name = "VLLM_SERVER_DEV_MODE"
    value = scene.launch.env.get(name, "")
    return [Match(f"env:{name}", f"{name}={value}", name, value)] if value.lower() in _ON else []


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "tokens-written-out": tokens_written_out,
    "keys-written-out": keys_written_out,
    "unpinned-remote-code": unpinned_remote_code,
    "developer-mode": developer_mode,
}
