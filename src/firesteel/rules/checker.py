"""Check a launch against all rules.

A folder has thousands of launches, and of the rules on an engine most are about something that a launch does
not have: a flag, a variable, a container. So `RuleIndex` looks rules up by what is there, and only those are
tried. `matches` then compares a rule's matchers with the launch: some only decide whether the rule applies
(engine, version, hardware); the others also return the part of the launch that they matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date
from fnmatch import fnmatchcase, translate
from functools import cache
from types import MappingProxyType

from packaging.version import Version

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import ImageProblem, Images, identify, is_upstream
from firesteel.engines.engine import format_flag, grammar
from firesteel.engines.flags import compact_json, name_set
from firesteel.errors import escape_unprintable
from firesteel.facts.evidence import Evidence
from firesteel.launch import EngineName, FlagValue, Launch, Location, plain_reference
from firesteel.reads.programs import is_shell
from firesteel.rules.context import (
    NEWEST_KNOWN,
    Context,
    Match,
    as_number,
    as_text,
    is_final,
    is_final_number,
)
from firesteel.rules.releases import is_undecided
from firesteel.rules.rule import PREDICATES, SEVERITY, Confidence, Fix, Level, Rule, When, rules
from firesteel.units import has_no_end, is_in_range
from firesteel.values import Value, replace

TITLES: dict[EngineName, str] = {"vllm": "vLLM", "llamacpp": "llama.cpp", "sglang": "SGLang"}
_IMAGE_CHECKS_SEEN = date(2026, 11, 15)
_NO_LOCATIONS: Mapping[str, Location] = MappingProxyType({})


class Finding(Value):
    rule: str
    level: Level
    says: str
    instead: str | None
    location: Location | None
    """Where it is in the user's text; None for a launch that was not read from a text."""
    saw: str
    """The part of the launch that the rule matched, as text."""
    confidence: Confidence
    sources: tuple[Evidence, ...]
    scope: str
    """Where the rule applies: `vLLM >=0.24.0 on gb10`."""
    key: str = ""
    """The part of the launch that matched: `flag:NAME`, `env:NAME`, `image`."""
    fix: Fix | None = None


def check(
    launch: Launch,
    *,
    hardware: str | None,
    locations: Mapping[str, Location] = _NO_LOCATIONS,
    images: Images | None = None,
    is_own_build: bool = False,
) -> tuple[Finding, ...]:
    """Every finding, the most severe first, then in the order of the text.

    For an engine of unknown version, rules that apply from some version on give notes only. A moving tag
    counts as the newest known version, and findings that depend on that are warnings at most.
    """
    container = launch.container
    known = shipped().images if images is None else images
    image = identify(container.image, known) if container else None
    flaws = frozenset(key.removeprefix("flaw:") for key in locations if key.startswith("flaw:"))
    program = locations["program"].text if "program" in locations else ""
    runtime = locations.get("option:runtime")
    is_gpu_pod = runtime is not None and runtime.text.startswith("runtimeClassName")
    context = Context(launch, hardware, image, flaws, known.releases, is_own_build, program, is_gpu_pod)
    applicable = _index(launch.engine, hardware).find(names(context))
    all_matches = [(rule, match) for rule in applicable for match in matches(rule, context)]
    specific: dict[str, int] = {}
    for rule, match in all_matches:
        if not _is_general(rule):
            specific[match.key] = min(SEVERITY[rule.level], specific.get(match.key, SEVERITY["note"]))
    findings = [
        _finding(rule, match, context, locations)
        for rule, match in all_matches
        if not (_is_general(rule) and specific.get(match.key, 3) <= SEVERITY[rule.level])
    ]
    if image and hardware == "gb10":
        findings += [_image_finding(problem, locations) for problem in image.problems]
    return tuple(sorted(dict.fromkeys(findings), key=_by_severity_and_line))


@cache
def _index(engine: EngineName, hardware: str | None) -> RuleIndex:
    return RuleIndex(
        rule
        for rule in rules()
        if not rule.when.across
        and rule.when.engine in (None, engine)
        and rule.when.hardware in (None, hardware)
    )


def _image_finding(problem: ImageProblem, locations: Mapping[str, Location]) -> Finding:
    """What `image inspect` found in the image of the launch."""
    location = locations.get("image")
    return Finding(
        rule=f"image-{problem.check}",
        level=problem.level,
        says=problem.says,
        instead=problem.instead,
        location=location,
        saw=escape_unprintable(problem.evidence),
        confidence="verified",
        sources=(Evidence(url=problem.source, seen=_IMAGE_CHECKS_SEEN),),
        scope="this image, inspected here",
        key="image",
    )


