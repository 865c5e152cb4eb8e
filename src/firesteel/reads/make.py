"""Makefiles and justfiles -> shell text: recipe lines without their prefixes, with the file's own variables.

`$(NAME)` and `${NAME}` in a Makefile, `{{NAME}}` in a justfile; `$$` is one dollar in a Makefile. A name that
is set twice, or to what a command prints, stays text.
"""

from __future__ import annotations

import re
from collections import Counter

from firesteel.reads.source_text import MAX_CHARACTERS, SourceFile, SourceText

_MAKEFILE = re.compile(r"(?:.*/)?(?:GNUmakefile|[Mm]akefile[\w.-]*|[\w.-]+\.mk)\Z")
_JUSTFILE = re.compile(r"(?:.*/)?(?:\.?justfile|[\w.-]+\.just)\Z", re.IGNORECASE)
_SETS = {
    "make": re.compile(
        r"^(?:export[ \t]+)?([A-Za-z_]\w*)[ \t]*(?:\?|::?)?=[ \t]*+((?:[^ \t\n](?:.*[^ \t\n])?)?)[ \t]*$",
        re.MULTILINE,
    ),
    "just": re.compile(
        r"""^(?:export[ \t]+)?([A-Za-z_][\w-]*)[ \t]*:=[ \t]*["'](.*?)["'][ \t]*$""", re.MULTILINE
    ),
}
_USES = {
    "make": re.compile(r"\$\((?P<round>[A-Za-z_]\w*)\)|\$\{(?P<curly>[A-Za-z_]\w*)\}|\$\$"),
    "just": re.compile(r"\{\{[ \t]*(?P<round>[A-Za-z_][\w-]*)[ \t]*\}\}"),
}
_PREFIX = re.compile(r"^([ \t]+)([@+-]+)(?=[^-\s])", re.MULTILINE)
MAX_NESTED = 4


def kind(path: str) -> str | None:
    return "make" if _MAKEFILE.match(path) else "just" if _JUSTFILE.match(path) else None


def shell_text(file: SourceFile, kind: str) -> SourceText:
    source = file.whole
    text = _PREFIX.sub(lambda match: match[1] + " " * len(match[2]), source.text)
    source = source.inner(text, ((0, 0),))
    values = {}
    counts = Counter(match[1] for match in _SETS[kind].finditer(text))
    for match in _SETS[kind].finditer(text):
        if counts[match[1]] == 1 and not match[2].startswith(("$(shell", "`")):
            values[match[1]] = source.part(*match.span(2))
    dollar = SourceText("$", ((0, 0),))

    def value(use: re.Match[str]) -> SourceText | None:
        name = use["round"] or use.groupdict().get("curly")
        return values.get(name) if name else dollar

    for _ in range(MAX_NESTED):
        filled = source.substitute(_USES[kind], value, MAX_CHARACTERS)
        if filled is source:
            break
        source = filled
    return source
