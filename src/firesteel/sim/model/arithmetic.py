"""Sums in a sentence: `12 * 17`, `2+2`, `7 times 8`, `(3 + 4) * 5`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

_SIGNS = {
    r"\btimes\b|\bmultiplied by\b|[\u00d7x](?=\s*\d)|\u00b7": "*", r"\bplus\b": "+", r"\bminus\b": "-",
    r"\bdivided by\b|\u00f7": "/",
}  # fmt: skip
_SUM = re.compile(r"\(*\s*\d[\d.]*\)*(?:\s*[-+*/]\s*\(*\s*\d[\d.]*\)*)+")
_OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_MAX_CHARS = 80


def first_sum(text: str) -> tuple[str, str] | None:
    """The first sum in a text, and its value."""
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    for pattern, sign in _SIGNS.items():
        plain = re.sub(rf"(?<=[\d) ])\s*(?:{pattern})\s*(?=[\d( ])", f" {sign} ", plain, flags=re.I)
    for match in _SUM.finditer(plain):
        expression = match[0].strip().rstrip(".")
        if len(expression) <= _MAX_CHARS and (value := _value(expression)) is not None:
            text = str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"
            return " ".join(expression.split()), text
    return None


def _value(expression: str) -> Fraction | None:
    try:
        return _evaluate(ast.parse(expression, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _evaluate(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("not a sum")
