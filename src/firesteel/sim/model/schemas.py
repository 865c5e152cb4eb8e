"""Tool calls and JSON by schema: values that the schema allows, taken from the question where possible."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.sim.model.arithmetic import first_sum

_MAX_DEPTH = 8
_PLACE = re.compile(r"\b(?:in|for|of|at|to|about) ((?:[A-Z][\w-]+)(?: [A-Z][\w-]+)*)")
_NAMES = re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][a-z]+\b")
_QUOTED = re.compile(r"[\"“`]([^\"”`]+)[\"”`]")


def call_tool(
    tools: Sequence[Mapping[str, Any]], question: str, chosen: str | None
) -> tuple[str, str] | None:
    """The tool to call and its arguments; None when no tool is meant."""
    functions = [tool.get("function", tool) for tool in tools]
    named = [function for function in functions if function.get("name") == chosen] if chosen else []
    matching = named or [function for function in functions if _is_meant(function, question)]
    if not matching:
        return None
    schema = matching[0].get("parameters") or {}
    return str(matching[0].get("name")), json.dumps(instance(schema, question))


def _is_meant(function: Mapping[str, Any], question: str) -> bool:
    """A word of its name or its description is in the question."""
    about = f"{function.get('name', '')} {function.get('description', '')}".lower()
    return bool(set(re.findall(r"[a-z]{4,}", about)) & set(re.findall(r"[a-z]{4,}", question.lower())))


def instance(schema: Mapping[str, Any], question: str, name: str = "", depth: int = 0) -> Any:
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if "const" in schema or depth > _MAX_DEPTH:
        return schema.get("const")
    if options := schema.get("enum"):
        return next((value for value in options if str(value).lower() in question.lower()), options[0])
    if kind == "object" or "properties" in schema:
        properties = schema.get("properties") or {}
        required = schema.get("required") or list(properties)
        return {key: instance(properties.get(key) or {}, question, key, depth + 1) for key in required}
    if kind == "array":
        return [instance(schema.get("items") or {}, question, name, depth + 1)]
    if kind in ("integer", "number"):
        return _number(question, whole=kind == "integer")
    return True if kind == "boolean" else None if kind == "null" else _noun(question, name)


def _number(question: str, *, whole: bool) -> int | float:
    number = re.search(r"-?\d+(?:\.\d+)?", question)
    value = float(number[0]) if number else 1.0
    return int(value) if whole or value.is_integer() else value


def _noun(question: str, name: str) -> str:
    """A sum for an expression, else a quoted text, a place, the last name, or the whole question."""
    if re.search(r"expr|formula|calc", name, re.I) and (result := first_sum(question)):
        return result[0]
    if match := _QUOTED.search(question) or _PLACE.search(question):
        return match[1]
    names = _NAMES.findall(question)
    return names[-1] if names else question.strip()[:100]