def _is_general(rule: Rule) -> bool:
    """It only compares with the flags of the release; a specific rule of the same level replaces it."""
    return rule.when.predicate in ("unknown-flags", "refused-values", "unread-variables")


def _by_severity_and_line(finding: Finding) -> tuple[int, int, str]:
    return SEVERITY[finding.level], finding.location.line if finding.location else 0, finding.rule


def _finding(rule: Rule, match: Match, context: Context, locations: Mapping[str, Location]) -> Finding:
    versions = _versions(rule)
    assumed = context.is_assumed and (bool(versions) or _is_general(rule))
    unknown = context.version is None and bool(versions)
    says = _fill(rule.says, match, context)
    location = locations.get(match.key) or locations.get("program") or locations.get("image")
    title, newest = TITLES[context.launch.engine], NEWEST_KNOWN[context.launch.engine]
    spaced = re.sub(r"([<>=!]+)(?=\d)", r"\1 ", versions)
    return Finding(
        rule=rule.id,
        # Something uncertain never stops a launch.
        level="note" if unknown else "warn" if rule.level == "stop" and assumed else rule.level,
        says=f"if {title} {spaced}: {says}" if unknown else says,
        instead=_fill(rule.instead, match, context) if rule.instead else None,
        location=location,
        saw=escape_unprintable(match.shown or (location.text if location else "")),
        confidence=rule.confidence,
        sources=rule.sources,
        scope=_scope(rule) + (f", if this tag is as new as {title} {newest}" if assumed else ""),
        key=match.key,
        fix=None if unknown or assumed else rule.fix,
    )


def _versions(rule: Rule) -> str:
    return " and ".join(when.version for when in (rule.when, *rule.also) if when.version)


def _fill(text: str, match: Match, context: Context) -> str:
    image = context.launch.container.image if context.launch.container else ""
    names = {"name": match.name, "value": match.value, "image": image, "model": context.launch.model}
    for name, value in names.items():
        text = text.replace(f"{{{name}}}", escape_unprintable(value))
    return text


def _scope(rule: Rule) -> str:
    when = rule.when
    engine = TITLES[when.engine] if when.engine else "any engine"
    machine = f" on {when.hardware}" if when.hardware else ""
    return f"{engine} {_versions(rule) or 'of any version'}{machine}" if when.engine else f"{engine}{machine}"


class ReleaseFinding(Value):
    recipe: str
    level: Level
    rule: str
    says: str
    instead: str | None


def release_findings(
    launch: Launch, version: str, hardware: str | None, images: Images
) -> Iterator[ReleaseFinding]:
    """Stops and warnings that the launch of a recipe has with this release, and not with its own.

    Its image is of its own release and would say so: only engine and flags are compared.
    """
    own = replace(launch, container=None)
    known = {finding.rule for finding in check(own, hardware=hardware, images=images)}
    for finding in check(replace(own, version=version), hardware=hardware, images=images):
        if finding.level in ("stop", "warn") and finding.rule not in known:
            yield ReleaseFinding(launch.name, finding.level, finding.rule, finding.says, finding.instead)


# --- which rules may match ---

