"""The sources of a vLLM release -> its Schema.

`vllm serve` takes the fields of `FrontendArgs`, what `EngineArgs.add_cli_args` adds (mostly fields of the
config dataclasses), and a few more in `make_arg_parser`. The type of a field decides what its flag takes: a
config class takes JSON, a `bool` is a switch with a `--no-` twin, a `Literal` has choices, a list takes every
word up to the next flag. Parsers are registered by name in their own packages; variables are the keys of one
dict in `envs.py`. Seen in 0.10 to 0.32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from firesteel.engines.schema.argparse_reader import (
    DraftFlag,
    Drafts,
    FunctionReader,
    literal_value,
    read_arguments,
    read_strings,
)
from firesteel.engines.schema.self_check import layout_changed, self_check
from firesteel.engines.schema.source_tree import Definition, SourceTree, TypeHint, enum_members
from firesteel.engines.schema.symbols import Config, Flag, Kind, Schema, Value

ENGINE = "vLLM"
_ALWAYS_STRICT = {"SpeculativeConfig"}
"""Built with `SpeculativeConfig(**keys)`, so a stray key is an error whatever pydantic is told."""
_REQUIRED_FLAGS = (
    "model",
    "max-model-len",
    "gpu-memory-utilization",
    "port",
    "host",
    "speculative-config",
    "dtype",
)


@dataclass(frozen=True, slots=True)
class _Habits:
    """What this release's `get_kwargs` does with some types."""

    sizes: frozenset[str]
    """Fields of type int that may be written 128k."""
    bare_strings: bool
    """A `bool | str` field is a flag with or without a word; before, a switch."""


def is_relevant(path: str) -> bool:
    """Whether a file of the wheel can matter: model code and kernels cannot."""
    parts = ("vllm/model_executor/models/", "vllm/third_party/", "vllm/vllm_flash_attn/", "vllm/benchmarks/")
    return path.startswith("vllm/") and path.endswith(".py") and not path.startswith(parts)


def learn(version: str, files: Mapping[str, str]) -> Schema:
    """Raises FiresteelError, naming what moved, rather than give half a schema."""
    tree = SourceTree(files)
    flags = {flag.name: flag for flag in _flags(tree)}
    if "optimization-level" in flags:  # `-O3` is rewritten before argparse sees it
        flags["optimization-level"] = replace(flags["optimization-level"], aliases=("-O",))
    registered = {
        "reasoning-parser": _parsers(tree, "ReasoningParserManager", "_REASONING_PARSERS_TO_REGISTER"),
        "tool-call-parser": _parsers(tree, "ToolParserManager", "_TOOL_PARSERS_TO_REGISTER"),
        "load-format": _literal(tree, "LoadFormats"),
        "quantization": _literal(tree, "QuantizationMethods"),
    }
    for name, names in registered.items():  # plugins may register more
        if name in flags:
            value = replace(flags[name].value, values=tuple(sorted(names)), open=True)
            flags[name] = replace(flags[name], value=value)
    schema = Schema("vllm", version, flags, _configs(tree, flags), _variables(tree))
    named = ("kv-cache-dtype", "load-format", "reasoning-parser", "tool-call-parser", "quantization")
    return self_check(schema, ENGINE, sure=_REQUIRED_FLAGS, flags=150, variables=100, named=named)


def _habits(tree: SourceTree) -> _Habits:
    path = _class(tree, "EngineArgs").path
    sets = [_words(node) for node in ast.walk(tree.module(path)) if isinstance(node, ast.Set)]
    sizes = {word for words in sets if "max_num_batched_tokens" in words for word in words}
    return _Habits(frozenset(sizes | {"max_model_len"}), '["nargs"] = "?"' in tree.files[path])


def _flags(tree: SourceTree) -> Iterator[Flag]:
    yield Flag("help", Value(), "optional", ("-h",))
    for name in ("FrontendArgs", "EngineArgs", "AsyncEngineArgs"):
        yield from _own_arguments(tree, _class(tree, name), name)
    frontend = _class(tree, "FrontendArgs")
    parser = tree.find("make_arg_parser", frontend.path)
    if parser is None or not isinstance(parser.node, ast.FunctionDef):
        raise layout_changed(ENGINE, "the function `make_arg_parser`")
    yield from read_arguments(_page(tree, parser.path, "FrontendArgs"), parser.node.body)


