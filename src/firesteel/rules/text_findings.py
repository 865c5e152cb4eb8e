"""Findings about a text around its launches: what cannot run side by side, and what its prose mentions.

The services of a compose file run at the same time, and so do containers that a script starts one after
another in the background. Other texts (a guide, a folder of units) may list alternatives, and nothing is
compared there. Prose names no version, so a name is checked against the newest release of each engine. A flag
that any engine still has is fine by its name; one that no engine ever had may belong to another program, and
is not reported. Rules about one value (`--gpu-memory-utilization 0.95`) or one image also hold in a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import identify
from firesteel.engines.schema.releases import find_schema, release_ranges
from firesteel.engines.schema.symbols import resolve_flag
from firesteel.errors import escape_unprintable
from firesteel.launch import Container, EngineName, Launch, Location
from firesteel.reads.launches import Mention, NotRead
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.stated import StatedMachine
from firesteel.rules.checker import Finding, check
from firesteel.rules.context import NEWEST_KNOWN, as_number
from firesteel.rules.rule import Rule, rules
from firesteel.values import replace

_SHARE = 0.9
"""What vLLM takes at least where nothing is said: 0.92, before 0.20.0 0.9."""
_EVERYWHERE = ("", "0.0.0.0", "[::]")
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_CACHES = ("huggingface", "/hub")

_ALTERNATIVES = "one model several times may be alternatives, or one for each GPU"

Clash = tuple[ReadLaunch, str, str, str]
"""The launch that fails, the part of it, what was seen, and the name of what clashes."""


def check_across(
    launches: Sequence[ReadLaunch], machines: Sequence[StatedMachine], unread: Sequence[NotRead]
) -> Iterator[Finding]:
    groups: dict[str, list[ReadLaunch]] = {}
    on_one_gpu: dict[str, list[ReadLaunch]] = {}
    for parsed, machine in zip(launches, machines, strict=True):
        if parsed.runs_with:
            groups.setdefault(parsed.runs_with, []).append(parsed)
        # Another machine may have a GPU, or a card that is none, for each of them.
        if parsed.runs_with and (machine.kind != "other" or _gpu(parsed.launch)):
            on_one_gpu.setdefault(parsed.runs_with, []).append(parsed)
    for rule in _across_rules():
        if rule.when.across == "not-read":
            yield from (
                _finding(rule, place.location, place.location.text, place.engine, place.why)
                for place in unread
            )
        elif rule.when.across:
            for group in (on_one_gpu if rule.when.across == "memory-shares" else groups).values():
                why = _ALTERNATIVES if len({parsed.launch.model for parsed in group}) == 1 else ""
                for parsed, key, saw, name in _CHECKS[rule.when.across](group):
                    location = (
                        parsed.locations.get(key)
                        or parsed.locations.get("image")
                        or parsed.locations.get("program")
                    )
                    found = _finding(rule, location, saw, name, saw, key)
                    if why and found.level == "stop":
                        found = replace(found, level="warn", says=f"{found.says} ({why})")
                    yield found


@cache
def _across_rules() -> tuple[Rule, ...]:
    return tuple(rule for rule in rules() if rule.when.across)


def _finding(
    rule: Rule, location: Location | None, saw: str, name: str, value: str, key: str = ""
) -> Finding:
    says = rule.says.replace("{name}", name).replace("{value}", value)
    return Finding(
        rule=rule.id,
        level=rule.level,
        says=escape_unprintable(says),
        instead=rule.instead,
        location=location,
        saw=escape_unprintable(saw),
        confidence=rule.confidence,
        sources=rule.sources,
        scope="any engine",
        key=key,
    )


def _memory_shares(group: Sequence[ReadLaunch]) -> Iterator[Clash]:
    """More than all of the memory of one GPU, promised to several engines."""
    by_gpu: dict[str, list[tuple[ReadLaunch, float]]] = {}
    for parsed in group:
        share = _share(parsed.launch)
        if share is not None:
            by_gpu.setdefault(_gpu(parsed.launch), []).append((parsed, share))
    for shares in by_gpu.values():
        total = sum(share for _, share in shares)
        if len(shares) > 1 and total > 1:
            last = shares[-1][0]
            sum_text = " + ".join(f"{share:g}" for _, share in shares)
            yield last, "flag:gpu-memory-utilization", f"{sum_text} = {total:.2f}", f"{len(shares)} engines"


def _share(launch: Launch) -> float | None:
    """The part of a GPU's memory that the engine takes; None: not known, or spread over several GPUs."""
    if not launch.model and not launch.flags:
        return None  # an image with the engine's name may be anything
    ranks = [as_number(launch.flags.get(name)) or 1 for name in ("tensor-parallel-size", "tp-size", "nnodes")]
    if max(ranks) > 1 or launch.engine == "llamacpp" or "kv-cache-memory-bytes" in launch.flags:
        return None
    name = "gpu-memory-utilization" if launch.engine == "vllm" else "mem-fraction-static"
    given = launch.flags.get(name)
    if given is not None or launch.engine == "sglang" or "config" in launch.flags:
        return as_number(given)
    return _SHARE


