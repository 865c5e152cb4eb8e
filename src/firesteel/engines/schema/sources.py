"""The Python sources of one release, parsed and never executed.

Files move between releases, while classes rarely change their names. So a class is looked up by name: first
where the file at hand imports it from, then everywhere. `TypeHint` is the meaning of an annotation, derived
as the engines' own parsers do it: which plain types are in the union, which literal values, which config
class. `arguments` reads the flags.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import reduce

from firesteel.values import Value

_PLAIN = {"str", "int", "float", "bool", "dict", "list", "tuple", "set", "None"}
"""Types that a `TypeHint` names as they are."""
_BUILTIN_OF = {
    "List": "list", "Dict": "dict", "Tuple": "tuple", "Set": "set", "Sequence": "list", "Mapping": "dict",
}  # fmt: skip
"""Names of `typing` -> the built-in type that they stand for."""
_WRAPPERS = {"Optional", "Union", "SkipValidation", "InitVar", "Final", "A"}
"""Annotations that mean what is inside them; `A` is SGLang's name for `Annotated`."""
_TOP_LEVEL = re.compile(r"^(?:(?:class|def) (\w+)|(\w+)(?:\s*:[^\n=]*)? = )", re.MULTILINE)
"""What looks like a definition at top level: a class or function, or an assignment."""
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
                return self.hint(_parse_expression(text), path, depth + 1)
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


def _files_by_name(files: Mapping[str, str]) -> dict[str, list[str]]:
    """Name -> the files that seem to define it at top level, found without parsing them."""
    places: dict[str, list[str]] = {}
    for path in sorted(files):
        for defined, assigned in _TOP_LEVEL.findall(files[path]):
            places.setdefault(defined or assigned, []).append(path)
    return places


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _parse_expression(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.Name("object")


def _module_path(node: ast.ImportFrom, path: str) -> str:
    """`from ..x import y` in a/b/c.py -> a/x."""
    here = path.split("/")[: -node.level] if node.level else []
    return "/".join([*here, *(node.module or "").split(".")]).strip("/")
