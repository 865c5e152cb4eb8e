"""Sums that stand in a sentence: `12 * 17`, `2+2`, `7 times 8`, `(3 + 4) * 5`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction

_WORDS = {
    r"\btimes\b|\bmultiplied by\b|[\u00d7x](?=\s*\d)|\u00b7": "*", r"\bplus\b": "+", r"\bminus\b": "-",
    r"\bdivided by\b|\u00f7": "/",
}  # fmt: skip
_SUM = re.compile(r"\(*\s*\d[\d.]*\)*(?:\s*[-+*/]\s*\(*\s*\d[\d.]*\)*)+")
_DOES: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_LONGEST = 80


def first_sum(text: str) -> tuple[str, str] | None:
    """The first sum in a text, and what it comes to."""
    plain = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    for pattern, sign in _WORDS.items():
        plain = re.sub(rf"(?<=[\d) ])\s*(?:{pattern})\s*(?=[\d( ])", f" {sign} ", plain, flags=re.I)
    for match in _SUM.finditer(plain):
        said = match[0].strip().rstrip(".")
        if len(said) <= _LONGEST and (value := _value(said)) is not None:
            return " ".join(said.split()), _text(value)
    return None


def _value(said: str) -> Fraction | None:
    try:
        return _of(ast.parse(said, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _of(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return Fraction(str(node.value))
    if isinstance(node, ast.BinOp) and type(node.op) in _DOES:
        return _DOES[type(node.op)](_of(node.left), _of(node.right))
    raise ValueError("not a sum")


def _text(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.6g}"