def _gpu(launch: Launch) -> str:
    """The GPU that it is set to use; launches without such a setting share one."""
    container = launch.container
    named = container.gpus if container and container.gpus and "device=" in container.gpus else ""
    return named or next((launch.env[name] for name in _GPU_VARIABLES if launch.env.get(name)), "")


def _host_ports(group: Sequence[ReadLaunch]) -> Iterator[Clash]:
    for first, second in combinations(group, 2):
        taken = list(_ports(first.launch))
        for key, address, port in _ports(second.launch):
            if any(port == other and _overlap(address, at) for _, at, other in taken):
                yield second, key, f"port {port} of the host", first.launch.name or "another container"
                break


def _ports(launch: Launch) -> Iterator[tuple[str, str, str]]:
    container = launch.container
    if container is None or container.network == "host":
        yield "flag:port", "", str(launch.port)
        return
    for published in container.publish:
        address, _, rest = published.rpartition(":")[0].rpartition(":")
        if rest.isdecimal():
            yield "option:publish", address, rest


def _overlap(first: str, second: str) -> bool:
    return first == second or first in _EVERYWHERE or second in _EVERYWHERE


def _names(group: Sequence[ReadLaunch]) -> Iterator[Clash]:
    seen: set[str] = set()
    for parsed in group:
        container = parsed.launch.container
        name = dict(container.options).get("name") if container else None
        if name and name in seen and "$" not in name:
            yield parsed, "option:name", name, name
        seen.add(name or "")


def _volumes(group: Sequence[ReadLaunch]) -> Iterator[Clash]:
    """One folder, written by different engines as different things."""
    for first, second in combinations(group, 2):
        if not first.launch.container or not second.launch.container:
            continue
        mine = {m.source: m.target for m in first.launch.container.mounts if not m.read_only}
        for mount in second.launch.container.mounts:
            target = mine.get(mount.source)
            is_shared_hub = all(
                any(cache in path for cache in _CACHES) for path in (target or "", mount.target)
            )
            if (
                target
                and not mount.read_only
                and not is_shared_hub
                and first.launch.engine != second.launch.engine
            ):
                shown = f"{mount.source} at {target} and {mount.target}"
                yield second, "option:volume", shown, mount.source
                break


_CHECKS: dict[str, Callable[[Sequence[ReadLaunch]], Iterator[Clash]]] = {
    "memory-shares": _memory_shares,
    "host-port": _host_ports,
    "name": _names,
    "volume": _volumes,
}


_GENERAL_RULES = ("flag-unknown", "variable-unread")
_NAME_MATCHERS = frozenset({"engine", "version", "hardware", "flag", "env"})
"""A rule with only these matchers is about the name itself."""


_VALUE_MATCHERS = frozenset({"value", "other_than", "above", "up_to", "image", "image_lacks"})
_VARIABLE_PREDICATES = frozenset({"pinned-gid", "one-rail", "many-jit-jobs", "expandable-segments"})


def check_mentions(mentions: Iterable[Mention], hardware: str | None) -> tuple[Finding, ...]:
    """A note for each obsolete name, once per line."""
    by_line = {
        (mention.key, mention.value, mention.location.line): mention for mention in reversed(tuple(mentions))
    }
    return tuple(
        replace(note, location=mention.location, saw=mention.location.text)
        for mention in reversed(by_line.values())
        for note in _notes(mention.key, mention.value, hardware)
    )


@lru_cache(maxsize=4096)
def _notes(key: str, value: str, hardware: str | None) -> tuple[Finding, ...]:
    """A folder of guides mentions the same few names again and again."""
    notes = (*_find_notes(key, hardware), *_known_about(key, value, hardware))
    return tuple({note.rule: note for note in notes}.values())


