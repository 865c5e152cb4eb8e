"""Values of llama.cpp and SGLang that have a syntax of their own: JSON, `KEY=TYPE:VALUE`, `PATTERN=BUFFER`.

Their parsers take any text and stop on a malformed one when the server starts. vLLM's JSON flags have
schemas, see `release_predicates`. SGLang's: `server_args.py`, `disaggregation/kv_events.py` and
`configs/load_config.py` of 2026-11, seen 2026-11-16.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from firesteel.engines.flags import name_set
from firesteel.launch import EngineName
from firesteel.rules.context import Context, Match

_KV_OVERRIDE = re.compile(
    r"[^=,]{1,127}=(?:int:-?\d+|float:[-+.\deE]+|bool:(?:true|false)|str:.{0,127})", re.DOTALL
)
_PLACEHOLDER = re.compile(r"[$`<>]|\{\{|\.\.\.")


def _json_error(text: str) -> str:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return "this is not JSON; the shell takes its quotes away unless it is quoted as a whole"
    return "" if isinstance(parsed, dict) else "it takes a JSON object"


_GRAPH_KEYS = name_set(
    "backend max_bs bs tc_compiler full_prefill_max_req full_prefill_prefix_chunk_tokens max_context_size"
    " max_seq_len"
)
"""Of `--cuda-graph-config` in any release from 0.5.14 to 0.5.23."""


def _graph_config_error(text: str) -> str:
    """`{"decode": {"max_bs": 16}}`: the phase, then its settings; anything else is refused."""
    if error := _json_error(text):
        return error
    for phase, settings in json.loads(text).items():
        if phase not in ("decode", "prefill"):
            return f"`{phase}` is no phase: decode or prefill"
        if not isinstance(settings, dict):
            return f"`{phase}` takes a JSON object"
        if unknown := sorted(settings.keys() - _GRAPH_KEYS):
            return f"no release has the key `{unknown[0]}` of `{phase}`"
    return ""


def _json_or_file_error(text: str) -> str:
    return "" if text.startswith("@") else _json_error(text)


def _media_error(text: str) -> str:
    """`{"image": {"max_pixels": 1048576}}`: the settings of each kind of media are an object."""
    if error := _json_error(text):
        return error
    kinds = [
        kind for kind in ("image", "video", "audio") if not isinstance(json.loads(text).get(kind, {}), dict)
    ]
    return f"`{kinds[0]}` takes a JSON object" if kinds else ""


_EVENT_KEYS: dict[str, type] = {
    "publisher": str, "endpoint": str, "replay_endpoint": str, "buffer_steps": int, "hwm": int,
    "max_queue_size": int, "topic": str,
}  # fmt: skip


def _events_error(text: str) -> str:
    """Other keys are ignored, but these must be of their type."""
    if error := _json_error(text):
        return error
    for key, value in json.loads(text).items():
        if _EVENT_KEYS.get(key) is int and not re.fullmatch(r"-?\d+", str(value)):
            return f"`{key}` takes a whole number"
        if _EVENT_KEYS.get(key) is str and not isinstance(value, str) and value is not None:
            return f"`{key}` takes a text"
    return ""


def _kv_override_error(text: str) -> str:
    # A comma may separate overrides, or belong to the text of one.
    items = text.split(",") if ":str:" not in text and "=str:" not in text else [text]
    wrong = next((item for item in items if not _KV_OVERRIDE.fullmatch(item)), None)
    return (
        f"`{wrong}` is not KEY=TYPE:VALUE with a type of int, float, bool (true, false) or str"
        if wrong
        else ""
    )


def _tensor_override_error(text: str) -> str:
    wrong = next((item for item in text.split(",") if "=" not in item), None)
    return f"`{wrong}` is not PATTERN=BUFFER, such as `exps=CPU`" if wrong is not None else ""


_SYNTAX: dict[EngineName, dict[str, Callable[[str], str]]] = {
    "llamacpp": {
        "chat-template-kwargs": _json_error,
        "override-kv": _kv_override_error,
        "override-tensor": _tensor_override_error,
        "spec-draft-override-tensor": _tensor_override_error,
    },
    "sglang": {
        "cuda-graph-config": _graph_config_error,
        "json-model-override-args": _json_error,
        "preferred-sampling-params": _json_error,
        "default-chat-template-kwargs": _json_error,
        "limit-mm-data-per-request": _json_error,
        "extra-metric-labels": _json_error,
        "model-loader-extra-config": _json_error,
        "hisparse-config": _json_error,
        "modelexpress-config": _json_error,
        "hicache-storage-backend-extra-config": _json_or_file_error,
        "mm-process-config": _media_error,
        "kv-events-config": _events_error,
    },
    "vllm": {},
}


def malformed_values(context: Context) -> list[Match]:
    return list(_malformed(context)) if not context.is_own_build else []


def _malformed(context: Context) -> Iterator[Match]:
    syntax = _SYNTAX[context.launch.engine]
    for name, given in context.launch.flags.items():
        find_error = syntax.get(name)
        for item in given if isinstance(given, list) else [given]:
            text = json.dumps(item) if isinstance(item, dict) else item
            if find_error is None or not isinstance(text, str) or _PLACEHOLDER.search(text):
                continue
            if error := find_error(text):
                yield Match(f"flag:{name}", f"--{name} {text}"[:120], f"--{name}", error)


PREDICATES: dict[str, Callable[[Context], list[Match]]] = {"malformed-values": malformed_values}
