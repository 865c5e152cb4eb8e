"""`models/<org>/<name>.yaml` of vllm-project/recipes -> what its site renders for a DGX Spark.

A file holds no command, only the parts of many: arguments of the model, of each variant (a checkpoint), of
features and of hardware. The site lays them one over the other, and the last of a flag wins. Here every
variant gives one start: one Spark, the strategy `single_node_tp`, the features that are on unless somebody
turns them off; and the first variant one more for each feature that is off at first. Where an image is named
the start is the site's `docker run`, else a plain `vllm serve`.
Seen in `src/lib/command-synthesis.js` (`resolveCommand`, `computeDockerMeta`), 2026-08-21.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from firesteel.errors import UsageError
from firesteel.reads.container_start import EngineStart
from firesteel.reads.docker import DockerOption
from firesteel.reads.nodes import Node
from firesteel.reads.shell import Word
from firesteel.reads.template import implied
from firesteel.reads.yaml_values import place

SPARK = "dgx_spark_gb10"
_GENERATIONS = ("blackwell", "nvidia")
"""Overrides for a Spark's kind of GPU; the first that is there counts."""
_STRATEGY = "single_node_tp"
MAX_PARTS = 200
"""Variants, and features, that a file may have."""
MAX_WORDS = 20_000
"""Arguments of all starts together."""


@dataclass(frozen=True, slots=True)
class _Choice:
    recipe: Node
    name: str
    """The variant's."""
    variant: Node
    features: tuple[str, ...]


def starts(document: Node) -> Iterable[EngineStart] | None:
    model, variants = document.get("model"), document.get("variants")
    if model is None or variants is None or model.get("model_id") is None or document.get("meta") is None:
        return None
    if document.get("omni"):
        raise UsageError(
            f"{document.page.path} is a recipe for vLLM-Omni, and firesteel knows vLLM's own flags only",
            next="firesteel check, with the recipe of a model that vLLM serves itself",
        )
    features = document.get("features")
    for parts in _there(variants, features):
        _bound(document, len(tuple(parts.items())), MAX_PARTS, "variants or features")
    found: list[EngineStart] = []
    for choice in _choices(document, variants):
        start = _start(choice)
        found += [start] if start else []
        _bound(document, sum(len(start.words) for start in found), MAX_WORDS, "arguments")
    return found


def _bound(document: Node, count: int, most: int, what: str) -> None:
    if count > most:
        raise UsageError(
            f"{document.page.path} holds more than {most:,} {what}", next="give it in smaller parts"
        )


def _choices(recipe: Node, variants: Node) -> Iterator[_Choice]:
    lists = (recipe.get("opt_in_features"), recipe.get("hardware_opt_in_features", SPARK))
    off = {name for each in lists for name in _texts(each)}
    features = recipe.get("features")
    every = tuple(name for name, _ in features.items()) if features else ()
    on = tuple(name for name in every if name not in off)
    rows = list(variants.items())
    for name, variant in rows:
        steered = variant.get("default_modes")
        forced = {feature for feature, _ in steered.items()} if steered else set()
        yield _Choice(recipe, name, variant, tuple(each for each in every if each in on or each in forced))
    for feature in (each for each in every if each in off and rows):
        yield _Choice(recipe, *rows[0], (*on, feature))


def _texts(node: Node | None) -> tuple[str, ...]:
    return tuple(each.text for each in node.each() if each.text is not None) if node else ()


def _start(choice: _Choice) -> EngineStart | None:
    named = choice.variant.get("model_id") or choice.recipe.get("model", "model_id")
    model = named.word if named else None
    if model is None:
        return None
    words = (model, *_last_of_each(list(_arguments(choice, model))))
    image, env = _image(choice), dict(_environment(choice))
    if image is None:
        program = (implied("vllm", model), implied("serve", model))
        return EngineStart((*program, *words), env={name: place(node) for name, (_, node) in env.items()})
    options = (("gpus", "all"), ("ipc", "host"), ("publish", "8000:8000"))
    given = [DockerOption(name, value, image) for name, value in options]
    given += [
        DockerOption("env", f"{name}={node.text or ''}", key, place(node))
        for name, (key, node) in env.items()
    ]
    return EngineStart(words, image, tuple(given))


def _before_strategy(choice: _Choice) -> Iterator[Node]:
    """What adds arguments and variables, in the site's order."""
    yield choice.variant
    yield from _there(choice.variant.get("hardware_overrides", SPARK))


