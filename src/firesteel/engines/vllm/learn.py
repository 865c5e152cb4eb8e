"""The sources of a vLLM release -> its Schema.

`vllm serve` takes the fields of `FrontendArgs`, what `EngineArgs.add_cli_args` adds (mostly fields of the
config dataclasses), and a few more in `make_arg_parser`. The type of a field decides what its flag takes: a
config class takes JSON, a `bool` is a switch with a `--no-` negation, a `Literal` has choices, a list takes
every argument up to the next flag. Parsers are registered by name in their own packages; variables are the
keys of one dict in `envs.py`. Seen in 0.10 to 0.32.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from firesteel.engines.schema.arguments import (
    DraftFlag,
    Drafts,
    FunctionReader,
    literal_value,
    read_arguments,
    read_strings,
)
from firesteel.engines.schema.sources import Definition, SourceTree, TypeHint, enum_members
from firesteel.engines.schema.symbols import (
    Config,
    Flag,
    Kind,
    Schema,
    SymbolValue,
    layout_changed,
    self_check,
)
from firesteel.values import Value, replace

ENGINE = "vLLM"
_ALWAYS_STRICT = {"SpeculativeConfig"}
"""Built with `SpeculativeConfig(**keys)`, so an unknown key is an error whatever pydantic is configured to
do."""
_REQUIRED_FLAGS = (
    "model", "max-model-len", "gpu-memory-utilization", "port", "host", "speculative-config", "dtype",
)  # fmt: skip


class _Conversion(Value):
    """How the `get_kwargs` of this release converts some types."""

    sizes: frozenset[str]
    """Fields of type int that may be written 128k."""
    bare_strings: bool
    """A `bool | str` field is a flag with an optional value; before, a switch."""


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
    return self_check(schema, ENGINE, required=_REQUIRED_FLAGS, flags=150, variables=100, named=named)


def _conversion(tree: SourceTree) -> _Conversion:
    path = _class(tree, "EngineArgs").path
    sets = [_strings_in(node) for node in ast.walk(tree.module(path)) if isinstance(node, ast.Set)]
    sizes = {name for names in sets if "max_num_batched_tokens" in names for name in names}
    return _Conversion(frozenset(sizes | {"max_model_len"}), '["nargs"] = "?"' in tree.files[path])


def _flags(tree: SourceTree) -> Iterator[Flag]:
    yield Flag("help", SymbolValue(), "optional", ("-h",))
    for name in ("FrontendArgs", "EngineArgs", "AsyncEngineArgs"):
        yield from _own_arguments(tree, _class(tree, name), name)
    frontend = _class(tree, "FrontendArgs")
    parser = tree.find("make_arg_parser", frontend.path)
    if parser is None or not isinstance(parser.node, ast.FunctionDef):
        raise layout_changed(ENGINE, "the function `make_arg_parser`")
    yield from read_arguments(_reader(tree, parser.path, "FrontendArgs"), parser.node.body)


def _own_arguments(tree: SourceTree, definition: Definition, name: str) -> Iterator[Flag]:
    """What `add_cli_args` adds, its own or that of the nearest base, with the changes of
    `_customize_cli_kwargs`."""
    reader = _reader(tree, definition.path, name)
    family = list(tree.bases(definition))
    for item in family:
        for method in _methods(item, "_customize_cli_kwargs"):
            reader.path, reader.names["frontend_kwargs"] = item.path, reader.names["own"]
            list(read_arguments(reader, method.body))
    for item in reversed(family):
        for method in _methods(item, "add_cli_args"):
            reader.path = item.path
            yield from read_arguments(reader, method.body)
            return


def _reader(tree: SourceTree, path: str, own_class: str) -> FunctionReader:
    known: dict[str, Drafts] = {}
    conversion = _conversion(tree)

    def fields_of(name: str, where: str) -> Drafts:
        if name not in known:
            definition = tree.find(name, where)
            known[name] = _fields(tree, definition, conversion) if definition else {}
        return known[name]

    return FunctionReader(tree, path, fields_of, {"cls": own_class, "own": fields_of(own_class, path)})


def _methods(definition: Definition, name: str) -> list[ast.FunctionDef]:
    body = definition.node.body if isinstance(definition.node, ast.ClassDef) else []
    return [item for item in body if isinstance(item, ast.FunctionDef) and item.name == name]


def _class(tree: SourceTree, name: str) -> Definition:
    definition = tree.find_anywhere(name)
    if definition is None or not isinstance(definition.node, ast.ClassDef):
        raise layout_changed(ENGINE, f"the class `{name}`")
    return definition


def _fields(tree: SourceTree, definition: Definition, conversion: _Conversion) -> Drafts:
    """Every dataclass field as the argument that vLLM makes of it."""
    drafts: Drafts = {}
    for item in tree.bases(definition):
        for node in item.node.body if isinstance(item.node, ast.ClassDef) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and not _is_fixed(node):
                draft = _draft_flag(node.target.id, tree.hint(node.annotation, item.path), conversion)
                if "SkipValidation" in ast.unparse(node.annotation):
                    draft.config = ""  # vLLM fills it in itself
                draft.default = _default(node.value)
                _apply_validator(item, node.target.id, draft)
                drafts[node.target.id] = draft
    return drafts


def _is_fixed(node: ast.AnnAssign) -> bool:
    """Not an argument: a class variable, or `field(init=False)`."""
    set_inside = isinstance(node.value, ast.Call) and any(
        keyword.arg == "init" and literal_value(keyword.value) is False for keyword in node.value.keywords
    )
    return set_inside or "ClassVar" in ast.unparse(node.annotation)


def _default(node: ast.expr | None) -> str | int | float | bool | None:
    if isinstance(node, ast.Call):
        given = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
        return literal_value(given[0] if given else node.args[0] if node.args else None)
    return literal_value(node)


def _draft_flag(name: str, hint: TypeHint, conversion: _Conversion) -> DraftFlag:
    """In the order of vLLM's own tests: the first type that applies decides."""
    plain = hint.plain
    values = tuple(str(value) for value in hint.literals) or hint.names
    if hint.config:
        return DraftFlag("json", config="" if "dict" in plain else hint.config)
    if conversion.bare_strings and plain == {"bool", "str", "None"}:
        return DraftFlag(takes="optional")
    if "bool" in plain:
        return DraftFlag("bool", "nothing", twin=True)
    if "Literal" in plain:
        kind: Kind = "int" if all(isinstance(value, int) for value in hint.literals) else "str"
        is_open = "str" in plain
        return DraftFlag(
            kind, values=(*values, "None") if "None" in plain and not is_open else values, open=is_open
        )
    if plain & {"list", "tuple", "set"}:
        kind = "int" if hint.item == "int" else "float" if hint.item == "float" else "str"
        return DraftFlag(kind, "many", values, open=not values)
    if "int" in plain:
        return DraftFlag("size" if name in conversion.sizes else "int")
    if "float" in plain:
        return DraftFlag("float")
    if "dict" in plain:
        return DraftFlag("str" if "str" in plain else "json")
    return DraftFlag(values=values)