_CONTAINER, _ENV, _FLAGS = frozenset({"container"}), frozenset({"env"}), frozenset({"flags"})
_OF_CONTAINERS = name_set("restart shm_above after_entrypoint image image_lacks known_image upstream network")
"""Matchers that match nothing without a container."""
_PARSERS = name_set("flag:reasoning-parser flag:tool-call-parser")
_DRAFTS = name_set("flag:speculative-config")
_PREDICATES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        name_set(
            "another-architecture cache-not-where-engine-looks cluster-behind-bridge cluster-without-rdma"
            " cluster-needs-runtime docker-words-after-image downloads-thrown-away hides-worker-logs"
            " installs-scipy model-for-program model-not-mounted no-gpu-asked-for promised-twice"
            " published-everywhere publishes-another-port publishes-on-hosts-network removed-and-restarted"
            " runs-script-first size-of-hosts-shm small-shm"
        ),
        _CONTAINER,
    ),
    **dict.fromkeys(name_set("build-variables unread-variables"), _ENV),
    **dict.fromkeys(name_set("another-engines-words malformed-values refused-values unknown-flags"), _FLAGS),
    **dict.fromkeys(
        name_set(
            "flags-of-a-fork flags-of-no-release flags-of-older-releases no-common-release releases-needed"
            " values-of-no-release variables-of-no-release"
        ),
        frozenset({"undecided"}),
    ),
    **dict.fromkeys(name_set("parser-of-another-model unregistered-parsers"), _PARSERS),
    **dict.fromkeys(
        name_set("drafts-overflow-batch drafts-through-flashinfer method-is-unknown schedule-is-malformed"),
        _DRAFTS,
    ),
    "attention-without-kernel": _DRAFTS | name_set("flag:attention-backend flag:attention-config"),
    "beyond-one-gpu": name_set("flag:tensor-parallel-size flag:pipeline-parallel-size"),
    "cache-types-without-kernels": name_set("flag:cache-type-k flag:cache-type-v"),
    "context-beyond-model": name_set("flag:max-model-len flag:context-length"),
    "developer-mode": name_set("env:VLLM_SERVER_DEV_MODE"),
    "draft-of-another-family": _DRAFTS | name_set("flag:speculative-draft-model-path"),
    "empty-gid": name_set("env:NCCL_IB_GID_INDEX"),
    "expandable-segments": name_set("env:PYTORCH_CUDA_ALLOC_CONF env:PYTORCH_ALLOC_CONF"),
    "experts-without-kernel": name_set("flag:moe-backend flag:kernel-config"),
    "graphs-below-users": name_set("flag:max-num-seqs"),
    "keys-written-out": name_set("flag:api-key flag:admin-api-key env:VLLM_API_KEY env:LLAMA_API_KEY"),
    "large-aeon-batch": name_set("env:MAX_NUM_BATCHED_TOKENS"),
    "many-jit-jobs": name_set("env:MAX_JOBS"),
    "no-model-of-a-hub": name_set("model"),
    "one-rail": name_set("env:NCCL_IB_HCA"),
    "other-quantization": name_set("flag:quantization"),
    "pinned-gid": name_set("env:NCCL_IB_GID_INDEX"),
    "rdma-switched-off": name_set("env:NCCL_IB_DISABLE"),
    "spans-nodes": name_set("flag:nnodes flag:distributed-executor-backend"),
    "stray-words": name_set("extra"),
    "tokens-written-out": _ENV | _FLAGS,
    "too-large": name_set("model"),
    "unpinned-remote-code": name_set("flag:trust-remote-code"),
    "variable-takes-all-memory": name_set("env:GPU_MEMORY_UTILIZATION"),
}
"""What these predicates look at, any of it; those that are not listed here are always asked."""


