"""`models/<org>/<name>.yaml` of vllm-project/recipes -> what its site renders for a DGX Spark.

A file has no command, only the parts of many: arguments of the model, of each variant (a checkpoint), of
features and of hardware. The site merges them, and the last value of a flag wins. Here every variant gives
one start: one Spark, the strategy `single_node_tp`, the features that are on by default; and the first
variant gives one more for each feature that is off by default. With an image the start is the site's
`docker run`, without one a plain `vllm serve`. Arguments and variables that no Spark gets (for another GPU or
strategy) are one start each, so that they are checked against the release.
Seen in `src/lib/command-synthesis.js` (`resolveCommand`, `computeDockerMeta`), 2026-08-21.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from firesteel.errors import UsageError
from firesteel.reads.docker import DockerOption, EngineStart
from firesteel.reads.shell import Word, unglued
from firesteel.reads.template import implied_word
from firesteel.reads.yaml_nodes import Node, node_word
from firesteel.values import Value, replace

SPARK = "dgx_spark_gb10"
_GENERATIONS = ("blackwell", "nvidia")
"""Keys of overrides for the Spark's kind of GPU; the first that exists counts."""
_STRATEGY = "single_node_tp"
_MINIMUM = "min_vllm_version"
_ARGUMENTS = ("extra_args", "args", "vllm_args")
_VARIABLES = ("env", "extra_env")
MAX_PARTS = 200
"""Of variants, and of features."""
MAX_WORDS = 20_000
"""Arguments of all starts together."""


class _Configuration(Value):
    recipe: Node
    variant_name: str
    variant: Node
    features: tuple[str, ...]


def starts(document: Node) -> Iterable[EngineStart] | None:
    model, variants = document.get("model"), document.get("variants")
    if model is None or variants is None or model.get("model_id") is None or document.get("meta") is None:
        return None
    if document.get("omni"):
        raise UsageError(
            f"{document.file.path} is a recipe for vLLM-Omni, and firesteel knows only the flags of vLLM",
            next="firesteel check RECIPE, with a recipe for vLLM itself",
        )
    features = document.get("features")
    for parts in _existing(variants, features):
        _check_limit(document, len(tuple(parts.items())), MAX_PARTS, "variants or features")
    found: list[EngineStart] = []
    for config in _configurations(document, variants):
        start = _start(config)
        found += [start] if start else []
        _check_limit(document, sum(len(start.arguments) for start in found), MAX_WORDS, "arguments")
    used = {word.span for start in found for word in _words_of(start)}
    configurations = list(_configurations(document, variants))
    for path, part in _parts(document, ()) if configurations else ():
        names = path[1:2] if path[0] == "variants" else _texts(part, "variants")
        named = [config for config in configurations if config.variant_name in names]
        other = _other_start((named or configurations)[0], path, part)
        if other and any(word.span not in used for word in _words_of(other)):
            found.append(other)
            used |= {word.span for word in _words_of(other)}
            _check_limit(document, sum(len(start.arguments) for start in found), MAX_WORDS, "arguments")
    return found


def _words_of(start: EngineStart) -> Iterator[Word]:
    yield from start.arguments
    yield from start.env.values()
    yield from (option.words[-1] for option in start.options if option.name == "env")


