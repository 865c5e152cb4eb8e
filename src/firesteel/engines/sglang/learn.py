"""The sources of an SGLang release -> its Schema.

`ServerArgs.add_cli_args` writes its arguments out (to 0.5.13); since then most are derived from fields that
carry what argparse needs, `load_format: A[str, Arg(help=..., choices=...)]`, first in `ServerArgs` itself and
from 0.5.20 on in separate classes, marked by `_NS_PATH`. A `bool` field is a switch without a `--no-`
negation. Variables are the attributes of `Envs` and whatever else the code reads from the environment.
Seen in 0.5.2 to 0.5.23.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from firesteel.engines.schema.arguments import (
    DraftFlag,
    FunctionReader,
    apply_keyword,
    literal_value,
    read_arguments,
    read_strings,
)
from firesteel.engines.schema.sources import Definition, SourceTree, TypeHint
from firesteel.engines.schema.symbols import (
    Default,
    Flag,
    Kind,
    Schema,
    SymbolValue,
    layout_changed,
    self_check,
)
from firesteel.values import replace

ENGINE = "SGLang"
_REQUIRED_FLAGS = ("model-path", "port", "host", "mem-fraction-static", "context-length", "attention-backend")
_ENVIRONMENT = re.compile(r"(?:getenv|environ(?:\.get)?|env_var)\s*[(\[]\s*[\"'](SGL(?:ANG)?_\w+)[\"']")
_KEYWORDS = {"choices": "choices", "type_parser": "type", "nargs": "nargs", "action": "action"}
"""`Arg(...)` -> the keyword of `add_argument` that it becomes."""
_ENV_KINDS: Mapping[str, Kind] = {"EnvBool": "bool", "EnvInt": "int", "EnvFloat": "float"}


def is_relevant(path: str) -> bool:
    """Whether a file of the wheel can matter: model code cannot, nor the image generator's own server."""
    return (
        path.startswith("sglang/srt/") and path.endswith(".py") and not path.startswith("sglang/srt/models/")
    )


def learn(version: str, files: Mapping[str, str]) -> Schema:
    """Raises FiresteelError, naming what moved, rather than give half a schema."""
    tree = SourceTree(files)
    server = _server_args(tree)
    defaults = dict(_defaults(tree, server))
    flags = {flag.name: _with_default(flag, defaults) for flag in _flags(tree, server)}
    for name, table in (("reasoning-parser", "DetectorMap"), ("tool-call-parser", "ToolCallParserEnum")):
        if name in flags:  # plugins may register more
            value = flags[name].value
            names = {*value.values, *_table_keys(tree, table)}
            flags[name] = replace(flags[name], value=replace(value, values=tuple(sorted(names)), open=True))
    schema = Schema("sglang", version, flags, {}, dict(_variables(tree)))
    named = ("load-format", "kv-cache-dtype", "attention-backend", "reasoning-parser", "tool-call-parser")
    return self_check(schema, ENGINE, required=_REQUIRED_FLAGS, flags=200, variables=40, named=named)


def _server_args(tree: SourceTree) -> Definition:
    """The class that adds the arguments; the image generator has another one of the same name."""
    for path in tree.paths_with(r"^class ServerArgs\b"):
        for node in tree.module(path).body:
            if isinstance(node, ast.ClassDef) and node.name == "ServerArgs" and _method(node, "add_cli_args"):
                return Definition(node, path)
    raise layout_changed(ENGINE, "the class `ServerArgs` with `add_cli_args`")


def _method(node: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == name), None)


def _flags(tree: SourceTree, server: Definition) -> Iterator[Flag]:
    yield Flag("help", SymbolValue("bool"), "nothing", ("-h",))
    for definition in _field_classes(tree, server):
        assert isinstance(definition.node, ast.ClassDef)
        for node in definition.node.body:
            match node:
                case ast.AnnAssign(ast.Name(name), ast.Subscript(ast.Name("A"), ast.Tuple(parts))):
                    yield from _field_flag(tree, definition.path, name, parts)
    assert isinstance(server.node, ast.ClassDef)
    method = _method(server.node, "add_cli_args")
    yield from read_arguments(FunctionReader(tree, server.path), method.body if method else [])


