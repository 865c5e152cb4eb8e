"""llama-swap's `config.yaml` -> one start for each model.

`models.<id>.cmd` is split into words and run without a shell: a line end is a blank, a line that begins with
`#` is dropped, a backslash at the end of a line is a blank. `${NAME}` is a macro of the model or of the whole
file; `${PORT}`, `${PID}` and `${env.NAME}` are known only where it runs, and stay.
Seen in mostlygeek/llama-swap `internal/config/commands.go` and `macros.go`, 2026-08-22.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator

from firesteel.reads.container_start import EngineStart
from firesteel.reads.nodes import Node
from firesteel.reads.shell import Word
from firesteel.reads.source_text import Anchor, Passage
from firesteel.reads.template import Filler, Values

_HOLE = re.compile(r"\$\{([A-Za-z0-9_-]{1,63})\}")
_LINE = re.compile(r"[^\n]*\n?")
_RESERVED = ("PORT", "PID", "MODEL_ID")


def starts(document: Node) -> Iterable[EngineStart] | None:
    models = document.get("models")
    if models is None or not any(model.get("cmd") for _, model in models.items()):
        return None
    filler = Filler(document.page)
    everywhere = _macros(document)
    named = models.entries().values()
    return [start for name, model in named for start in _starts(name, model, everywhere, filler)]


def _macros(node: Node) -> dict[str, Passage]:
    macros = node.get("macros")
    pairs = macros.items() if macros else ()
    return {
        name: _plain(value.passage)
        for name, value in pairs
        if value.text is not None and name not in _RESERVED
    }


def _starts(name: Word, model: Node, everywhere: dict[str, Passage], filler: Filler) -> Iterator[EngineStart]:
    command = model.get("cmd")
    if command is None or command.text is None:
        return
    values = Values(ChainMap({"MODEL_ID": name.inside}, _macros(model), everywhere), _HOLE, filler)
    filled = filler.fill(_plain(command.passage), _HOLE, lambda found: values.get(found[1]))
    yield EngineStart(filled.words(model.page), env=dict(_environment(model)), name=name.text)


def _environment(model: Node) -> Iterator[tuple[str, Word]]:
    listed = model.get("env")
    for word in listed.words() if listed and listed.is_list else ():
        name, equals, _ = word.text.partition("=")
        if equals:
            yield name, word.after(len(name) + 1)


def _plain(passage: Passage) -> Passage:
    """Without comment lines, and with a blank for each backslash at the end of a line."""
    texts: list[str] = []
    anchors: list[Anchor] = []
    length = 0
    for found in _LINE.finditer(passage.text):
        line = found[0].strip()
        if not found[0] or line.startswith("#"):
            continue
        text = found[0].rstrip()[:-1] + " \n" if line.endswith("\\") else found[0]
        anchors.append((length, found.start()))
        texts.append(text)
        length += len(text)
    return passage.inner("".join(texts), anchors or [(0, 0)])