def _own_arguments(tree: SourceTree, found: Definition, name: str) -> Iterator[Flag]:
    """What `add_cli_args` adds, its own or the nearest base's, after `_customize_cli_kwargs` had its say."""
    page = _page(tree, found.path, name)
    family = list(tree.bases(found))
    for each in family:
        for method in _methods(each, "_customize_cli_kwargs"):
            page.path, page.names["frontend_kwargs"] = each.path, page.names["own"]
            list(read_arguments(page, method.body))
    for each in reversed(family):
        for method in _methods(each, "add_cli_args"):
            page.path = each.path
            yield from read_arguments(page, method.body)
            return


def _page(tree: SourceTree, path: str, own_class: str) -> FunctionReader:
    known: dict[str, Drafts] = {}
    habits = _habits(tree)

    def fields_of(name: str, where: str) -> Drafts:
        if name not in known:
            found = tree.find(name, where)
            known[name] = _fields(tree, found, habits) if found else {}
        return known[name]

    return FunctionReader(tree, path, fields_of, {"cls": own_class, "own": fields_of(own_class, path)})


def _methods(found: Definition, name: str) -> list[ast.FunctionDef]:
    body = found.node.body if isinstance(found.node, ast.ClassDef) else []
    return [each for each in body if isinstance(each, ast.FunctionDef) and each.name == name]


def _class(tree: SourceTree, name: str) -> Definition:
    found = tree.anywhere(name)
    if found is None or not isinstance(found.node, ast.ClassDef):
        raise layout_changed(ENGINE, f"the class `{name}`")
    return found


def _fields(tree: SourceTree, found: Definition, habits: _Habits) -> Drafts:
    """Every dataclass field as the argument that vLLM would make of it."""
    drafts: Drafts = {}
    for each in tree.bases(found):
        for node in each.node.body if isinstance(each.node, ast.ClassDef) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not _is_fixed(node):
                draft = _draft(node.target.id, tree.hint(node.annotation, each.path), habits)
                if "SkipValidation" in ast.unparse(node.annotation):
                    draft.config = ""  # filled in by the program itself
                draft.default = _default(node.value)
                _touch_by_validator(each, node.target.id, draft)
                drafts[node.target.id] = draft
    return drafts


def _is_fixed(node: ast.AnnAssign) -> bool:
    """Not for the outside: a class variable, or `field(init=False)`."""
    set_inside = isinstance(node.value, ast.Call) and any(
        keyword.arg == "init" and literal_value(keyword.value) is False for keyword in node.value.keywords
    )
    return set_inside or "ClassVar" in ast.unparse(node.annotation)


def _default(node: ast.expr | None) -> str | int | float | bool | None:
    if isinstance(node, ast.Call):
        given = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
        return literal_value(given[0] if given else node.args[0] if node.args else None)
    return literal_value(node)


def _draft(name: str, hint: TypeHint, habits: _Habits) -> DraftFlag:
    """vLLM's own order of asking: the first kind of type that fits decides."""
    plain = hint.plain
    words = tuple(str(value) for value in hint.literals) or hint.names
    if hint.config:
        return DraftFlag("json", config="" if "dict" in plain else hint.config)
    if habits.bare_strings and plain == {"bool", "str", "None"}:
        return DraftFlag(takes="optional")
    if "bool" in plain:
        return DraftFlag("bool", "nothing", twin=True)
    if "Literal" in plain:
        kind: Kind = "int" if all(isinstance(value, int) for value in hint.literals) else "str"
        is_open = "str" in plain
        return DraftFlag(
            kind, values=(*words, "None") if "None" in plain and not is_open else words, open=is_open
        )
    if plain & {"list", "tuple", "set"}:
        kind = "int" if hint.item == "int" else "float" if hint.item == "float" else "str"
        return DraftFlag(kind, "many", words, open=not words)
    if "int" in plain:
        return DraftFlag("size" if name in habits.sizes else "int")
    if "float" in plain:
        return DraftFlag("float")
    if "dict" in plain:
        return DraftFlag("str" if "str" in plain else "json")
    return DraftFlag(values=words)


def _touch_by_validator(found: Definition, name: str, draft: DraftFlag) -> None:
    """An enum read by name, any case: its validator says `Enum[value.upper()]`, and which words it adds."""
    assert isinstance(found.node, ast.ClassDef)
    for method in found.node.body:
        if not isinstance(method, ast.FunctionDef) or not draft.values or draft.kind != "str":
            continue
        if f"'{name}'" in "".join(map(ast.unparse, method.decorator_list)) and ".upper()]" in ast.unparse(
            method
        ):
            draft.open, draft.folds = False, True
            compared = (each for each in ast.walk(method) if isinstance(each, ast.Compare))
            draft.values += tuple(
                word
                for each in compared
                for part in each.comparators
                if isinstance(word := literal_value(part), str)
            )


