"""Reads `parser.add_argument(...)` calls off the page, as a person would.

vLLM derives most arguments from dataclass fields (`kwargs = get_kwargs(ModelConfig)`, then
`add_argument("--dtype", **kwargs["dtype"])`) and touches a few up before adding them; SGLang writes them out.
Both are straight-line code, so following assignments of those few shapes is enough; what has another shape
leaves the draft as it is. `Draft` is an argument while it is being put together.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from firesteel.engines.schema.source_tree import SourceTree
from firesteel.engines.schema.symbols import Default, Flag, Kind, Takes, Value

Drafts = dict[str, "DraftFlag"]
_KINDS: Mapping[str, Kind] = {
    "int": "int", "nullable_int": "int", "float": "float", "str": "str", "nullable_str": "str",
    "loads": "json", "json_list_type": "json", "union_dict_and_str": "json",
    "human_readable_int": "size", "human_readable_int_or_auto": "size",
}  # fmt: skip
_NO_WORD = {"store_true", "store_false", "store_const", "count", "help", "version"}


@dataclass
class DraftFlag:
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
        return Flag(
            first.lstrip("-"),
            Value(self.kind, self._sorted_values(), self.open, self.folds, self.config, self.default),
            self.takes,
            tuple(name for name in names if name != first),
            tuple(f"--no-{name[2:]}" for name in longs) if self.twin else (),
            deprecated=self.deprecated,
        )

    def _sorted_values(self) -> tuple[str, ...]:
        """Once each; `CPU` and `cpu` are one where case does not matter."""
        once = {value.lower() if self.folds else value: value for value in reversed(self.values)}
        return tuple(sorted(once.values()))


@dataclass
class FunctionReader:
    """One function being read: where it stands, and what its names mean so far."""

    tree: SourceTree
    path: str
    fields_of: Callable[[str, str], Drafts]
    """(class name, file) -> its fields as drafts: what the engine's own `get_kwargs` makes of them."""
    names: dict[str, object] = field(default_factory=dict)


def read_arguments(page: FunctionReader, body: list[ast.stmt]) -> Iterator[Flag]:
    """The flags that these statements add, in their order; both sides of an `if` are taken."""
    for statement in body:
        match statement:
            case ast.Assign([ast.Name(name)], value):
                page.names[name] = _meaning(page, value)
            case ast.Assign([ast.Subscript(target, ast.Constant(str(what)))], value):
                apply_keyword(page, _meaning(page, target), what, value)
            case ast.AugAssign(ast.Subscript(target, ast.Constant("choices"))):
                if isinstance(draft := _meaning(page, target), DraftFlag):
                    draft.open = True  # extended by something worked out at start
            case ast.Delete([ast.Subscript(target, ast.Constant("nargs"))]):
                if isinstance(draft := _meaning(page, target), DraftFlag):
                    draft.takes = "value"
            case ast.Expr(ast.Call() as call):
                yield from _call(page, call)
            case ast.For(target, items, inner):
                yield from _loop(page, target, items, inner)
            case ast.If(_, inner, other):
                yield from read_arguments(page, inner)
                yield from read_arguments(page, other)
            case ast.With(_, inner):
                yield from read_arguments(page, inner)


def literal_value(node: ast.expr | None) -> Default:
    """A plain value, else None."""
    if node is None:
        return None
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return None
    return value if isinstance(value, str | int | float) else None


def read_strings(page: FunctionReader, node: ast.expr) -> tuple[tuple[str, ...], bool]:
    """The words in a list of choices, and whether all of it could be read."""
    match node:
        case ast.List(parts) | ast.Tuple(parts) | ast.Set(parts):
            read = [
                read_strings(page, part.value) if isinstance(part, ast.Starred) else _word(part)
                for part in parts
            ]
            return tuple(word for words, _ in read for word in words), all(whole for _, whole in read)
        case ast.BinOp(left, ast.Add(), right):
            (one, whole_one), (two, whole_two) = read_strings(page, left), read_strings(page, right)
            return (*one, *two), whole_one and whole_two
        case ast.Dict(keys):
            read = [_word(key) for key in keys if key is not None]
            return tuple(word for words, _ in read for word in words), len(read) == len(keys)
        case ast.Call(ast.Name("list" | "sorted" | "tuple"), [inner]) | ast.Call(
            ast.Attribute(inner, "keys"), []
        ):
            return read_strings(page, inner)
        case ast.Call(ast.Name("get_args"), [inner]):
            found = page.tree.hint(inner, page.path).literals
            return tuple(map(str, found)), bool(found)
        case ast.Name(name) if isinstance(bound := page.names.get(name), tuple):
            return bound, True
        case ast.Name(name):
            found_node = page.tree.find(name, page.path)
            if found_node and isinstance(
                found_node.node, ast.List | ast.Tuple | ast.Set | ast.BinOp | ast.Dict
            ):
                return read_strings(replace(page, path=found_node.path), found_node.node)
    return (), False


def _word(node: ast.expr) -> tuple[tuple[str, ...], bool]:
    value = literal_value(node)
    if isinstance(node, ast.Constant) and node.value is None:
        return (), True
    return ((), False) if value is None else ((str(value),), True)