def _apply_validator(definition: Definition, name: str, draft: DraftFlag) -> None:
    """An enum read by name in any case: its validator has `Enum[value.upper()]`, and the values that it
    adds."""
    assert isinstance(definition.node, ast.ClassDef)
    for method in definition.node.body:
        if not isinstance(method, ast.FunctionDef) or not draft.values or draft.kind != "str":
            continue
        if f"'{name}'" in "".join(map(ast.unparse, method.decorator_list)) and ".upper()]" in ast.unparse(
            method
        ):
            draft.open, draft.folds = False, True
            compared = (item for item in ast.walk(method) if isinstance(item, ast.Compare))
            draft.values += tuple(
                word
                for item in compared
                for part in item.comparators
                if isinstance(word := literal_value(part), str)
            )


def _configs(tree: SourceTree, flags: Mapping[str, Flag]) -> dict[str, Config]:
    """The config classes that flags take as JSON, and the classes nested in them."""
    conversion = _conversion(tree)
    configs: dict[str, Config] = {}
    waiting = [flag.value.config for flag in flags.values() if flag.value.config]
    while waiting:
        name = waiting.pop()
        definition = tree.find_anywhere(name)
        if name in configs or definition is None:
            continue
        keys = {key: _key_value(draft) for key, draft in _fields(tree, definition, conversion).items()}
        configs[name] = Config(name, keys, name in _ALWAYS_STRICT or _forbids_extra(tree, definition))
        waiting += [value.config for value in keys.values() if value.config]
    return configs


