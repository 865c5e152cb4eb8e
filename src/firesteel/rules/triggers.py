"""What a launch must have for a rule to apply at all: a flag, a variable, a container.

A folder has thousands of launches, and of the rules on an engine most are about something that a launch does
not have. So rules are looked up by what is there, and only those are tried. Every group of names that
`triggers` gives for a rule must have one in `names` of the launch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from firesteel.engines.flags import name_set
from firesteel.rules.any_release import is_undecided
from firesteel.rules.context import Context
from firesteel.rules.rule import Rule, When

_CONTAINER, _ENV, _FLAGS = frozenset({"container"}), frozenset({"env"}), frozenset({"flags"})
_OF_CONTAINERS = name_set("restart shm_above after_entrypoint image image_lacks known_image upstream network")
"""Matchers that match nothing without a container."""
_PARSERS = name_set("flag:reasoning-parser flag:tool-call-parser")
_DRAFTS = name_set("flag:speculative-config")
_PREDICATES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        name_set(
            "another-architecture cache-not-where-engine-looks cluster-behind-bridge cluster-without-rdma"
            " docker-words-after-image downloads-thrown-away hides-worker-logs installs-scipy"
            " model-for-program model-not-mounted no-gpu-asked-for promised-twice published-everywhere"
            " publishes-another-port publishes-on-hosts-network removed-and-restarted runs-script-first"
            " size-of-hosts-shm small-shm"
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
