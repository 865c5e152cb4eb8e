"""The flags that a function adds: its `parser.add_argument(...)` calls, read without executing it.

vLLM derives most arguments from dataclass fields (`kwargs = get_kwargs(ModelConfig)`, then
`add_argument("--dtype", **kwargs["dtype"])`) and modifies a few before adding them; SGLang writes them out.
Both are straight-line code, so it is enough to follow assignments of those few shapes; any other statement is
ignored.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from msgspec import Struct

from firesteel.engines.schema.sources import SourceTree
from firesteel.engines.schema.symbols import Default, Flag, Kind, SymbolValue, Takes
from firesteel.values import replace

_KINDS: Mapping[str, Kind] = {
    "int": "int", "nullable_int": "int", "float": "float", "str": "str", "nullable_str": "str",
    "loads": "json", "json_list_type": "json", "union_dict_and_str": "json",
    "human_readable_int": "size", "human_readable_int_or_auto": "size",
}  # fmt: skip
"""What a `type=` of `add_argument` makes of a text."""
_NO_VALUE = {"store_true", "store_false", "store_const", "count", "help", "version"}
"""Actions of argparse that take no value."""


class DraftFlag(Struct):
    """A flag whose keywords are still being collected."""

    kind: Kind = "str"
    takes: Takes = "value"
    values: tuple[str, ...] = ()
    open: bool = True
    folds: bool = False
    config: str = ""
    default: Default = None
    twin: bool = False
    deprecated: bool = False

    def flag(self, names: list[str]) -> Flag:
        longs = [name for name in names if name.startswith("--")] or names
        first = longs[0]
        # `CPU` and `cpu` are one value if case does not matter.
        once = {value.lower() if self.folds else value: value for value in reversed(self.values)}
        values = tuple(sorted(once.values()))
        return Flag(
            first.lstrip("-"),
            SymbolValue(self.kind, values, self.open, self.folds, self.config, self.default),
            self.takes,
            tuple(name for name in names if name != first),
            tuple(f"--no-{name[2:]}" for name in longs) if self.twin else (),
            deprecated=self.deprecated,
        )


Drafts = dict[str, DraftFlag]
"""The name of a dataclass field -> its flag."""


class FunctionReader(Struct):
    """One function being read: its file, and what its local names hold so far."""

    tree: SourceTree
    path: str
    fields_of: Callable[[str, str], Drafts] = lambda name, path: {}
    """(class name, file) -> its fields as drafts: what the engine's own `get_kwargs` returns for them."""
    names: dict[str, object] = {}


def read_arguments(reader: FunctionReader, body: list[ast.stmt]) -> Iterator[Flag]:
    """The flags that these statements add, in their order; both sides of an `if` are taken."""
    for statement in body:
        match statement:
            case ast.Assign([ast.Name(name)], value):
                reader.names[name] = _evaluate(reader, value)
            case ast.Assign([ast.Subscript(target, ast.Constant(str(keyword)))], value):
                apply_keyword(reader, _evaluate(reader, target), keyword, value)
            case ast.AugAssign(ast.Subscript(target, ast.Constant("choices"))):
                if isinstance(draft := _evaluate(reader, target), DraftFlag):
                    draft.open = True  # extended by something computed at start
            case ast.Delete([ast.Subscript(target, ast.Constant("nargs"))]):
                if isinstance(draft := _evaluate(reader, target), DraftFlag):
                    draft.takes = "value"
            case ast.Expr(ast.Call() as call):
                yield from _read_call(reader, call)
            case ast.For(target, items, inner):
                yield from _read_loop(reader, target, items, inner)
            case ast.If(_, inner, other):
                yield from read_arguments(reader, inner)
                yield from read_arguments(reader, other)
            case ast.With(_, inner):
                yield from read_arguments(reader, inner)


