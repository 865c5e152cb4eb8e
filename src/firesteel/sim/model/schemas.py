"""Tool calls and JSON by schema: something that the schema allows, with what the question tells."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from firesteel.sim.model.arithmetic import first_sum

_DEPTH = 8
_PLACE = re.compile(r"\b(?:in|for|of|at|to|about) ((?:[A-Z][\w-]+)(?: [A-Z][\w-]+)*)")
_NAMES = re.compile(r"(?<!^)(?<![.?!] )\b[A-Z][a-z]+\b")
_QUOTED = re.compile(r"[\"“`]([^\"”`]+)[\"”`]")


def call_tool(
    tools: Sequence[Mapping[str, Any]], question: str, chosen: str | None
) -> tuple[str, str] | None:
    """The tool to call and its arguments; None when no tool is meant."""
    about = [tool.get("function", tool) for tool in tools]
    named = [each for each in about if each.get("name") == chosen] if chosen else []
    fitting = named or [each for each in about if _is_meant(each, question)]
    if not fitting:
        return None
    schema = fitting[0].get("parameters") or {}
    return str(fitting[0].get("name")), json.dumps(instance(schema, question))


def _is_meant(tool: Mapping[str, Any], question: str) -> bool:
    """A word of its name or its description is in the question."""
    said = re.findall(r"[a-z]{4,}", f"{tool.get('name', '')} {tool.get('description', '')}".lower())
    return bool(set(said) & set(re.findall(r"[a-z]{4,}", question.lower())))


def instance(schema: Mapping[str, Any], question: str, name: str = "", depth: int = 0) -> Any:
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else kind
    if "const" in schema or depth > _DEPTH:
        return schema.get("const")
    if options := schema.get("enum"):
        return next((each for each in options if str(each).lower() in question.lower()), options[0])
    if kind == "object" or "properties" in schema:
        inside = schema.get("properties") or {}
        wanted = schema.get("required") or list(inside)
        return {key: instance(inside.get(key) or {}, question, key, depth + 1) for key in wanted}
    if kind == "array":
        return [instance(schema.get("items") or {}, question, name, depth + 1)]
    if kind in ("integer", "number"):
        return _number(question, whole=kind == "integer")
    return True if kind == "boolean" else None if kind == "null" else _noun(question, name)


def _number(question: str, *, whole: bool) -> int | float:
    said = re.search(r"-?\d+(?:\.\d+)?", question)
    value = float(said[0]) if said else 1.0
    return int(value) if whole or value.is_integer() else value


def _noun(question: str, name: str) -> str:
    """A sum for an expression, else what is quoted, a place, the last name, or all of the question."""
    if re.search(r"expr|formula|calc", name, re.I) and (summed := first_sum(question)):
        return summed[0]
    if found := _QUOTED.search(question) or _PLACE.search(question):
        return found[1]
    names = _NAMES.findall(question)
    return names[-1] if names else question.strip()[:100]