class RuleIndex:
    """Rules by one group of what each needs."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._always: list[Rule] = []
        self._by_name: dict[str, list[tuple[Rule, tuple[frozenset[str], ...]]]] = {}
        for rule in rules:
            first, *others = sorted(triggers(rule), key=_commonness) or [frozenset()]
            if not first:
                self._always.append(rule)
            for name in first:
                self._by_name.setdefault(name, []).append((rule, tuple(others)))

    def find(self, present: frozenset[str]) -> Iterable[Rule]:
        """The rules that may match a launch with these names, each once."""
        found = {
            rule.id: rule
            for name in present & self._by_name.keys()
            for rule, others in self._by_name[name]
            if not any(map(present.isdisjoint, others))
        }
        return (*self._always, *found.values())


def _commonness(group: frozenset[str]) -> int:
    """A flag or variable by its name tells more than that there is a model."""
    return sum(":" not in name for name in group)


def names(context: Context) -> frozenset[str]:
    """What a launch has, for `RuleIndex.find`."""
    launch, container = context.launch, context.launch.container
    kinds = {
        "flags": context.flags, "env": launch.env, "extra": launch.extra, "model": launch.model,
        "container": container, "undecided": is_undecided(context),
    }  # fmt: skip
    return frozenset(
        (
            *(name for name, part in kinds.items() if part),
            *map("flag:{}".format, context.flags),
            *map("env:{}".format, launch.env),
            *map("flaw:{}".format, context.flaws),
            *(f"option:{name}" for name, _ in (container.options if container else ())),
        )
    )


def triggers(rule: Rule) -> Iterator[frozenset[str]]:
    """Groups of names; a launch that has none of one of them cannot match."""
    for when in (rule.when, *rule.also):
        yield from _groups(when)


def _groups(when: When) -> Iterator[frozenset[str]]:
    if when.flag:
        yield frozenset(f"flag:{name}" for name in when.flag)
    if when.env:
        has_pattern = any(set("*?[") & set(name) for name in when.env)
        yield _ENV if has_pattern else frozenset(f"env:{name}" for name in when.env)
    if when.extra:
        yield frozenset({"extra"})
    if when.option:
        yield frozenset(f"option:{name}" for name in when.option)
    if when.flaw:
        yield frozenset({f"flaw:{when.flaw}"})
    if when.absent:
        yield frozenset({"model"})
    if when.container or when.given & _OF_CONTAINERS:
        yield _CONTAINER
    if when.predicate and when.predicate in _PREDICATES:
        yield _PREDICATES[when.predicate]


# --- whether one does ---

_LITERAL = re.compile(r"[^*?[]+")
_MISSING = object()
_MAX_SHOWN = 160


def matches(rule: Rule, context: Context) -> tuple[Match, ...]:
    """What the rule matches; empty when it does not apply."""
    when, launch = rule.when, context.launch
    # Most rules end here, at little cost.
    if when.across or (when.engine and when.engine != launch.engine):
        return ()
    if when.flag and context.flags.keys().isdisjoint(when.flag):
        return ()
    found = _match(rule.when, context)
    if not found or not all(_match(when, context) for when in rule.also):
        return ()
    is_exempt = any(_match(when, context, accept_placeholders=True) for when in rule.unless)
    return () if is_exempt else tuple(found)


def _match(when: When, context: Context, accept_placeholders: bool = False) -> list[Match]:
    """What the most specific of these matchers found; empty unless all of them match.

    A placeholder (`$DTYPE`) may stand for any value, so it never makes a rule apply, and it does make an
    exception (`unless`) apply: `accept_placeholders`.
    """
    has_scope, matchers = _plan(when.given)
    if has_scope and not _in_scope(when, context):
        return []
    most_specific: list[Match] = []
    for matcher in matchers:
        if not (found := list(matcher(when, context, accept_placeholders))):
            return []
        most_specific = most_specific or found
    model = context.launch.model
    return most_specific or [Match("model", model, "model", model)]


@cache
def _plan(given: frozenset[str]) -> tuple[bool, tuple[_Matcher, ...]]:
    """Whether matchers of scope are given, and the others, the most specific first."""
    return bool(given & _SCOPE), tuple(matcher for names, matcher in _MATCHERS if given & names)


def _in_scope(when: When, context: Context) -> bool:
    launch, container = context.launch, context.launch.container
    return (
        when.engine in (None, launch.engine)
        and when.hardware in (None, context.hardware)
        and when.container in (None, container is not None)
        and (
            when.known_image is None
            or (container is not None and (context.image is not None) == when.known_image)
        )
        and (when.version is None or _version_matches(when.version, context))
        and (when.model is None or _matches_ignoring_case(when.model, launch.model))
        and (when.network is None or (container is not None and container.network in when.network))
        and (
            when.upstream is None or (container is not None and is_upstream(container.image) == when.upstream)
        )
    )


def _version_matches(text: str, context: Context) -> bool:
    """An unknown version may be in any range without an upper end that includes the newest version."""
    if context.version is None:
        return has_no_end(text) and is_in_range(Version(NEWEST_KNOWN[context.launch.engine]), text)
    return is_in_range(context.version, text)


def _matches_ignoring_case(patterns: Iterable[str], text: str) -> bool:
    return any(_fits(text.lower(), pattern.lower()) for pattern in patterns)


def _fits(text: str, pattern: str) -> bool:
    """Without the first literal part nothing can match, and no regular expression has to be compiled."""
    literal = _LITERAL.search(pattern)
    return (literal is None or literal[0] in text) and fnmatchcase(text, pattern)


def _flags(when: When, context: Context, accept_placeholders: bool) -> Iterator[Match]:
    flags = context.flags
    for name in when.flag or ():
        if name not in flags:
            continue
        value: object = flags[name]
        if when.key:
            value = _inside(value, when.key)
        if value is not _MISSING and _value_matches(when, value, accept_placeholders):
            typed = _typed(context.launch, name, when.key)
            plain = compact_json(value) if isinstance(value, dict | list) else as_text(value)
            yield Match(f"flag:{typed}", _shown(context.launch, typed, when.key, value), name, plain)


def _typed(launch: Launch, name: str, key: str | None) -> str:
    """The flag as given in the launch: this one, or a shortcut for it."""
    shortcuts = [
        (target, short)
        for short, target in grammar(launch.engine).shortcuts.items()
        if short in launch.flags and target[0] == name
    ]
    exact = dict(shortcuts).get((name, key or ""))
    return exact or (name if name in launch.flags else shortcuts[0][1])


def _inside(value: object, key: str) -> object:
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return _MISSING
        value = value[part]
    return value


def _value_matches(when: When, value: object, accept_placeholders: bool) -> bool:
    text, number = as_text(value).lower(), as_number(value)
    return (
        when.bare in (None, value is True)
        and (when.value is None or text in _lower(when.value))
        and (
            when.other_than is None
            or (text not in _lower(when.other_than) and (accept_placeholders or is_final(text)))
        )
        and (when.above is None or (number is not None and number > when.above))
        and (when.up_to is None or (number is not None and number <= when.up_to))
        and (
            when.number is None
            or (isinstance(value, str) and is_final_number(value) and (number is not None) == when.number)
        )
    )


def _lower(texts: Iterable[str]) -> set[str]:
    return {text.lower() for text in texts}


def _shown(launch: Launch, name: str, key: str | None, value: object) -> str:
    given: FlagValue = launch.flags[name]
    if key and isinstance(given, dict):
        return f"--{name} with {compact_json(key)}: {compact_json(value)}"[:_MAX_SHOWN]
    return " ".join(format_flag(launch.engine, name, given))[:_MAX_SHOWN]


def _environment(patterns: Iterable[str], launch: Launch) -> Iterator[Match]:
    is_meant = _any_of(tuple(patterns)).match
    for name, value in launch.env.items():
        if is_meant(name):
            typed = f"{name}={value}" if value != f"${name}" else name
            yield Match(f"env:{name}", f"-e {typed}" if launch.container else typed, name, value)


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)))


def _extra(patterns: Iterable[str], launch: Launch) -> Iterator[Match]:
    for argument in launch.extra:
        if _matches_ignoring_case(patterns, argument):
            yield Match("program", argument[:_MAX_SHOWN], argument, argument)


def _options(names: Iterable[str], launch: Launch) -> Iterator[Match]:
    for name, value in launch.container.options if launch.container else ():
        if name in names:
            shown = f"--{name}" if value is None else f"--{name} {value}"
            yield Match(f"option:{name}", shown, name, value or "")


def _container(when: When, launch: Launch) -> Iterator[Match]:
    container = launch.container
    if container and when.restart and container.restart in when.restart:
        yield Match("option:restart", f"--restart {container.restart}", "restart", container.restart or "")
    if container and when.shm_above is not None and (container.shm_bytes or 0) > when.shm_above:
        size = f"{(container.shm_bytes or 0) / 2**30:g}g"
        yield Match("option:shm-size", f"--shm-size {size}", "shm-size", size)


def _after_entrypoint(what: str, context: Context) -> Iterator[Match]:
    container, image = context.launch.container, context.image
    if (
        container is None
        or image is None
        or not image.entrypoint
        or container.entrypoint is not None
        or not container.program
    ):
        return
    shell = is_shell(container.program[0])
    if shell == (what == "shell"):
        program = container.program[:2] if shell else container.program
        model = "..." if shell else context.launch.model
        shown = " ".join((container.image, *program, model)).strip()
        yield Match("program", shown, " ".join(program), container.image)


def _absent(name: str, launch: Launch) -> Iterator[Match]:
    if name not in launch.flags and launch.model and not {"...", "\u2026"} & set(launch.extra):
        yield Match("program", f"no --{name}", name)


def _image(when: When, context: Context) -> Iterator[Match]:
    container = context.launch.container
    if container is None or (
        when.image and not _matches_ignoring_case(when.image, plain_reference(container.image))
    ):
        return
    known = context.image.sm if context.image else None
    if when.image_lacks and (known is None or when.image_lacks in known):
        return
    yield Match("image", container.image, "image", container.image)


_Matcher = Callable[[When, Context, bool], Iterable[Match]]
_SCOPE = name_set("engine version hardware model container network known_image upstream")
_MATCHERS: tuple[tuple[frozenset[str], _Matcher], ...] = (
    (name_set("flag"), _flags),
    (name_set("env"), lambda when, context, _: _environment(when.env or (), context.launch)),
    (name_set("extra"), lambda when, context, _: _extra(when.extra or (), context.launch)),
    (name_set("option"), lambda when, context, _: _options(when.option or (), context.launch)),
    (name_set("restart shm_above"), lambda when, context, _: _container(when, context.launch)),
    (name_set("predicate"), lambda when, context, _: PREDICATES[when.predicate or ""](context)),
    (
        name_set("after_entrypoint"),
        lambda when, context, _: _after_entrypoint(when.after_entrypoint or "", context),
    ),
    (
        name_set("flaw"),
        lambda when, context, _: [Match(f"flaw:{when.flaw}", "")] if when.flaw in context.flaws else [],
    ),
    (name_set("absent"), lambda when, context, _: _absent(when.absent or "", context.launch)),
    (name_set("image image_lacks"), lambda when, context, _: _image(when, context)),
)
"""Those that return matches, the most specific first."""