def _configs(tree: SourceTree, flags: Mapping[str, Flag]) -> dict[str, Config]:
    """The config classes that flags take as JSON, and those inside them."""
    habits = _habits(tree)
    found: dict[str, Config] = {}
    waiting = [flag.value.config for flag in flags.values() if flag.value.config]
    while waiting:
        name = waiting.pop()
        where = tree.anywhere(name)
        if name in found or where is None:
            continue
        keys = {key: _key(draft) for key, draft in _fields(tree, where, habits).items()}
        found[name] = Config(name, keys, name in _ALWAYS_STRICT or _forbids(tree, where))
        waiting += [value.config for value in keys.values() if value.config]
    return found


def _key(draft: DraftFlag) -> Value:
    """In JSON nothing is null, on the command line it is the word None."""
    values = tuple(value for value in draft.values if value != "None")
    return replace(draft, values=values).flag(["--key"]).value


def _forbids(tree: SourceTree, found: Definition) -> bool:
    """Whether pydantic was told `extra="forbid"`: by the class, or by vLLM's `config` decorator for all."""
    assert isinstance(found.node, ast.ClassDef)
    said = "".join(map(ast.unparse, found.node.decorator_list))
    decorator = tree.find("config", found.path) if "config" in said else None
    shared = ast.unparse(decorator.node) if decorator and isinstance(decorator.node, ast.FunctionDef) else ""
    if decorator and not shared.count("extra"):  # overloads of the same name stand before the real one
        shared = "\n".join(
            ast.unparse(node)
            for node in tree.module(decorator.path).body
            if isinstance(node, ast.FunctionDef) and node.name == "config"
        )
    return "extra='forbid'" in said or ("extra='forbid'" in shared and "extra=" not in said)


def _parsers(tree: SourceTree, manager: str, table: str) -> set[str]:
    """Names in the table of lazy parsers, and in `@Manager.register_module(...)` before there was one."""
    found = tree.anywhere(table)
    names = set(
        read_strings(FunctionReader(tree, "", _no_fields), found.node)[0]
        if found and isinstance(found.node, ast.Dict)
        else ()
    )
    for path in tree.paths_with(rf"^@{manager}\.register_module\("):
        for node in tree.module(path).body:
            for each in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                if isinstance(each, ast.Call) and f"{manager}.register_module" in ast.unparse(each.func):
                    given = [
                        *each.args,
                        *(keyword.value for keyword in each.keywords if keyword.arg == "name"),
                    ]
                    names |= {word for part in given for word in _words(part)}
    return names


def _literal(tree: SourceTree, name: str) -> set[str]:
    found = tree.anywhere(name)
    literals = tree.hint(ast.Name(name), found.path).literals if found else ()
    return {str(value) for value in literals}


def _words(node: ast.expr) -> tuple[str, ...]:
    return tuple(
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def _no_fields(name: str, path: str) -> Drafts:
    return {}


def _variables(tree: SourceTree) -> dict[str, Value]:
    found = tree.anywhere("environment_variables")
    if found is None or not isinstance(found.node, ast.Dict):
        raise layout_changed(ENGINE, "the dict `environment_variables`")
    variables = {
        key.value: _variable(value)
        for key, value in zip(found.node.keys, found.node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    backends = tree.anywhere("AttentionBackendEnum") or tree.anywhere("_Backend")
    if "VLLM_ATTENTION_BACKEND" in variables and backends and isinstance(backends.node, ast.ClassDef):
        names = sorted(set(enum_members(backends.node)))
        variables["VLLM_ATTENTION_BACKEND"] = Value("str", tuple(names), open=True, folds=True)
    return variables


def _variable(node: ast.expr) -> Value:
    """`env_with_choices(NAME, default, [choices], case_sensitive=False)` names its values; others do not."""
    if not (isinstance(node, ast.Call) and "choices" in ast.unparse(node.func) and len(node.args) > 2):
        return Value()
    words, whole = read_strings(FunctionReader(SourceTree({}), "", _no_fields), node.args[2])
    folds = any(
        keyword.arg == "case_sensitive" and not literal_value(keyword.value) for keyword in node.keywords
    )
    return Value(
        "str", tuple(sorted(words)), open=not whole, folds=folds, default=literal_value(node.args[1])
    )