def _read_call(reader: FunctionReader, call: ast.Call) -> Iterator[Flag]:
    """The flag of an `add_argument`; `choices.remove` takes a choice from a draft."""
    match call.func:
        case ast.Attribute(_, "add_argument"):
            names = [name for arg in call.args if (name := _read_text(reader, arg)) and name.startswith("-")]
            if names:
                yield _read_argument(reader, call).flag(names)
        case ast.Attribute(ast.Subscript(target, ast.Constant("choices")), "remove"):
            if isinstance(draft := _evaluate(reader, target), DraftFlag):
                gone = _read_text(reader, call.args[0])
                draft.values = tuple(value for value in draft.values if value != gone)


def _read_argument(reader: FunctionReader, call: ast.Call) -> DraftFlag:
    """The keywords of one `add_argument`; those in `**known` come first."""
    draft = DraftFlag()
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(known := _evaluate(reader, keyword.value), DraftFlag):
            draft = replace(known, deprecated=known.deprecated or draft.deprecated)
    for keyword in call.keywords:
        if keyword.arg is not None:
            apply_keyword(reader, draft, keyword.arg, keyword.value)
    return draft


def apply_keyword(reader: FunctionReader, draft: object, keyword: str, value: ast.expr) -> None:
    """Apply one keyword of `add_argument` to a draft."""
    if not isinstance(draft, DraftFlag):
        return
    if keyword == "type":
        _apply_type(reader, draft, value)
    elif keyword == "choices":
        draft.values, is_complete = read_strings(reader, value)
        draft.open = not is_complete
    elif keyword == "action":
        _apply_action(draft, value)
    elif keyword == "nargs":
        draft.takes = (
            "optional" if literal_value(value) == "?" else "many" if literal_value(value) else "value"
        )
    elif keyword == "default":
        draft.default = literal_value(value)
    elif keyword == "deprecated":
        draft.deprecated = literal_value(value) is True


def _apply_type(reader: FunctionReader, draft: DraftFlag, value: ast.expr) -> None:
    match value:
        case ast.Call(ast.Name("optional_type" | "parse_type"), [inner]):
            _apply_type(reader, draft, inner)
        case ast.Name(name) | ast.Attribute(_, name):
            bound = reader.names.get(name)
            draft.kind = _KINDS.get(bound if isinstance(bound, str) else name, "str")
        case ast.Lambda(_, body):
            draft.folds = "lower()" in ast.unparse(body)


def _apply_action(draft: DraftFlag, value: ast.expr) -> None:
    name = literal_value(value) or (
        value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    )
    if name == "BooleanOptionalAction":
        draft.kind, draft.takes, draft.twin = "bool", "nothing", True
    elif name in _NO_VALUE:
        draft.kind, draft.takes = "bool", "nothing"
    elif "Deprecated" in str(name):
        draft.deprecated = True
        if name == "DeprecatedAction" or "StoreTrue" in str(name):
            draft.kind, draft.takes = "bool", "nothing"


def _read_loop(
    reader: FunctionReader, target: ast.expr, items: ast.expr, body: list[ast.stmt]
) -> Iterator[Flag]:
    """A loop over literal tuples is unrolled; one over a table of fields adds one flag per field."""
    match items:
        case ast.Call(ast.Attribute(table, "items"), []):
            known = _evaluate(reader, table)
            for name, draft in known.items() if isinstance(known, dict) else ():
                yield draft.flag([f"--{name.replace('_', '-')}"])
        case ast.List(rows) | ast.Tuple(rows):
            for row in rows:
                _bind_names(reader, target, row)
                yield from read_arguments(reader, body)


def _bind_names(reader: FunctionReader, target: ast.expr, row: ast.expr) -> None:
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    parts = row.elts if isinstance(row, ast.Tuple) else [row]
    for name, part in zip(names, parts, strict=False):
        if isinstance(name, ast.Name):
            reader.names[name.id] = part.id if isinstance(part, ast.Name) else literal_value(part)


