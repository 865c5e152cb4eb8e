"""What a launch does not say of itself: why each flag is there, how long it takes to start, which bytes.

Every form shows it in its own way: as comments, as a probe's patience, as the size of a volume. A reason may
come from a user's own recipe, so it is one line before it becomes a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from firesteel import engines
from firesteel.catalog import Images
from firesteel.errors import UsageError
from firesteel.launch import EngineName, Launch
from firesteel.units import show_bytes, show_seconds

RESTARTS = 3
"""How often a start that fails is tried again: each try may leak memory on a GB10."""
DOWNLOAD_BYTES_PER_S = 25_000_000
"""What a line of 200 Mbit/s brings; a first start may have to fetch the weights."""
KEY_VARIABLES: Mapping[EngineName, str] = {"vllm": "VLLM_API_KEY", "llamacpp": "LLAMA_API_KEY"}
"""Where an engine reads the key that it asks for. SGLang takes it as a word of its command alone."""
_REVISION_ENGINES = ("vllm", "sglang")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class LaunchFacts:
    flag_reasons: Mapping[str, str] = field(default_factory=dict)
    """By flag, as in `Launch.flags`."""
    env_reasons: Mapping[str, str] = field(default_factory=dict)
    start_up_s: float | None = None
    """At the slow end of its band; None: not known."""
    needed_bytes: int | None = None
    """Of memory, at the high end of its band."""
    weights_bytes: int | None = None
    digest: str | None = None
    """`sha256:...` of the image; None: only its tag is known."""
    revision: str | None = None
    """The model's commit on the Hub; None: not known."""
    is_gated: bool = False
    """The Hub asks for a token."""


NOTHING = LaunchFacts()


def digest_of(reference: str, images: Images) -> str | None:
    """The digest that the registry was seen to have for exactly this tag."""
    if "@" in reference:
        return None
    for digest, image in images.digests.items():
        if image.reference and image.reference.partition("@")[0] == reference:
            return digest
    return None


def pinned(launch: Launch, known: LaunchFacts) -> Launch:
    """The launch with image and model by the exact bytes, where they are known, and the token by name."""
    flags, env, box = dict(launch.flags), dict(launch.env), launch.container
    if known.revision and launch.engine in _REVISION_ENGINES and _HUB_ID.fullmatch(launch.model):
        flags.setdefault("revision", known.revision)
    if known.is_gated and box:
        env.setdefault("HF_TOKEN", "$HF_TOKEN")
    if known.digest and box and "@" not in box.image:
        box = replace(box, image=f"{box.image}@{known.digest}")
    return replace(launch, flags=flags, env=env, container=box)


def is_by_name(name: str, value: str) -> bool:
    """The variable is passed on from outside, so its value stands nowhere."""
    return value == f"${name}"


def by_name(launch: Launch) -> list[str]:
    return [name for name, value in launch.env.items() if is_by_name(name, value)]


def key_asked_for(launch: Launch) -> str | None:
    """The variable without which the engine would answer everybody; None: it does so on purpose."""
    name = KEY_VARIABLES.get(launch.engine)
    return name if name and is_by_name(name, launch.env.get(name, "")) else None


def on_one_spark(launch: Launch, form: str) -> None:
    """A file of most tools describes one machine."""
    if launch.sparks > 1:
        raise UsageError(
            f"{launch.name} runs on {launch.sparks} Sparks, and {form} describes one",
            next=f"firesteel render {launch.name} --as sparkrun",
        )


def reasons_by_word(launch: Launch, known: LaunchFacts) -> dict[str, str]:
    """The first word of each flag, as the engine spells it -> why it is there."""
    return {
        engines.format_flag(launch.engine, name, launch.flags[name])[0]: why
        for name, why in known.flag_reasons.items()
        if name in launch.flags and engines.format_flag(launch.engine, name, launch.flags[name])
    }


def heading(launch: Launch, known: LaunchFacts, *, with_reasons: bool = False) -> list[str]:
    """What stands at the top of every form."""
    version = f" {launch.version}" if launch.version else ", version not known"
    lines = [f"{launch.name}: {launch.model} in {launch.engine}{version}"]
    sizes = []
    if known.needed_bytes:
        sizes.append(f"needs up to {show_bytes(known.needed_bytes)} of memory")
    if known.start_up_s:
        sizes.append(f"answers after {show_seconds(known.start_up_s)} at most")
    if known.weights_bytes:
        sizes.append(f"the first start fetches {show_bytes(known.weights_bytes)}")
    if sizes:
        lines.append("Planned: " + "; ".join(sizes))
    lines += _loose(launch, known)
    if with_reasons:
        lines += [f"{word}: {why}" for word, why in reasons_by_word(launch, known).items()]
        lines += [f"{name}: {why}" for name, why in known.env_reasons.items() if name in launch.env]
    return lines


def _loose(launch: Launch, known: LaunchFacts) -> list[str]:
    """What is not pinned, and how to pin it."""
    image = launch.container.image if launch.container else None
    lines = []
    if image and "@" not in image:
        lines.append("The image is named by its tag, which can move; its digest is not known here")
    if _HUB_ID.fullmatch(launch.model) and "revision" not in launch.flags and not known.revision:
        lines.append(
            "The model's revision is not pinned: what its author pushes next is what the next pull gets"
        )
    return lines


def comments(lines: Iterable[str], indent: int = 0) -> list[str]:
    """Each as one line: whatever it holds, it stays a comment."""
    pad = " " * indent
    return [f"{pad}# {' '.join(_shown(line).split())}" for line in lines]


def _shown(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)