def _known_about(key: str, value: str, hardware: str | None) -> Iterator[Finding]:
    """What rules about this value or image alone say. A flag of several engines must be wrong in all."""
    kind, _, name = key.partition(":")
    if kind != "image" and not value:
        return
    by_engine = []
    for engine, version in NEWEST_KNOWN.items():
        if kind == "flag" and not _has_flag(engine, name):
            continue
        launch = Launch(
            name="",
            model="",
            engine=engine,
            version=None if kind == "image" else version,
            flags={name: value} if kind == "flag" else {},
            env={name: value} if kind == "env" else {},
            container=Container(name) if kind == "image" else None,
        )
        found = [
            replace(finding, level="note", fix=None)
            for finding in check(launch, hardware=hardware)
            if finding.rule in _value_rules() and finding.key in (key, kind)
        ]
        by_engine.append(found)
    if kind != "flag" or all(by_engine):
        yield from (finding for found in by_engine for finding in found)


@lru_cache(maxsize=4096)
def _has_flag(engine: EngineName, name: str) -> bool:
    schema = find_schema(engine, NEWEST_KNOWN[engine])
    return schema is not None and resolve_flag(schema, f"--{name}") is not None


def is_about_engines(mention: Mention) -> bool:
    """Whether an engine has, or once had, what a text mentions."""
    kind, _, name = mention.key.partition(":")
    if kind == "flag":
        return any(_has_flag(engine, name) for engine in NEWEST_KNOWN) or _is_obsolete(f"--{name}")
    return kind == "env" or identify(name, shipped().images) is not None


def _find_notes(key: str, hardware: str | None) -> Iterator[Finding]:
    is_flag = key.startswith("flag:")
    if is_flag and key[5:] not in _flags_of_rules() and not _is_obsolete(f"--{key[5:]}"):
        return
    by_engine: dict[EngineName, list[Finding]] = {}
    for engine in NEWEST_KNOWN:
        by_engine[engine] = _check_name(key, engine, hardware)
        if is_flag and not by_engine[engine]:
            return
    for engine, findings in by_engine.items():
        for finding in findings[:1]:
            is_general = is_flag and finding.rule in _GENERAL_RULES
            if is_general and not release_ranges(engine, f"--{key[5:]}"):
                continue
            says = f"{finding.says} (checked against {engine} {NEWEST_KNOWN[engine]})"
            yield replace(finding, level="note", says=says, fix=None)


def _check_name(key: str, engine: EngineName, hardware: str | None) -> list[Finding]:
    """Findings about the name itself in the newest release of this engine."""
    kind, _, name = key.partition(":")
    launch = Launch(
        name="",
        model="",
        engine=engine,
        version=NEWEST_KNOWN[engine],
        flags={name: True} if kind == "flag" else {},
        env={name: "VALUE"} if kind == "env" else {},
    )
    name_rules = _name_rules()
    return [
        finding
        for finding in check(launch, hardware=hardware)
        if finding.key == key and finding.level != "note" and finding.rule in name_rules
    ]


def _is_obsolete(flag: str) -> bool:
    """Some release of some engine had it, and no newest release has it."""
    if any(_has_flag(engine, flag[2:]) for engine in NEWEST_KNOWN):
        return False
    return any(release_ranges(engine, flag) for engine in NEWEST_KNOWN)


@cache
def _flags_of_rules() -> frozenset[str]:
    ids = _name_rules()
    return frozenset(flag for rule in rules() if rule.id in ids for flag in rule.when.flag or ())


@cache
def _value_rules() -> frozenset[str]:
    """Rules about one value of a flag, a variable or an image, whatever else the launch has."""
    alone = (rule for rule in rules() if not rule.also)
    return frozenset(
        rule.id
        for rule in alone
        if (rule.when.given & _VALUE_MATCHERS and rule.when.given <= _NAME_MATCHERS | _VALUE_MATCHERS)
        or (rule.when.predicate in _VARIABLE_PREDICATES)
    )


@cache
def _name_rules() -> frozenset[str]:
    ids = {rule.id for rule in rules() if rule.when.given <= _NAME_MATCHERS and not rule.also}
    return frozenset(ids | set(_GENERAL_RULES))
