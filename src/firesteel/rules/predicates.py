"""What no matcher can say, each by its name: a scene -> what was seen in it, nothing when all is well."""

from __future__ import annotations

from collections.abc import Callable

from firesteel.rules.scene import Scene, Sight, as_number


def published_everywhere(scene: Scene) -> list[Sight]:
    """A port published on every interface: `8000:8000` has no address, `0.0.0.0:8000:8000` the widest."""
    box = scene.launch.container
    for published in box.publish if box else ():
        parts = published.rsplit(":", 2)
        if len(parts) == 2 or parts[0] in ("0.0.0.0", "[::]", ""):
            return [Sight("option:publish", f"-p {published}", "publish", published)]
    return []


def drafts_overflow_batch(scene: Scene) -> list[Sight]:
    """More draft tokens in one step than the step may hold: users x tokens > max-num-batched-tokens."""
    config = scene.launch.flags.get("speculative-config")
    drafted = as_number(config.get("num_speculative_tokens")) if isinstance(config, dict) else None
    users, batch = scene.number("max-num-seqs"), scene.number("max-num-batched-tokens")
    if drafted is None or users is None or batch is None or drafted * users <= batch:
        return []
    saw = f"{drafted:g} draft tokens x {users:g} users > --max-num-batched-tokens {batch:g}"
    return [Sight("flag:max-num-batched-tokens", saw, "max-num-batched-tokens", f"{batch:g}")]


PREDICATES: dict[str, Callable[[Scene], list[Sight]]] = {
    "published-everywhere": published_everywhere,
    "drafts-overflow-batch": drafts_overflow_batch,
}