def _after_strategy(choice: _Choice) -> Iterator[Node]:
    recipe, variant = choice.recipe, choice.variant
    strategy = recipe.get("strategy_overrides", _STRATEGY)
    yield from _there(strategy)
    for_strategy = _generation(strategy)
    if for_strategy:
        yield for_strategy
    else:
        yield from _there(_generation(recipe), _generation(variant))
    yield from _there(strategy.get("hardware_overrides", SPARK) if strategy else None)


def _there(*nodes: Node | None) -> Iterator[Node]:
    yield from (node for node in nodes if node)


def _generation(node: Node | None) -> Node | None:
    rows = (node.get("hardware_overrides", each) for each in _GENERATIONS) if node else ()
    return next((row for row in rows if row), None)


def _arguments(choice: _Choice, model: Word) -> Iterator[Word]:
    yield from _all_words(choice.recipe.get("model", "base_args"))
    for layer in _before_strategy(choice):
        yield from _all_words(layer.get("extra_args"))
    yield from (implied(word, model) for word in ("--tensor-parallel-size", "1"))
    for layer in _after_strategy(choice):
        yield from _all_words(layer.get("extra_args"), layer.get("vllm_args"))
    for name in choice.features:
        yield from _all_words(_feature(choice, name))


def _all_words(*nodes: Node | None) -> Iterator[Word]:
    yield from (word for node in _there(*nodes) for word in node.words())


def _feature(choice: _Choice, name: str) -> Node | None:
    """The arguments of a feature, or of the one of its modes that is on."""
    feature = choice.recipe.get("features", name)
    allowed = _texts(feature.get("strategies")) if feature else ()
    if feature is None or (allowed and _STRATEGY not in allowed):
        return None
    if not feature.get("modes"):
        over = _generation(feature)
        return (over.get("args") if over else None) or feature.get("args")
    mode = _mode(choice, name, feature)
    if mode is None:
        return None
    over = mode.get("hardware_overrides", SPARK) or _generation(mode)
    return (over.get("args") if over else None) or mode.get("args")


def _mode(choice: _Choice, name: str, feature: Node) -> Node | None:
    """A feature with modes has one at a time: the variant's, its own first choice, or the first allowed."""
    modes = feature.get("modes")
    allowed = {key: mode for key, mode in (modes.items() if modes else ()) if _is_allowed(mode, choice.name)}
    wishes = (choice.variant.get("default_modes", name), feature.get("default_mode"))
    wished = (wish.text for wish in wishes if wish)
    chosen = next((key for key in wished if key in allowed), next(iter(allowed), None))
    return allowed.get(chosen) if chosen is not None else None


def _is_allowed(mode: Node, variant: str) -> bool:
    variants = _texts(mode.get("variants"))
    gates = _there(*(mode.get("hardware", each) for each in (SPARK, _GENERATIONS[0])))
    return (not variants or variant in variants) and all(gate.text != "unsupported" for gate in gates)


def _environment(choice: _Choice) -> Iterator[tuple[str, tuple[Word, Node]]]:
    layers = (*_before_strategy(choice), *_after_strategy(choice))
    given = (layer.get(key) for layer in layers for key in ("env", "extra_env"))
    for env in _there(choice.recipe.get("model", "base_env"), *given):
        yield from env.entries().items()


def _image(choice: _Choice) -> Word | None:
    """The image for an NVIDIA GPU where the file names one: the Spark's, the variant's, the model's."""
    exact = choice.variant.get("hardware_overrides", SPARK, "docker_image")
    for node in _there(exact, choice.variant.get("docker_image"), choice.recipe.get("model", "docker_image")):
        kinds = (node, node.get("nvidia"), node.get("cu130"), node.get("nvidia", "cu130"))
        word = next((each.word for each in kinds if each and each.text), None)
        if word:
            return word
    return None


def _last_of_each(words: list[Word]) -> list[Word]:
    """Of a flag that several layers give, only the last stays."""
    units: list[tuple[Word, ...]] = []
    for word in words:
        if units and not word.text.startswith("-") and len(units[-1]) == 1 and _is_flag(units[-1][0]):
            units[-1] = (units[-1][0], word)
        else:
            units.append((word,))
    last = {unit[0].text: index for index, unit in enumerate(units)}
    kept = (unit for index, unit in enumerate(units) if not _is_flag(unit[0]) or last[unit[0].text] == index)
    return [word for unit in kept for word in unit]


def _is_flag(word: Word) -> bool:
    return word.text.startswith("-")
