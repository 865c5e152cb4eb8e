"""llama-swap's `config.yaml` -> one start for each model.

`models.<id>.cmd` is split into words and run without a shell: a line end is white space, a line that begins
with `#` is dropped, a backslash at the end of a line is a blank. `${NAME}` is a macro of the model or of the
whole file; `${PORT}`, `${PID}` and `${env.NAME}` are known only at run time and stay text.
Seen in mostlygeek/llama-swap `internal/config/commands.go` and `macros.go`, 2026-08-22.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Iterable, Iterator

from firesteel.reads.docker import EngineStart
from firesteel.reads.shell import Word
from firesteel.reads.source_text import SourceText
from firesteel.reads.template import TemplateFiller, TemplateValues
from firesteel.reads.variables import assigned
from firesteel.reads.yaml_nodes import Node

_MACRO = re.compile(r"\$\{([A-Za-z0-9_-]{1,63})\}")
_LINE = re.compile(r"[^\n]*\n?")
_RESERVED = ("PORT", "PID", "MODEL_ID")


def starts(document: Node) -> Iterable[EngineStart] | None:
    models = document.get("models")
    if models is None or not any(model.get("cmd") for _, model in models.items()):
        return None
    filler = TemplateFiller(document.file)
    global_macros = _macros(document)
    return [
        start
        for name, model in models.entries().values()
        for start in _starts(name, model, global_macros, filler)
    ]


def _macros(node: Node) -> dict[str, SourceText]:
    return {
        name: _plain(value.content)
        for name, value in node.items("macros")
        if value.text is not None and name not in _RESERVED
    }


def _starts(
    name: Word, model: Node, global_macros: dict[str, SourceText], filler: TemplateFiller
) -> Iterator[EngineStart]:
    command = model.get("cmd")
    if command is None or command.text is None:
        return
    values = TemplateValues(
        ChainMap({"MODEL_ID": name.content}, _macros(model), global_macros), _MACRO, filler
    )
    filled = filler.fill(_plain(command.content), _MACRO, lambda match: values.get(match[1]))
    env = model.get("env")
    variables = assigned(env.words()) if env and env.is_list else {}
    yield EngineStart(filled.words(model.file), env=variables, name=name.text)


def _plain(source: SourceText) -> SourceText:
    """Without comment lines, and with a blank for each backslash at the end of a line."""
    lines = []
    for match in _LINE.finditer(source.text):
        line = match[0].strip()
        if not line.startswith("#"):
            text = match[0].rstrip()[:-1] + " \n" if line.endswith("\\") else match[0]
            lines.append((text, match.start()))
    return source.assemble(lines)
