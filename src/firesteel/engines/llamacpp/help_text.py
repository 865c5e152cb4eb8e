"""What `llama-server --help` prints -> its Schema.

For an image whose build nobody read from its sources: a fork, or a build newer than what is known. llama.cpp
prints every option with its spellings, its hint and its help text in columns:

    -c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
                                            (env: LLAMA_ARG_CTX_SIZE)

The help does not say which values are refused, so every value is taken as open; the sources say more, and
where they are known they go first. Seen in b11549.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.engines.schema.self_check import layout_changed, self_check
from firesteel.engines.schema.symbols import Flag, Schema, Value

ENGINE = "llama.cpp"
_COLUMN = 40
"""Where help texts stand; longer spellings have a line of their own."""
_SPELLING = re.compile(r"(-{1,2}[A-Za-z0-9][\w.-]*)(,?)\s*")
_REQUIRED_FLAGS = ("model", "ctx-size", "port", "host", "flash-attn", "parallel", "cache-type-k")


def learn(version: str, text: str) -> Schema:
    """Raises FiresteelError, naming what is missing, rather than give half a schema."""
    if not re.search(r"^-{1,2}\w", text, re.MULTILINE):
        raise layout_changed(ENGINE, "a list of options in `llama-server --help`", version)
    flags = {flag.name: flag for head, about in _options(text) for flag in _flag(head, about)}
    variables = {name: flag.value for flag in flags.values() for name in flag.variables}
    schema = Schema("llamacpp", version, flags, {}, variables)
    return self_check(schema, ENGINE, sure=_REQUIRED_FLAGS, flags=120, variables=40, named=("cache-type-k",))


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Each option's spellings and hint, and its help text in one line."""
    head, about = "", [""]
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("-----"):
            if head:
                yield head, " ".join(about)
            # The first spelling is padded to seven columns, so a gap only counts after them.
            start, gap, rest = _cut(line)
            head, about = start, [rest] if gap else []
        elif head and line.startswith(" " * _COLUMN):
            about.append(line.strip())
    if head:
        yield head, " ".join(about)


def _cut(line: str) -> tuple[str, bool, str]:
    match = re.search(r"\s{3,}", line[7:])
    if match is None:
        return line.strip(), False, ""
    return line[: 7 + match.start()].strip(), True, line[7 + match.end() :].strip()


def _flag(head: str, about: str) -> Iterator[Flag]:
    """One flag, or none for an option that only says that it is gone."""
    names, hint = _spellings(head)
    if not names or "argument has been removed" in about:
        return
    positives, negatives = (names, ()) if hint else _sides(names)
    first = next((name for name in positives if name.startswith("--")), positives[0])
    yield Flag(
        first.lstrip("-"),
        Value("str" if hint else "bool", _values(hint, about)),
        "nothing" if not hint else "many" if re.fullmatch(r"\w+ \w+", hint) else "value",
        tuple(name for name in positives if name != first),
        negatives,
        tuple(re.findall(r"\(env: (\w+)\)", about)),
        "DEPRECATED" in about,
    )


def _spellings(head: str) -> tuple[tuple[str, ...], str]:
    names: list[str] = []
    at = 0
    while match := _SPELLING.match(head, at):
        names.append(match[1])
        at = match.end()
        if not match[2]:
            break
    return tuple(names), head[at:].strip()


def _sides(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A switch prints the spellings that say yes, then those that say no, without a word between: the second
    list begins at `--no-x`, or at the short spelling before it."""
    twin = next((i for i, name in enumerate(names) if name.startswith("--no-") and i), None)
    if twin is None:
        return names, ()
    is_short = not names[twin - 1].startswith("--") and any(
        name.startswith("--") for name in names[: twin - 1]
    )
    start = twin - 1 if is_short else twin
    return names[:start], names[start:]


def _values(hint: str, about: str) -> tuple[str, ...]:
    """The names that the hint or the text lists: `[on|off|auto]`, `{none,layer}`, `allowed values: a, b`."""
    listed = re.fullmatch(r"[\[{<]([\w.+-]+(?:[|,][\w.+-]+)+)[\]}>]", hint)
    told = re.search(r"allowed values: ([\w.+-]+(?:, [\w.+-]+)*)", about)
    words = re.split(r"[|,]", listed[1]) if listed else told[1].split(", ") if told else []
    return tuple(sorted(words))
