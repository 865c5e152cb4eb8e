"""Here-documents: `cat > vllm.service <<EOF ... EOF` holds a unit, a manifest, a compose file or a script.

Values that the script sets are filled in unless the mark is quoted. A body that is a script itself needs
nothing: its lines are read with those around them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from firesteel.reads import variables
from firesteel.reads.source_text import SourceText

_OPENING = re.compile(r"<<-?[^\S\n]*(['\"\\]?)(\w+)['\"]?[^\n]{0,1000}\n")
_ASSIGNMENT = re.compile(
    r"^[^\S\n]*(?:export[^\S\n]+)?([A-Za-z_]\w*)=([\"']?)([^\s\"'$`;&|()]*)\2[^\S\n]*$", re.MULTILINE
)
MAX_BODIES = 100
MAX_BODY = 2**16

Span = tuple[int, int]


def bodies(source: SourceText) -> Iterator[tuple[SourceText, Span]]:
    """Every body without its common indent, and where it stands."""
    if "<<" not in source.text:
        return
    known = {match[1]: source.part(*match.span(3)) for match in _ASSIGNMENT.finditer(source.text)}
    known = dict(variables.without_secrets(known))
    for opening in islice(_OPENING.finditer(source.text), MAX_BODIES):
        closing = re.compile(rf"^[^\S\n]*{opening[2]}[^\S\n]*$", re.MULTILINE)
        end = closing.search(source.text, opening.end(), opening.end() + MAX_BODY)
        if end is None:
            continue
        body = source.part(opening.end(), end.start())
        if not opening[1]:
            body = body.substitute(
                variables.USE, lambda use: known.get(use["bare"] or use["braced"]), MAX_BODY
            )
        yield body, (opening.end(), end.start())


def blank_out(source: SourceText, span: Span) -> SourceText:
    start, end = span
    blank = re.sub(r"[^\n]", " ", source.text[start:end])
    return source.inner(source.text[:start] + blank + source.text[end:], ((0, 0),))
