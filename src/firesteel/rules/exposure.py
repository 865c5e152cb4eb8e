"""What a launch exposes: secrets in plain text, open ports, endpoints without a key, remote code that may
change any day.

Findings show only the beginning of a secret, because they are printed, logged and pasted into issues.
Variables of the shell (`$HF_TOKEN`) and placeholders of a guide (`hf_xxx`, `<token>`) are not secrets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from firesteel.launch import ENGINE_KEY_VARIABLES, FlagValue, is_hub_model
from firesteel.rules.context import Context, Match

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?P<kind>hf_|sk-|nvapi-|gh[pousr]_|github_pat_)(?P<rest>[A-Za-z0-9][A-Za-z0-9_-]{15,})(?![A-Za-z0-9])"
)
_PLACEHOLDER = re.compile(r"your|token|secret|example|here|change|xxx|\*\*\*", re.IGNORECASE)
_VARIABLE = re.compile(r"[$`<{]")
_KEY_FLAGS = ("api-key", "admin-api-key")
_ASKING_FLAGS = ("api-key", "api-key-file")
_EVERYWHERE = ("0.0.0.0", "[::]", "")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ON = ("1", "true")
_COMMIT = re.compile(r"[0-9a-f]{7,40}", re.IGNORECASE)


def tokens_written_out(context: Context) -> list[Match]:
    """Tokens of the Hub, NVIDIA, GitHub and in the format of OpenAI, in a variable or a flag."""
    return [_masked(context, where, name, kind) for where, name, kind in _tokens(context)]


def _tokens(context: Context) -> Iterator[tuple[str, str, str]]:
    for name, value in context.launch.env.items():
        if kind := _kind(value):
            yield "env", name, kind
    for name, given in context.launch.flags.items():
        if kind := next(filter(None, map(_kind, _texts(given))), ""):
            yield "flag", name, kind


def _kind(text: str) -> str:
    """The prefix of a token; empty for a placeholder."""
    token = _TOKEN.search(text)
    if token is None or _PLACEHOLDER.search(token["rest"]) or len(set(token["rest"])) < 6:
        return ""
    return token["kind"]


def _texts(given: FlagValue) -> list[str]:
    if isinstance(given, list):
        return [str(item) for item in given]
    return [given] if isinstance(given, str) else []


def _masked(context: Context, where: str, name: str, kind: str) -> Match:
    typed = f"--{name} {kind}..." if where == "flag" else f"{name}={kind}..."
    shown = f"-e {typed}" if where == "env" and context.launch.container else typed
    return Match(f"{where}:{name}", shown, name, f"{kind}...")


def keys_written_out(context: Context) -> list[Match]:
    """An API key in any other format, in plain text."""
    flags, env = context.launch.flags, context.launch.env
    given = [("flag", name, text) for name in _KEY_FLAGS if name in flags for text in _texts(flags[name])]
    given += [("env", name, env[name]) for name in ENGINE_KEY_VARIABLES.values() if name in env]
    return [
        _masked(context, where, name, "")
        for where, name, text in given
        if text and not _VARIABLE.search(text) and not _kind(text)
    ]


def unpinned_remote_code(context: Context) -> list[Match]:
    """Runs Python code from a Hub repository without pinning a commit."""
    launch = context.launch
    if launch.flags.get("trust-remote-code") is not True or not is_hub_model(launch.model):
        return []
    if launch.env.get("HF_HUB_OFFLINE", "").lower() in _ON:
        return []
    pins = (launch.flags.get(name) for name in ("revision", "code-revision"))
    if any(isinstance(pin, str) and (_COMMIT.fullmatch(pin) or _VARIABLE.search(pin)) for pin in pins):
        return []
    return [Match("flag:trust-remote-code", "--trust-remote-code", "trust-remote-code", launch.model)]


def developer_mode(context: Context) -> list[Match]:
    """The variable that enables vLLM's endpoints for sleep mode and remote calls."""
    name = "VLLM_SERVER_DEV_MODE"
    value = context.launch.env.get(name, "")
    return [Match(f"env:{name}", f"{name}={value}", name, value)] if value.lower() in _ON else []


def published_everywhere(context: Context) -> list[Match]:
    """A port open on every interface.

    `8000:8000` and `8000` have no address and `0.0.0.0:8000:8000` has every one; neither has `-P`, and on
    the host's network nothing needs to be published.
    """
    container = context.launch.container
    if container is None:
        return []
    for published in container.publish:
        parts = published.rsplit(":", 2)
        if len(parts) < 3 or parts[0] in _EVERYWHERE:
            return [Match("option:publish", f"-p {published}", "publish", f"-p {published}")]
    if ("publish-all", None) in container.options:
        return [Match("option:publish-all", "-P", "publish-all", "-P")]
    if container.network == "host" and context.launch.flags.get("host") not in _LOOPBACK:
        return [Match("option:network", "--network host", "network", "--network host")]
    return []


def asks_for_a_key(context: Context) -> list[Match]:
    """A key that is not empty: engines treat an empty one as none."""
    flags, env = context.launch.flags, context.launch.env
    for name in _ASKING_FLAGS:
        if name in flags and flags[name] not in ("", [""]):
            return [Match(f"flag:{name}", f"--{name}", name)]
    return [Match(f"env:{name}", name, name) for name in ENGINE_KEY_VARIABLES.values() if env.get(name)]


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {
    "tokens-written-out": tokens_written_out,
    "keys-written-out": keys_written_out,
    "unpinned-remote-code": unpinned_remote_code,
    "developer-mode": developer_mode,
    "published-everywhere": published_everywhere,
    "asks-for-a-key": asks_for_a_key,
}