def _key_value(draft: DraftFlag) -> SymbolValue:
    """What the command line writes as `None` is null in JSON."""
    values = tuple(value for value in draft.values if value != "None")
    return replace(draft, values=values).flag(["--key"]).value


def _forbids_extra(tree: SourceTree, definition: Definition) -> bool:
    """Whether the class, or vLLM's `config` decorator for all classes, sets `extra="forbid"`."""
    assert isinstance(definition.node, ast.ClassDef)
    decorators = "".join(map(ast.unparse, definition.node.decorator_list))
    decorator = tree.find("config", definition.path) if "config" in decorators else None
    shared = ast.unparse(decorator.node) if decorator and isinstance(decorator.node, ast.FunctionDef) else ""
    if decorator and not shared.count("extra"):  # overloads of the same name precede the implementation
        shared = "\n".join(
            ast.unparse(node)
            for node in tree.module(decorator.path).body
            if isinstance(node, ast.FunctionDef) and node.name == "config"
        )
    return "extra='forbid'" in decorators or ("extra='forbid'" in shared and "extra=" not in decorators)


def _parsers(tree: SourceTree, manager: str, table: str) -> set[str]:
    """Names in the table of lazy parsers; older releases have `@Manager.register_module(...)` instead."""
    definition = tree.find_anywhere(table)
    names = set(
        read_strings(FunctionReader(tree, ""), definition.node)[0]
        if definition and isinstance(definition.node, ast.Dict)
        else ()
    )
    for path in tree.paths_with(rf"^@{manager}\.register_module\("):
        for node in tree.module(path).body:
            for item in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                if isinstance(item, ast.Call) and f"{manager}.register_module" in ast.unparse(item.func):
                    given = [
                        *item.args,
                        *(keyword.value for keyword in item.keywords if keyword.arg == "name"),
                    ]
                    names |= {word for part in given for word in _strings_in(part)}
    return names


def _literal(tree: SourceTree, name: str) -> set[str]:
    definition = tree.find_anywhere(name)
    literals = tree.hint(ast.Name(name), definition.path).literals if definition else ()
    return {str(value) for value in literals}


def _strings_in(node: ast.expr) -> tuple[str, ...]:
    return tuple(
        item.value
        for item in ast.walk(node)
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    )


def _variables(tree: SourceTree) -> dict[str, SymbolValue]:
    definition = tree.find_anywhere("environment_variables")
    if definition is None or not isinstance(definition.node, ast.Dict):
        raise layout_changed(ENGINE, "the dict `environment_variables`")
    variables = {
        key.value: _variable(value)
        for key, value in zip(definition.node.keys, definition.node.values, strict=True)
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }
    backends = tree.find_anywhere("AttentionBackendEnum") or tree.find_anywhere("_Backend")
    if "VLLM_ATTENTION_BACKEND" in variables and backends and isinstance(backends.node, ast.ClassDef):
        names = sorted(set(enum_members(backends.node)))
        variables["VLLM_ATTENTION_BACKEND"] = SymbolValue("str", tuple(names), open=True, folds=True)
    return variables


def _variable(node: ast.expr) -> SymbolValue:
    """Only `env_with_choices(NAME, default, [choices], case_sensitive=False)` lists its values."""
    if not (isinstance(node, ast.Call) and "choices" in ast.unparse(node.func) and len(node.args) > 2):
        return SymbolValue()
    values, is_complete = read_strings(FunctionReader(SourceTree({}), ""), node.args[2])
    folds = any(
        keyword.arg == "case_sensitive" and not literal_value(keyword.value) for keyword in node.keywords
    )
    return SymbolValue(
        "str", tuple(sorted(values)), open=not is_complete, folds=folds, default=literal_value(node.args[1])
    )
