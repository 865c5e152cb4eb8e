"""Recognizes the format of a file by its content, and reads the starts it describes.

The reader of each YAML format returns None for a document that is not of its format.
"""

from __future__ import annotations

import re

from firesteel.errors import UsageError
from firesteel.reads import dockerfile, nomad, systemd
from firesteel.reads.engine_start import EngineStart
from firesteel.reads.source_text import SourceFile, SourceText

_YAML_NAME = re.compile(r".*\.ya?ml\Z", re.IGNORECASE)
_YAML_START = re.compile(
    r"(?:[^\S\n]*(?:#[^\n]*)?\n)*[^\S\n]*(?:---\s*\n|(?:-[^\S\n]+)?[A-Za-z_][\w.-]*:(?:[^\S\n]|\n))"
)


def is_yaml(file: SourceFile) -> bool:
    """By its name. Markdown fences inside its values are then not fences."""
    return bool(_YAML_NAME.match(file.path))


def starts(file: SourceFile, block: SourceText | None = None) -> tuple[EngineStart, ...] | None:
    """What a file of a known format starts, or a block of a guide; None for any other text."""
    is_named = block is None and is_yaml(file)
    source = block or file.whole
    if not is_named:
        for starts_of in (systemd.starts, dockerfile.starts, nomad.starts):
            if (found := starts_of(file, source)) is not None:
                return found
    if not is_named and not _YAML_START.match(source.text):
        return None
    # They load PyYAML, which takes as long to import as a command takes to check.
    from firesteel.reads import (
        compose,
        helm,
        kubernetes,
        llama_swap,
        recipe,
        sparkrun,
        vllm_recipes,
        workflows,
    )
    from firesteel.reads.nodes import parse_documents

    if is_named and helm.is_template(source):
        source = helm.filled_template(file)
    try:
        documents = parse_documents(file, source)
    except UsageError:
        if is_named:
            raise
        return None
    formats = (compose, kubernetes, llama_swap, recipe, sparkrun, vllm_recipes, workflows, helm)
    read = [next((s for form in formats if (s := form.starts(node)) is not None), None) for node in documents]
    known = [starts for starts in read if starts is not None]
    return tuple(start for starts in known for start in starts) if known or is_named else None
