"""The Python sources of one release, parsed and never executed.

Files move between releases, while classes rarely change their names. So a class is looked up by name: first
where the file at hand imports it from, then everywhere. `TypeHint` is the meaning of an annotation, derived
as the engines' own parsers do it: which plain types are in the union, which literal values, which config
class.

Reads the `parser.add_argument(...)` calls of a function without executing it.

vLLM derives most arguments from dataclass fields (`kwargs = get_kwargs(ModelConfig)`, then
`add_argument("--dtype", **kwargs["dtype"])`) and modifies a few before adding them; SGLang writes them out.
Both are straight-line code, so it is enough to follow assignments of those few shapes; any other statement is
ignored. A `DraftFlag` is a flag whose keywords are still being collected.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce

from msgspec import Struct

from firesteel.engines.schema.symbols import Default, Flag, Kind, Schema, SymbolValue, Takes
from firesteel.errors import FiresteelError
from firesteel.values import Value, replace

_PLAIN = {"str", "int", "float", "bool", "dict", "list", "tuple", "set", "None"}
_BUILTIN_OF = {
    "List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "Sequence": "list", "Mapping": "dict",
}  # fmt: skip
_WRAPPERS = {"Optional", "Union", "SkipValidation", "InitVar", "Final", "A"}
_TOP_LEVEL = re.compile(r"^(?:(?:class|def) (\w+)|(\w+)(?:\s*:[^\n=]*)? = )", re.MULTILINE)
_MAX_DEPTH = 12
"""Aliases of aliases; a cycle ends here."""


class Definition(Value):
    """A class, a function or the value of an assignment, and the file that holds it."""

    node: ast.ClassDef | ast.FunctionDef | ast.expr
    path: str


class TypeHint(Value):
    """The meaning of an annotation."""

    plain: frozenset[str] = frozenset()
    """Names of the built-in types in the union; `other` for any class that is none of these."""
    literals: tuple[str | int | float | bool, ...] = ()
    names: tuple[str, ...] = ()
    """Members of an enum in the union."""
    config: str = ""
    """A dataclass in the union."""
    item: str = ""
    """The type of the items of a list, tuple or set."""

    def __or__(self, other: TypeHint) -> TypeHint:
        return TypeHint(
            self.plain | other.plain,
            (*self.literals, *other.literals),
            (*self.names, *other.names),
            self.config or other.config,
            self.item or other.item,
        )


class SourceTree:
    """Path -> text of one release; a file is parsed when it is first needed."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self._modules: dict[str, ast.Module] = {}
        self._files_by_name: dict[str, list[str]] | None = None

    def module(self, path: str) -> ast.Module:
        if path not in self._modules:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                try:
                    self._modules[path] = ast.parse(self.files[path])
                except SyntaxError:  # written for a newer Python; its names count as not found
                    self._modules[path] = ast.Module([], [])
        return self._modules[path]

    def paths_with(self, pattern: str) -> Iterator[str]:
        wanted = re.compile(pattern, re.MULTILINE)
        return (path for path in sorted(self.files) if wanted.search(self.files[path]))

    def find_anywhere(self, name: str) -> Definition | None:
        """A top-level class, function or assignment of this name, in any file."""
        if self._files_by_name is None:
            self._files_by_name = _files_by_name(self.files)
        for path in self._files_by_name.get(name, ()):
            if (node := self._own(name, path)) is not None:
                return Definition(node, path)
        return None

    def find(self, name: str, path: str, depth: int = 0) -> Definition | None:
        """The definition that a name has in a file."""
        if depth > _MAX_DEPTH:
            return None
        if (node := self._own(name, path)) is not None:
            return Definition(node, path)
        for source, original in self._imported(name, path):
            if source in self.files and (definition := self.find(original, source, depth + 1)):
                return definition
        return self.find_anywhere(name) if depth == 0 else None

    def _own(self, name: str, path: str) -> ast.ClassDef | ast.FunctionDef | ast.expr | None:
        for node in self.module(path).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                return node
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            bound = any(isinstance(target, ast.Name) and target.id == name for target in targets)
            if bound and isinstance(value, ast.expr):
                return value
        return None

    def _imported(self, name: str, path: str) -> Iterator[tuple[str, str]]:
        """(file, name there) for `from x import y as name`, conditional imports included."""
        for node in ast.walk(self.module(path)):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        where = _module_path(node, path)
                        yield from ((f"{where}.py", alias.name), (f"{where}/__init__.py", alias.name))

    def bases(self, definition: Definition) -> Iterator[Definition]:
        """The class and its bases, farthest first."""
        if isinstance(definition.node, ast.ClassDef):
            for base in definition.node.bases:
                if isinstance(base, ast.Name) and (parent := self.find(base.id, definition.path)):
                    yield from self.bases(parent)
            yield definition

    def hint(self, node: ast.expr, path: str, depth: int = 0) -> TypeHint:
        """The meaning of an annotation in a file."""
        if depth > _MAX_DEPTH:
            return TypeHint()
        match node:
            case ast.Constant(None):
                return TypeHint(frozenset({"None"}))
            case ast.Constant(str(text)):
                return self.hint(_expression(text), path, depth + 1)
            case ast.BinOp(left, ast.BitOr(), right):
                return self.hint(left, path, depth + 1) | self.hint(right, path, depth + 1)
            case ast.Subscript(value, inner):
                return self._subscript(_last_name(value), inner, path, depth)
            case ast.Name(name):
                return self._name(_BUILTIN_OF.get(name, name), path, depth)
            case ast.Attribute(_, name):
                return self._name(name, path, depth)
        return TypeHint(frozenset({"other"}))

    def _subscript(self, name: str, inner: ast.expr, path: str, depth: int) -> TypeHint:
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        name = _BUILTIN_OF.get(name, name)
        if name == "Literal":
            return TypeHint(frozenset({"Literal"}), tuple(self._literals(parts, path, depth)))
        if name in ("Annotated", "A"):
            return self.hint(parts[0], path, depth + 1)
        if name in _WRAPPERS:
            none = TypeHint(frozenset({"None"})) if name == "Optional" else TypeHint()
            return reduce(TypeHint.__or__, (self.hint(part, path, depth + 1) for part in parts), none)
        if name in ("list", "tuple", "set"):
            item = self.hint(parts[0], path, depth + 1)
            kind = next((plain for plain in ("str", "int", "float") if plain in item.plain), "")
            return TypeHint(frozenset({name}), item.literals, item.names, item=kind)
        return TypeHint(frozenset({name if name in _PLAIN else "other"}))

    def _literals(self, parts: list[ast.expr], path: str, depth: int) -> Iterator[str | int | float | bool]:
        """Values of `Literal[...]`; a Literal inside a Literal is flattened, as typing does it."""
        for part in parts:
            match part:
                case ast.Constant(str() | int() | float() as value):
                    yield value
                case ast.Name() | ast.Attribute() | ast.Subscript():
                    yield from self.hint(part, path, depth + 1).literals

    def _name(self, name: str, path: str, depth: int) -> TypeHint:
        if name in _PLAIN:
            return TypeHint(frozenset({name}))
        definition = self.find(name, path)
        if definition is None or isinstance(definition.node, ast.FunctionDef):
            return TypeHint(frozenset({"other"}))
        if not isinstance(definition.node, ast.ClassDef):
            return self.hint(definition.node, definition.path, depth + 1)
        decorators = (
            item.func if isinstance(item, ast.Call) else item for item in definition.node.decorator_list
        )
        if any(_last_name(decorator) in ("config", "dataclass") for decorator in decorators):
            return TypeHint(frozenset({"other"}), config=definition.node.name)
        bases = {
            _last_name(base.value if isinstance(base, ast.Subscript) else base)
            for base in definition.node.bases
        }
        if any("Enum" in base or base == "Flag" for base in bases):
            return TypeHint(frozenset({"other"}), names=tuple(enum_members(definition.node)))
        return TypeHint(frozenset({"dict" if "dict" in bases else "other"}))