def _field_classes(tree: SourceTree, server: Definition) -> Iterator[Definition]:
    yield server
    for path in tree.paths_with(r"^    _NS_PATH\b"):
        for node in tree.module(path).body:
            if isinstance(node, ast.ClassDef):
                yield Definition(node, path)


def _field_flag(tree: SourceTree, path: str, name: str, parts: list[ast.expr]) -> Iterator[Flag]:
    """`name: A[type, Arg(...)]` or `A[type, "help"]` -> its flag, unless it has none."""
    calls = [part for part in parts[1:] if isinstance(part, ast.Call) and ast.unparse(part.func) == "Arg"]
    keywords = {keyword.arg: keyword.value for call in calls for keyword in call.keywords if keyword.arg}
    if "no_cli" in keywords or not (calls or isinstance(parts[1], ast.Constant | ast.JoinedStr | ast.BinOp)):
        return
    draft = _draft_flag(tree.hint(parts[0], path), has_parser="type_parser" in keywords)
    reader = FunctionReader(tree, path)
    for name_in_arg, keyword in _KEYWORDS.items():
        if name_in_arg in keywords:
            apply_keyword(reader, draft, keyword, keywords[name_in_arg])
    extra = keywords.get("action_kwargs")
    for key, value in zip(extra.keys, extra.values, strict=True) if isinstance(extra, ast.Dict) else ():
        apply_keyword(reader, draft, str(literal_value(key)), value)
    first = literal_value(keywords.get("cli_name")) or f"--{name.replace('_', '-')}"
    aliases, _ = read_strings(reader, keywords["aliases"]) if "aliases" in keywords else ((), True)
    yield draft.flag([str(first), *aliases])


def _draft_flag(hint: TypeHint, has_parser: bool) -> DraftFlag:
    """The kind of a flag from its type hint, tested in the same order as SGLang does."""
    plain = hint.plain - {"None"}
    values = tuple(str(value) for value in hint.literals)
    if plain == {"Literal"}:
        return DraftFlag(values=values, open=False)
    if plain == {"list"} and not has_parser:
        return DraftFlag("int" if hint.item == "int" else "float" if hint.item == "float" else "str", "many")
    if plain == {"bool"}:
        return DraftFlag("bool", "nothing")
    if plain == {"dict"}:
        return DraftFlag("json")
    return DraftFlag("int" if plain == {"int"} else "float" if plain == {"float"} else "str")


def _defaults(tree: SourceTree, server: Definition) -> Iterator[tuple[str, Default]]:
    for definition in _field_classes(tree, server):
        assert isinstance(definition.node, ast.ClassDef)
        for node in definition.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                yield node.target.id.replace("_", "-"), literal_value(node.value)


def _with_default(flag: Flag, defaults: Mapping[str, Default]) -> Flag:
    if flag.value.default is not None or defaults.get(flag.name) is None:
        return flag
    return replace(flag, value=replace(flag.value, default=defaults[flag.name]))


def _table_keys(tree: SourceTree, name: str) -> Iterator[str]:
    """Keys of a dict that is an attribute of some class."""
    for path in tree.paths_with(rf"^    {name}\b[^\n]*=\s*\{{"):
        for node in ast.walk(tree.module(path)):
            match node:
                case ast.AnnAssign(ast.Name(target), _, ast.Dict(keys)) | ast.Assign(
                    [ast.Name(target)], ast.Dict(keys)
                ):
                    if target == name:
                        yield from (str(key.value) for key in keys if isinstance(key, ast.Constant))


def _variables(tree: SourceTree) -> Iterator[tuple[str, SymbolValue]]:
    for text in tree.files.values():
        yield from ((name, SymbolValue()) for name in _ENVIRONMENT.findall(text))
    definition = tree.find_anywhere("Envs")
    for node in definition.node.body if definition and isinstance(definition.node, ast.ClassDef) else ():
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(kind, arguments)):
                default = literal_value(arguments[0]) if arguments else None
                yield name, SymbolValue(_ENV_KINDS.get(ast.unparse(kind), "str"), default=default)
