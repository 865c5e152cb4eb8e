"""`--config FILE` of vLLM and SGLang: a YAML file of flags.

A key is a flag, a list or a mapping its JSON, `true` a switch. The command line wins over the file.
Seen in vLLM `utils/argparse_utils.py` (`load_config_file`) and SGLang `server_args_config_parser.py`,
2026-11-16.
"""

from __future__ import annotations

from collections.abc import Container as Names
from collections.abc import Iterator

from firesteel.engines.engine import format_flag
from firesteel.errors import UsageError
from firesteel.launch import Container, EngineName, FlagValue
from firesteel.reads.source_text import SourceFile


def host_path(path: str, container: Container | None) -> str:
    """Where a file that a container sees is on the host; its own name where no mount has it."""
    for mount in container.mounts if container else ():
        if path == mount.target:
            return mount.source
        if path.startswith(f"{mount.target.rstrip('/')}/"):
            return f"{mount.source.rstrip('/')}/{path[len(mount.target.rstrip('/')) + 1 :]}"
    return path


def arguments(file: SourceFile, engine: EngineName, given: Names[str]) -> Iterator[str]:
    """The arguments that the file stands for, without those that are given; none where it is not YAML."""
    from firesteel.reads.nodes import parse_documents  # PyYAML, which few launches need

    try:
        documents = parse_documents(file)
    except UsageError:
        return
    for document in documents[:1]:
        for key, node in document.items():
            name = key.replace("_", "-")
            value = node.plain_value()
            if name in given or value is None:
                continue
            if name in ("model-tag", "model") and isinstance(value, str):
                if "model" not in given:
                    yield from ("--model", value)
                continue
            yield from format_flag(engine, name, _flag_value(value))


def _flag_value(value: object) -> FlagValue:
    return value if isinstance(value, str | bool | dict | list) else str(value)