def _files_by_name(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Name -> the files that seem to define it at top level, found without parsing them."""
    places: dict[str, list[str]] = {}
    for path in sorted(files):
        for defined, assigned in _TOP_LEVEL.findall(files[path]):
            places.setdefault(defined or assigned, []).append(path)
    return places


def enum_members(node: ast.ClassDef) -> Iterator[str]:
    """Members, and their values where these are plain names or numbers (not import paths)."""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id
            match statement.value:
                case ast.Constant(str(text)) if re.fullmatch(r"[\w+-]+", text):
                    yield text
                case ast.Constant(int(number)) if not isinstance(number, bool):
                    yield str(number)


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.Name("object")


def _module_path(node: ast.ImportFrom, path: str) -> str:
    """`from ..x import y` in a/b/c.py -> a/x."""
    here = path.split("/")[: -node.level] if node.level else []
    return "/".join([*here, *(node.module or "").split(".")]).strip("/")


Drafts = dict[str, "DraftFlag"]
_KINDS: Mapping[str, Kind] = {
    "int": "int", "nullable_int": "int", "float": "float", "str": "str", "nullable_str": "str",
    "loads": "json", "json_list_type": "json", "union_dict_and_str": "json",
    "human_readable_int": "size", "human_readable_int_or_auto": "size",
}  # fmt: skip
_NO_VALUE = {"store_true", "store_false", "store_const", "count", "help", "version"}


class DraftFlag(Struct):
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
    value = literal_value(node)
    if isinstance(node, ast.Constant) and node.value is None:
        return (), True
    return ((), False) if value is None else ((str(value),), True)


def _read_call(reader: FunctionReader, call: ast.Call) -> Iterator[Flag]:
    match call.func:
        case ast.Attribute(_, "add_argument"):
            names = [name for arg in call.args if (name := _read_text(reader, arg)) and name.startswith("-")]
            if names:
                yield _read_argument(reader, call).flag(names)
        case ast.Attribute(ast.Subscript(target, ast.Constant("choices")), "remove"):
            if isinstance(draft := _evaluate(reader, target), DraftFlag):
                gone = _read_text(reader, call.args[0])
                draft.values = tuple(value for value in draft.values if value != gone)


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


def _read_argument(reader: FunctionReader, call: ast.Call) -> DraftFlag:
    draft = DraftFlag()
    for keyword in call.keywords:
        if keyword.arg is None and isinstance(known := _evaluate(reader, keyword.value), DraftFlag):
            draft = replace(known, deprecated=known.deprecated or draft.deprecated)
    for keyword in call.keywords:
        if keyword.arg is not None:
            apply_keyword(reader, draft, keyword.arg, keyword.value)
    return draft


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


def _apply_type(reader: FunctionReader, draft: DraftFlag, value: ast.expr) -> None:
    match value:
        case ast.Call(ast.Name("optional_type" | "parse_type"), [inner]):
            _apply_type(reader, draft, inner)
        case ast.Name(name) | ast.Attribute(_, name):
            bound = reader.names.get(name)
            draft.kind = _KINDS.get(bound if isinstance(bound, str) else name, "str")
        case ast.Lambda(_, body):
            draft.folds = "lower()" in ast.unparse(body)


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


def layout_changed(engine: str, missing: str, version: str = "") -> FiresteelError:
    return FiresteelError(
        f"{missing} was not found in the sources of {f'{engine} {version}'.strip()}; firesteel cannot read"
        " the layout of this release, so nothing was learned",
        next="use a known release (firesteel engine learn ENGINE --list), or update firesteel",
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