def literal_value(node: ast.expr | None) -> Default:
    """A plain value, else None."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if isinstance(value, str | int | float) else None


def read_strings(reader: FunctionReader, node: ast.expr) -> tuple[tuple[str, ...], bool]:
    """The strings in a list of choices, and whether all of them could be read."""
    match node:
        case ast.List(parts) | ast.Tuple(parts) | ast.Set(parts):
            read = [
                read_strings(reader, part.value) if isinstance(part, ast.Starred) else _read_string(part)
                for part in parts
            ]
            return tuple(text for texts, _ in read for text in texts), all(complete for _, complete in read)
        case ast.BinOp(left, ast.Add(), right):
            texts, is_complete = read_strings(reader, left)
            more, more_complete = read_strings(reader, right)
            return (*texts, *more), is_complete and more_complete
        case ast.Dict(keys):
            read = [_read_string(key) for key in keys if key is not None]
            return tuple(text for texts, _ in read for text in texts), len(read) == len(keys)
        case ast.Call(ast.Name("list" | "sorted" | "tuple"), [inner]) | ast.Call(
            ast.Attribute(inner, "keys"), []
        ):
            return read_strings(reader, inner)
        case ast.Call(ast.Name("get_args"), [inner]):
            literals = reader.tree.hint(inner, reader.path).literals
            return tuple(map(str, literals)), bool(literals)
        case ast.Name(name) if isinstance(bound := reader.names.get(name), tuple):
            return bound, True
        case ast.Name(name):
            definition = reader.tree.find(name, reader.path)
            if definition and isinstance(
                definition.node, ast.List | ast.Tuple | ast.Set | ast.BinOp | ast.Dict
            ):
                return read_strings(replace(reader, path=definition.path), definition.node)
    return (), False


def _read_string(node: ast.expr) -> tuple[tuple[str, ...], bool]:
    """The string of one choice, and whether it could be read; `None` is no choice."""
    value = literal_value(node)
    if isinstance(node, ast.Constant) and node.value is None:
        return (), True
    return ((), False) if value is None else ((str(value),), True)


def _read_text(reader: FunctionReader, node: ast.expr) -> str:
    """A string: a literal, a loop variable, or a constant of some file."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.Name(name):
            known = reader.names.get(name)
            if isinstance(known, str):
                return known
            definition = reader.tree.find(name, reader.path)
            match definition.node if definition else None:
                case ast.Constant(str(text)):
                    return text
    return ""


def _evaluate(reader: FunctionReader, node: ast.expr) -> object:
    """A draft, a table of drafts, a string, or None for an expression that this reader does not follow."""
    match node:
        case ast.Name(name):
            return reader.names.get(name)
        case ast.Call(ast.Name("get_kwargs"), [ast.Name(name)]):
            return reader.fields_of(str(reader.names.get(name, name)), reader.path)
        case ast.Call(ast.Attribute(_, "_customize_cli_kwargs"), [inner]):
            return _evaluate(reader, inner)
        case ast.Call(ast.Attribute(inner, "copy"), []) | ast.Call(ast.Name("dict"), [inner]):
            known = _evaluate(reader, inner)
            return replace(known) if isinstance(known, DraftFlag) else known
        case ast.Subscript(inner, ast.Constant(str(key))):
            table = _evaluate(reader, inner)
            return table.get(key) if isinstance(table, dict) else None
        case ast.Dict(keys, values):
            return _merge_dict(reader, keys, values)
        case ast.Constant(str(text)):
            return text
    return None


def _merge_dict(reader: FunctionReader, keys: list[ast.expr | None], values: list[ast.expr]) -> DraftFlag:
    """`{**kwargs["x"], "default": None}`"""
    draft = DraftFlag()
    for key, value in zip(keys, values, strict=True):
        if key is None and isinstance(known := _evaluate(reader, value), DraftFlag):
            draft = replace(known)
        elif isinstance(key, ast.Constant):
            apply_keyword(reader, draft, str(key.value), value)
    return draft