def _call(page: FunctionReader, call: ast.Call) -> Iterator[Flag]:
    match call.func:
        case ast.Attribute(_, "add_argument"):
            names = [name for arg in call.args if (name := _text(page, arg)) and name.startswith("-")]
            if names:
                yield _argument(page, call).flag(names)
        case ast.Attribute(ast.Subscript(target, ast.Constant("choices")), "remove"):
            if isinstance(draft := _meaning(page, target), DraftFlag):
                gone = _text(page, call.args[0])
                draft.values = tuple(value for value in draft.values if value != gone)


def _text(page: FunctionReader, node: ast.expr) -> str:
    """A string: written, bound by a loop, or a constant of some file."""
    match node:
        case ast.Constant(str(text)):
            return text
        case ast.Name(name):
            known = page.names.get(name)
            if isinstance(known, str):
                return known
            found = page.tree.find(name, page.path)
            meant = found.node if found else None
            return meant.value if isinstance(meant, ast.Constant) and isinstance(meant.value, str) else ""
    return ""


def _argument(page: FunctionReader, call: ast.Call) -> DraftFlag:
    draft = DraftFlag()
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(known := _meaning(page, keyword.value), DraftFlag):
            draft = replace(known, deprecated=known.deprecated or draft.deprecated)
    for keyword in call.keywords:
        if keyword.arg is not None:
            apply_keyword(page, draft, keyword.arg, keyword.value)
    return draft


def _meaning(page: FunctionReader, node: ast.expr) -> object:
    """A draft, a table of drafts, or None for what this reader does not follow."""
    match node:
        case ast.Name(name):
            return page.names.get(name)
        case ast.Call(ast.Name("get_kwargs"), [ast.Name(name)]):
            return page.fields_of(str(page.names.get(name, name)), page.path)
        case ast.Call(ast.Attribute(_, "_customize_cli_kwargs"), [inner]):
            return _meaning(page, inner)
        case ast.Call(ast.Attribute(inner, "copy"), []) | ast.Call(ast.Name("dict"), [inner]):
            known = _meaning(page, inner)
            return replace(known) if isinstance(known, DraftFlag) else known
        case ast.Subscript(inner, ast.Constant(str(key))):
            table = _meaning(page, inner)
            return table.get(key) if isinstance(table, dict) else None
        case ast.Dict(keys, values):
            return _merged(page, keys, values)
        case ast.Constant(str(text)):
            return text
    return None


def _merged(page: FunctionReader, keys: list[ast.expr | None], values: list[ast.expr]) -> DraftFlag:
    """`{**kwargs["x"], "default": None}`"""
    draft = DraftFlag()
    for key, value in zip(keys, values, strict=True):
        if key is None and isinstance(known := _meaning(page, value), DraftFlag):
            draft = replace(known)
        elif isinstance(key, ast.Constant):
            apply_keyword(page, draft, str(key.value), value)
    return draft


def apply_keyword(page: FunctionReader, draft: object, what: str, value: ast.expr) -> None:
    """One keyword of `add_argument`, as it changes a draft."""
    if not isinstance(draft, DraftFlag):
        return
    if what == "type":
        _touch_type(page, draft, value)
    elif what == "choices":
        words, whole = read_strings(page, value)
        draft.values, draft.open = words, not whole
    elif what == "action":
        _touch_action(draft, value)
    elif what == "nargs":
        draft.takes = (
            "optional" if literal_value(value) == "?" else "many" if literal_value(value) else "value"
        )
    elif what == "default":
        draft.default = literal_value(value)
    elif what == "deprecated":
        draft.deprecated = literal_value(value) is True


def _touch_action(draft: DraftFlag, value: ast.expr) -> None:
    name = literal_value(value) or (
        value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
    )
    if name == "BooleanOptionalAction":
        draft.kind, draft.takes, draft.twin = "bool", "nothing", True
    elif name in _NO_WORD:
        draft.kind, draft.takes = "bool", "nothing"
    elif "Deprecated" in str(name):
        draft.deprecated = True
        if name == "DeprecatedAction" or "StoreTrue" in str(name):
            draft.kind, draft.takes = "bool", "nothing"


def _touch_type(page: FunctionReader, draft: DraftFlag, value: ast.expr) -> None:
    match value:
        case ast.Call(ast.Name("optional_type" | "parse_type"), [inner]):
            _touch_type(page, draft, inner)
        case ast.Name(name) | ast.Attribute(_, name):
            bound = page.names.get(name)
            draft.kind = _KINDS.get(bound if isinstance(bound, str) else name, "str")
        case ast.Lambda(_, body):
            draft.folds = "lower()" in ast.unparse(body)


def _loop(page: FunctionReader, target: ast.expr, items: ast.expr, body: list[ast.stmt]) -> Iterator[Flag]:
    """A loop over written tuples is unrolled; one over a table of fields adds a flag a field."""
    match items:
        case ast.Call(ast.Attribute(table, "items"), []):
            known = _meaning(page, table)
            for name, draft in known.items() if isinstance(known, dict) else ():
                yield draft.flag([f"--{name.replace('_', '-')}"])
        case ast.List(rows) | ast.Tuple(rows):
            for row in rows:
                _bind(page, target, row)
                yield from read_arguments(page, body)


def _bind(page: FunctionReader, target: ast.expr, row: ast.expr) -> None:
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    parts = row.elts if isinstance(row, ast.Tuple) else [row]
    for name, part in zip(names, parts, strict=False):
        if isinstance(name, ast.Name):
            page.names[name.id] = part.id if isinstance(part, ast.Name) else literal_value(part)
