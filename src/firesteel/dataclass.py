"""The standard library's `@dataclass` for frozen classes, ten times as quick to define a class.

    from firesteel.dataclass import dataclass

    @dataclass(frozen=True, slots=True)
    class Band: ...

A command imports more than a hundred frozen classes. `dataclasses` writes and compiles the source of six
methods for each of them, which was a third of the time of a plan. Here all classes share their methods except
`__init__`, whose code is compiled once for each number of fields and then gets the names of the class.
`fields`, `replace`, `asdict`, `match`, pickle, msgspec and type checkers see an ordinary dataclass. Classes
that are not frozen are left to the standard library: theirs is the quicker `__init__`. A frozen subclass
needs the same decorator as its base.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import cache, partial
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType, MemberDescriptorType
from typing import TYPE_CHECKING, Any, NoReturn

_WITHOUT_METHODS = {"frozen": False, "init": False, "repr": False, "eq": False}

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        def decorate(cls: type) -> type:
            if options.get("order") or not options.get("frozen"):
                return dataclasses.dataclass(**options)(cls)
            if not cls.__doc__:  # or else it gets one with the signature, for which Python runs a tokenizer
                cls.__doc__ = f"{cls.__name__}(...)"
            cls = dataclasses.dataclass(**options | _WITHOUT_METHODS)(cls)
            _add_methods(cls, options.get("slots", False))
            return cls

        return decorate(cls) if cls else decorate


def _add_methods(cls: Any, slots: bool) -> None:
    fields, own = dataclasses.fields(cls), cls.__dict__  # what the class defines itself stays
    names = [field.name for field in fields if field.compare]
    cls.__compared__ = attrgetter(names[0], *names) if names else staticmethod(lambda self: ())
    cls.__setattr__, cls.__delattr__ = _refuse_assignment, _refuse_deletion
    if own.get("__hash__") is None:  # Python puts None there where `__eq__` is defined
        cls.__hash__ = _hash
    if "__eq__" not in own:
        cls.__eq__ = _eq
    if "__repr__" not in own:
        cls.__repr__ = _repr
    if "__init__" not in own:
        cls.__init__ = _init(cls, fields, hasattr(cls, "__post_init__"))
        cls.__init__.__qualname__ = f"{cls.__qualname__}.__init__"
    if slots:  # pickle would assign to them
        cls.__getstate__, cls.__setstate__ = _get_state, _set_state


def _init(cls: Any, fields: tuple[Field[Any], ...], has_post_init: bool) -> FunctionType:
    """`__init__` with the parameters that these fields need."""
    if not all(field.init for field in fields):
        raise TypeError("a class with field(init=False) needs dataclasses.dataclass")
    positional = [field for field in fields if not field.kw_only]
    fields = (*positional, *(field for field in fields if field.kw_only))
    defaults = [_default(field) for field in positional]
    while defaults and defaults[0] is MISSING:
        del defaults[0]
    if MISSING in defaults:
        raise TypeError("a field without a default follows one that has a default")
    setters = {f"set_{index}": _setter(cls, field.name) for index, field in enumerate(fields)}
    template = _init_template(tuple(field.default_factory is not MISSING for field in fields), has_post_init)
    init = FunctionType(
        template.replace(
            co_argcount=1 + len(positional),
            co_kwonlyargcount=len(fields) - len(positional),
            co_varnames=("self", *(field.name for field in fields)),
        ),
        {
            **setters,
            "FACTORY": _FACTORY,
            "factories": [field.default_factory for field in fields],
        },
        "__init__",
        tuple(defaults),
    )
    init.__kwdefaults__ = {
        field.name: _default(field) for field in fields if field.kw_only and _default(field) is not MISSING
    }
    init.__annotations__ = {field.name: field.type for field in fields} | {"return": None}
    return init


def _setter(cls: Any, name: str) -> Any:
    """Sets a field of a frozen object: a slot by itself, which is quicker."""
    slot = getattr(cls, name, None)
    return slot.__set__ if isinstance(slot, MemberDescriptorType) else partial(_set_field, name)


def _set_field(name: str, self: Any, value: object) -> None:
    object.__setattr__(self, name, value)


@cache
def _init_template(has_factory: tuple[bool, ...], has_post_init: bool) -> CodeType:
    """The code of an `__init__` whose parameters are called `_0`, `_1` and so on."""
    values = [
        f"factories[{index}]() if _{index} is FACTORY else _{index}" if is_made else f"_{index}"
        for index, is_made in enumerate(has_factory)
    ]
    parameters = "".join(f", _{index}" for index in range(len(values)))
    lines = [f"    set_{index}(self, {value})" for index, value in enumerate(values)]
    last = "    self.__post_init__()" if has_post_init else "    return"
    namespace: dict[str, Any] = {}
    exec("\n".join((f"def __init__(self{parameters}):", *lines, last)), namespace)
    code: CodeType = namespace["__init__"].__code__
    return code


class _Factory:
    """The default of a parameter whose field has a `default_factory`."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else _FACTORY


@recursive_repr()
def _repr(self: Any) -> str:
    values = [
        f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr
    ]
    return f"{self.__class__.__qualname__}({', '.join(values)})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__compared__(self) == self.__compared__(other)


def _hash(self: Any) -> int:
    return hash(self.__compared__(self))


def _refuse_assignment(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)
