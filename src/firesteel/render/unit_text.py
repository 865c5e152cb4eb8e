"""Arguments -> the value of a key in a systemd unit; `reads.systemd` is the inverse.

systemd is not a shell: `%` begins a specifier and is doubled, a lone `$` is doubled, double quotes have C
escapes. It expands what a shell would: `$NAME` as a whole word, `${NAME}` inside one, `%h` for `~`.
Seen in systemd.syntax(7), systemd.service(5), systemd.unit(5), 2026-11-15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from firesteel.render.docker import ENGINE_JSON

_PLAIN = re.compile(r"[A-Za-z0-9_./:@=,+{}\[\]~-]+\Z", re.ASCII)
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*)", re.ASCII)
_LETTERS = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\", "%": "%%", "$": "$$"}


def unit_line(key: str, groups: Iterable[Iterable[str]]) -> str:
    """`Key=` and its arguments, one group on each line."""
    return f"{key}=" + " \\\n  ".join(" ".join(unit_word(word) for word in group) for group in groups)


def unit_word(word: str) -> str:
    """Quote an argument for systemd."""
    whole = _VARIABLE.fullmatch(word)
    if whole and whole[2]:
        return word
    home, rest = ("%h/", word[2:]) if word.startswith("~/") else ("", word)
    if rest and _PLAIN.match(rest):
        return home + rest
    quoted = _escaped(rest) if ENGINE_JSON.match(rest) else _with_variables(rest)
    return f'"{home}{quoted}"'


def _with_variables(text: str) -> str:
    pieces, offset = [], 0
    for use in _VARIABLE.finditer(text):
        pieces += [_escaped(text[offset : use.start()]), f"${{{use[1] or use[2]}}}"]
        offset = use.end()
    return "".join([*pieces, _escaped(text[offset:])])


def _escaped(text: str) -> str:
    return "".join(
        _LETTERS.get(letter) or (letter if letter.isprintable() else _code(letter)) for letter in text
    )


def _code(letter: str) -> str:
    code = ord(letter)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