def _parts(node: Node, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Every mapping that has arguments or variables, and where it is."""
    if any(node.get(key) for key in (*_ARGUMENTS, *_VARIABLES)):
        yield path, node
    for name, child in node.items():
        yield from _parts(child, (*path, name))


def _other_start(config: _Configuration, path: tuple[str, ...], part: Node) -> EngineStart | None:
    model = config.recipe.word_at("model", "model_id")
    if model is None:
        return None
    words = _all_words(config.recipe.get("model", "base_args"), *(part.get(key) for key in _ARGUMENTS))
    variables = _existing(config.recipe.get("model", "base_env"), *(part.get(key) for key in _VARIABLES))
    env = {name: entry for node in variables for name, entry in node.entries().items()}
    # A section for Blackwell may be for a Spark, and need its image; one for a variant needs the variant's.
    image = _image(config) if set(path) & set(_GENERATIONS) or part.get("variants") else None
    arguments = (model, *_last_values([*words]))
    return replace(_engine_start(config, arguments, image, env), hardware=".".join(path))


def _check_limit(document: Node, count: int, limit: int, parts: str) -> None:
    if count > limit:
        raise UsageError(f"{document.file.path} has more than {limit:,} {parts}", next="split the file")


def _configurations(recipe: Node, variants: Node) -> Iterator[_Configuration]:
    off_by_default = {
        *_texts(recipe, "opt_in_features"),
        *_texts(recipe, "hardware_opt_in_features", SPARK),
    }
    features = tuple(name for name, _ in recipe.items("features"))
    on = tuple(name for name in features if name not in off_by_default)
    named_variants = list(variants.items())
    for name, variant in named_variants:
        forced = {feature for feature, _ in variant.items("default_modes")}
        enabled = tuple(feature for feature in features if feature in on or feature in forced)
        yield _Configuration(recipe, name, variant, enabled)
    for feature in features if named_variants else ():
        if feature in off_by_default:
            yield _Configuration(recipe, *named_variants[0], (*on, feature))


def _texts(node: Node, *keys: str) -> tuple[str, ...]:
    return tuple(item.text for item in node.list_items(*keys) if item.text is not None)


def _start(config: _Configuration) -> EngineStart | None:
    node = config.variant.get("model_id") or config.recipe.get("model", "model_id")
    model = node.word if node else None
    if model is None:
        return None
    arguments = (model, *_last_values(list(_arguments(config, model))))
    return _engine_start(config, arguments, _image(config), dict(_environment(config)))


def _engine_start(
    config: _Configuration,
    arguments: tuple[Word, ...],
    image: Word | None,
    env: Mapping[str, tuple[Word, Node]],
) -> EngineStart:
    minimum = config.variant.word_at(_MINIMUM) or config.recipe.word_at("model", _MINIMUM)
    if image is None:
        program = (implied_word("vllm", arguments[0]), implied_word("serve", arguments[0]))
        return EngineStart(
            (*program, *arguments),
            env={name: node_word(node) for name, (_, node) in env.items()},
            minimum=minimum,
        )
    site_options = (("gpus", "all"), ("ipc", "host"), ("publish", "8000:8000"))
    options = [DockerOption(name, value, image) for name, value in site_options]
    options += [
        DockerOption("env", f"{name}={node.text or ''}", key, node_word(node))
        for name, (key, node) in env.items()
    ]
    return EngineStart(arguments, image, tuple(options), minimum=minimum)


def _before_strategy(config: _Configuration) -> Iterator[Node]:
    """The parts with arguments and variables, in the site's order."""
    yield config.variant
    yield from _existing(config.variant.get("hardware_overrides", SPARK))


def _after_strategy(config: _Configuration) -> Iterator[Node]:
    recipe, variant = config.recipe, config.variant
    strategy = recipe.get("strategy_overrides", _STRATEGY)
    yield from _existing(strategy)
    override = _generation(strategy)
    if override:
        yield override
    else:
        yield from _existing(_generation(recipe), _generation(variant))
    yield from _existing(strategy.get("hardware_overrides", SPARK) if strategy else None)


def _existing(*nodes: Node | None) -> Iterator[Node]:
    yield from (node for node in nodes if node)


def _generation(node: Node | None) -> Node | None:
    overrides = (node.get("hardware_overrides", name) for name in _GENERATIONS) if node else ()
    return next(_existing(*overrides), None)


def _arguments(config: _Configuration, model: Word) -> Iterator[Word]:
    yield from _all_words(config.recipe.get("model", "base_args"))
    for layer in _before_strategy(config):
        yield from _all_words(layer.get("extra_args"))
    yield from (implied_word(word, model) for word in ("--tensor-parallel-size", "1"))
    for layer in _after_strategy(config):
        yield from _all_words(layer.get("extra_args"), layer.get("vllm_args"))
    for name in config.features:
        yield from _all_words(_feature(config, name))


def _all_words(*nodes: Node | None) -> Iterator[Word]:
    # The site does not quote flags, so a flag and its value in one item are two words of its command.
    yield from (part for node in _existing(*nodes) for word in node.words() for part in unglued(word))


def _feature(config: _Configuration, name: str) -> Node | None:
    """The arguments of a feature, or of the mode of it that is on."""
    feature = config.recipe.get("features", name)
    if feature is None:
        return None
    allowed = _texts(feature, "strategies")
    if allowed and _STRATEGY not in allowed:
        return None
    if not feature.get("modes"):
        override = _generation(feature)
        return (override.get("args") if override else None) or feature.get("args")
    mode = _mode(config, name, feature)
    if mode is None:
        return None
    override = mode.get("hardware_overrides", SPARK) or _generation(mode)
    return (override.get("args") if override else None) or mode.get("args")


def _mode(config: _Configuration, name: str, feature: Node) -> Node | None:
    """A feature has one mode at a time: the variant's, the feature's default, or the first allowed."""
    modes = feature.items("modes")
    allowed = {key: mode for key, mode in modes if _is_allowed(mode, config.variant_name)}
    preferred = _existing(config.variant.get("default_modes", name), feature.get("default_mode"))
    key = next((node.text for node in preferred if node.text in allowed), next(iter(allowed), None))
    return allowed[key] if key is not None else None


def _is_allowed(mode: Node, variant: str) -> bool:
    variants = _texts(mode, "variants")
    support = _existing(*(mode.get("hardware", name) for name in (SPARK, _GENERATIONS[0])))
    return (not variants or variant in variants) and all(node.text != "unsupported" for node in support)


def _environment(config: _Configuration) -> Iterator[tuple[str, tuple[Word, Node]]]:
    layers = (*_before_strategy(config), *_after_strategy(config))
    envs = (layer.get(key) for layer in layers for key in ("env", "extra_env"))
    for env in _existing(config.recipe.get("model", "base_env"), *envs):
        yield from env.entries().items()


def _image(config: _Configuration) -> Word | None:
    """The image for an NVIDIA GPU, if the file names one: the Spark's, the variant's, the model's."""
    exact = config.variant.get("hardware_overrides", SPARK, "docker_image")
    for node in _existing(
        exact, config.variant.get("docker_image"), config.recipe.get("model", "docker_image")
    ):
        for image in _existing(node, node.get("nvidia"), node.get("cu130"), node.get("nvidia", "cu130")):
            if image.text:
                return image.word
    return None


def _last_values(words: list[Word]) -> list[Word]:
    """Of a flag that several layers set, only the last value stays."""
    settings: list[tuple[Word, ...]] = []
    for word in words:
        if settings and not _is_flag(word) and len(settings[-1]) == 1 and _is_flag(settings[-1][0]):
            settings[-1] = (settings[-1][0], word)
        else:
            settings.append((word,))
    last = {setting[0].text: setting for setting in settings}
    return [
        word
        for setting in settings
        if not _is_flag(setting[0]) or last[setting[0].text] is setting
        for word in setting
    ]


def _is_flag(word: Word) -> bool:
    return word.text.startswith("-")
