"""The plausibility check of a schema: fails loudly when a release moved its files."""

from __future__ import annotations

from collections.abc import Sequence

from firesteel.engines.schema.symbols import Schema
from firesteel.errors import FiresteelError


def layout_changed(engine: str, missing: str, version: str = "") -> FiresteelError:
    return FiresteelError(
        f"{missing} was not found in the sources of {f'{engine} {version}'.strip()}; firesteel cannot read"
        " the layout of this release, so nothing was learned",
        next="use a known release (firesteel learn ENGINE --list), or update firesteel",
    )


def self_check(
    schema: Schema,
    engine: str,
    *,
    required: Sequence[str],
    flags: int,
    variables: int,
    named: Sequence[str] = (),
) -> Schema:
    """The schema itself, or an error that lists what is missing: flags that every release has, a plausible
    number of flags and variables, and values for the flags in `named`."""
    missing = [f"`--{name}`" for name in required if name not in schema.flags]
    missing += [f"the values of `--{name}`" for name in named if not schema.names(name)]
    if len(schema.flags) < flags:
        missing.append(f"more than {len(schema.flags)} flags (at least {flags} were expected)")
    if len(schema.variables) < variables:
        missing.append(f"more than {len(schema.variables)} variables (at least {variables} were expected)")
    if missing:
        raise layout_changed(engine, ", ".join(missing), schema.version)
    return schema
