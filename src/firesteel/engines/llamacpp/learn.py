"""What a llama.cpp build accepts, from its sources, or else from the output of `--help`.

Every option of every llama.cpp program is one `add_opt(common_arg(...))` in `common/arg.cpp`: its spellings,
for a switch also the spellings that negate it, a hint and a help text, and a small function whose parameters
show what the option takes. Chained calls name the programs that have it and the environment variable that
sets it. llama-server has the common options and those that name it. Options that only report "has been
removed" are left out. Seen in b4806 to b11549.

The output of `llama-server --help` -> its Schema.

For an image with a build that is not known from its sources: a fork, or a newer build. llama.cpp prints every
option with its spellings, its hint and its help text in columns:

    -c,    --ctx-size N                     size of the prompt context (default: 0, 0 = loaded from model)
                                            (env: LLAMA_ARG_CTX_SIZE)

The help does not show which values are refused, so any value is accepted; the sources show more, and are
preferred where they are known. Seen in b11549.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from firesteel.engines.schema.symbols import (
    Flag,
    Kind,
    Schema,
    SymbolValue,
    Takes,
    layout_changed,
    self_check,
)
from firesteel.values import Value

ENGINE = "llama.cpp"
_OPTION = re.compile(r"\badd_opt\(\s*common_arg\(")
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)\'|[(){}\[\],]')
_REQUIRED_FLAGS = ("model", "ctx-size", "port", "host", "flash-attn", "parallel", "cache-type-k")
_BOOLEAN_WORDS = {
    "is_truthy": ("1", "enabled", "on", "true"),
    "is_falsey": ("0", "disabled", "false", "off"),
    "is_autoy": ("-1", "auto"),
}
_SERVER = "LLAMA_EXAMPLE_SERVER"


class _Option(Value):
    """The arguments of one `common_arg(...)`, and the calls chained after it."""

    parts: tuple[str, ...]
    chained: str


def is_relevant(path: str) -> bool:
    """In a checkout, or vendored in the folder of some package."""
    return path.endswith(("common/arg.cpp", "common/speculative.cpp"))


def learn(version: str, files: Mapping[str, str]) -> Schema:
    """Raises FiresteelError, naming what moved, rather than give half a schema."""
    text = _COMMENT.sub(lambda match: match[1] or "", "\n".join(files.values()))
    if not _OPTION.search(text):
        raise layout_changed(ENGINE, "`add_opt(common_arg(` in common/arg.cpp", version)
    flags: dict[str, Flag] = {}
    for match in _OPTION.finditer(text):
        parts, end = _parts(text, match.end())
        _, end_of_chain = _parts(text, end)
        option = _Option(tuple(parts), text[end:end_of_chain])
        flags |= {flag.name: flag for flag in _flag(option, text)}
    return checked_schema(version, flags)


def checked_schema(version: str, flags: Mapping[str, Flag]) -> Schema:
    variables = {name: flag.value for flag in flags.values() for name in flag.variables}
    schema = Schema("llamacpp", version, flags, {}, variables)
    return self_check(
        schema, ENGINE, required=_REQUIRED_FLAGS, flags=120, variables=40, named=("cache-type-k",)
    )


def _parts(text: str, start: int) -> tuple[list[str], int]:
    """The arguments of a call whose `(` is just before `start`, and the position after its `)`."""
    parts: list[str] = []
    begin, depth = start, 0
    for token in _TOKEN.finditer(text, start):
        symbol = token[0]
        if symbol in ("(", "{", "["):
            depth += 1
        elif symbol in (")", "}", "]"):
            if depth == 0:
                return [*parts, text[begin : token.start()].strip()], token.end()
            depth -= 1
        elif symbol == "," and depth == 0:
            parts.append(text[begin : token.start()].strip())
            begin = token.end()
    return parts, len(text)


def _flag(option: _Option, text: str) -> Iterator[Flag]:
    """One flag, or none when llama-server does not have it."""
    names = _STRING.findall(option.parts[0])
    body = option.parts[-1]
    if (
        not names
        or not _is_for_server(option.chained, text)
        or any("argument has been removed" in part or "arg_removed(" in part for part in option.parts)
    ):
        return
    first = next((name for name in names if name.startswith("--")), names[0])
    negatives = _STRING.findall(option.parts[1]) if option.parts[1].startswith("{") else []
    takes, kind = _parameter(body)
    values, is_complete = _values(body, text)
    yield Flag(
        first.lstrip("-"),
        SymbolValue(kind, tuple(sorted(values)), open=not is_complete),
        takes,
        tuple(name for name in names if name != first),
        tuple(negatives),
        tuple(re.findall(r'set_env\("(\w+)"\)', option.chained)),
        any("DEPRECATED" in part for part in option.parts),
    )


def _is_for_server(chained: str, text: str) -> bool:
    if _SERVER in (_programs(chained, "set_excludes", text) or "") or "set_preset_only" in chained:
        return False
    programs = _programs(chained, "set_examples", text)
    return programs is None or _SERVER in programs or "LLAMA_EXAMPLE_COMMON" in programs


def _programs(chained: str, setter: str, text: str) -> str | None:
    """The programs that a chained call names, literally or through a named list."""
    match = re.search(rf"{setter}\((?:\{{([^}}]*)\}}|(\w+))\)", chained)
    if not match:
        return None
    listed = re.search(rf"\b{match[2]}\s*=?\s*\{{([^}}]*)\}}", text) if match[2] else None
    return listed[1] if listed else match[1] or ""


def _parameter(body: str) -> tuple[Takes, Kind]:
    """From the parameters of the function: none, an int, a bool, a string, or two strings."""
    head = body.partition("{")[0]
    texts = head.count("std::string")
    if texts:
        return ("many" if texts > 1 else "value"), "str"
    if re.search(r",\s*int\b", head):
        return "value", "int"
    return "nothing", "bool"


def _values(body: str, text: str) -> tuple[set[str], bool]:
    """The texts that the function compares its value with, and whether it refuses all others."""
    if "kv_cache_type_from_str" in body:
        listed = re.search(r"kv_cache_types\s*=\s*\{([^}]*)\}", text)
        types = {name.lower() for name in re.findall(r"GGML_TYPE_(\w+)", listed[1])} if listed else set()
        return types, bool(types)
    if "common_speculative_types_from_names" in body:
        return set(re.findall(r'case COMMON_SPECULATIVE_TYPE_\w+:\s*return "([^"]+)"', text)), False
    values = set(re.findall(r'\bvalue\s*==\s*"([^"]*)"', body))
    for name, accepted in _BOOLEAN_WORDS.items():
        if f"{name}(value)" in body:
            values |= set(accepted)
    refuses = re.search(r"else\s*\{\s*throw\b", body) is not None
    reads_more = re.search(r"\bsto[ifld]+\(|parse_|split|fopen|ifstream|_from_(name|str)\(", body) is not None
    return values, bool(values) and refuses and not reads_more


_COLUMN = 40
"""Where help texts start; longer spellings have a line of their own."""
_SPELLING = re.compile(r"(-{1,2}[A-Za-z0-9][\w.-]*)(,?)\s*")


def learn_from_help(version: str, text: str) -> Schema:
    """Raises FiresteelError, naming what is missing, rather than give half a schema."""
    if not re.search(r"^-{1,2}\w", text, re.MULTILINE):
        raise layout_changed(ENGINE, "a list of options in `llama-server --help`", version)
    flags = {flag.name: flag for head, about in _options_in_help(text) for flag in _flag_in_help(head, about)}
    return checked_schema(version, flags)


def spellings(text: str) -> tuple[tuple[str, ...], ...]:
    """Every way to write each flag: `-c`, `--ctx-size`, `--no-mmap`."""
    return tuple(
        _spellings(head)[0] for head, about in _options_in_help(text) if "has been removed" not in about
    )


def _options_in_help(text: str) -> Iterator[tuple[str, str]]:
    """The spellings and hint of each option, and its help text in one line."""
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


def _flag_in_help(head: str, about: str) -> Iterator[Flag]:
    """One flag, or none for an option that was removed."""
    names, hint = _spellings(head)
    if not names or "argument has been removed" in about:
        return
    positives, negatives = (names, ()) if hint else _split_negatives(names)
    first = next((name for name in positives if name.startswith("--")), positives[0])
    yield Flag(
        first.lstrip("-"),
        SymbolValue("str" if hint else "bool", _values_in_help(hint, about)),
        "nothing" if not hint else "many" if re.fullmatch(r"\w+ \w+", hint) else "value",
        tuple(name for name in positives if name != first),
        negatives,
        tuple(re.findall(r"\(env: (\w+)\)", about)),
        "DEPRECATED" in about,
    )


def _spellings(head: str) -> tuple[tuple[str, ...], str]:
    names: list[str] = []
    position = 0
    while match := _SPELLING.match(head, position):
        names.append(match[1])
        position = match.end()
        if not match[2]:
            break
    return tuple(names), head[position:].strip()


def _split_negatives(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A switch prints its own spellings, then those that negate it, with nothing between: the second list
    begins at `--no-x`, or at the short spelling before it."""
    first = next((index for index, name in enumerate(names) if name.startswith("--no-") and index), None)
    if first is None:
        return names, ()
    is_short = not names[first - 1].startswith("--") and any(
        name.startswith("--") for name in names[: first - 1]
    )
    first -= is_short
    return names[:first], names[first:]


def _values_in_help(hint: str, about: str) -> tuple[str, ...]:
    """The names that the hint or the text lists: `[on|off|auto]`, `{none,layer}`, `allowed values: a, b`."""
    listed = re.fullmatch(r"[\[{<]([\w.+-]+(?:[|,][\w.+-]+)+)[\]}>]", hint)
    allowed = re.search(r"allowed values: ([\w.+-]+(?:, [\w.+-]+)*)", about)
    values = re.split(r"[|,]", listed[1]) if listed else allowed[1].split(", ") if allowed else []
    return tuple(sorted(values))
