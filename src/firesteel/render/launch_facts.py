"""Facts about a launch that are not part of it: the reason for each flag, the start-up time, digests, sizes.

Every format shows them in its own way: as comments, as the timeout of a probe, as the size of a volume. A
reason may come from a user's own recipe, so it is made one line before it becomes a comment.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping

from firesteel.catalog.image import Images
from firesteel.engines import engine
from firesteel.engines.engine import format_flag
from firesteel.errors import UsageError, printable
from firesteel.launch import ENGINE_KEY_VARIABLES, LOOPBACK, Launch, is_hub_id
from firesteel.units import show_bytes, show_seconds
from firesteel.values import Value, replace

RESTARTS = 3
"""How often a failed start is repeated: each attempt may leak memory on a GB10."""
DOWNLOAD_BYTES_PER_S = 25_000_000
"""A connection of 200 Mbit/s; the first start may have to download the weights."""
_REVISION_ENGINES = ("vllm", "sglang")


class LaunchFacts(Value):
    flag_reasons: Mapping[str, str] = {}
    """By flag, as in `Launch.flags`."""
    env_reasons: Mapping[str, str] = {}
    start_up_s: float | None = None
    """The high end of its band; None: unknown."""
    needed_bytes: int | None = None
    """Memory, at the high end of its band."""
    weights_bytes: int | None = None
    digest: str | None = None
    """`sha256:...` of the image; None: only its tag is known."""
    revision: str | None = None
    """The model's commit on the Hub; None: unknown."""
    is_gated: bool = False
    """The Hub requires a token."""
    is_embedded: bool = False
    """firesteel itself runs it as a child process, without the container."""
    arch: str | None = None
    """`arm64`: of the machine that it is planned for; None: unknown."""


NO_FACTS = LaunchFacts()


def find_digest(reference: str, images: Images) -> str | None:
    """The recorded digest of exactly this tag."""
    if "@" in reference:
        return None
    for digest, image in images.digests.items():
        if image.reference and image.reference.partition("@")[0] == reference:
            return digest
    return None


def pin(launch: Launch, facts: LaunchFacts) -> Launch:
    """The launch with the digest of its image and the revision of its model, where known, and the Hub token
    passed on by name."""
    flags, env, container = dict(launch.flags), dict(launch.env), launch.container
    if facts.revision and launch.engine in _REVISION_ENGINES and is_hub_id(launch.model):
        flags.setdefault("revision", facts.revision)
    if facts.is_gated and container:
        env.setdefault("HF_TOKEN", "$HF_TOKEN")
    if facts.digest and container and "@" not in container.image:
        container = replace(container, image=f"{container.image}@{facts.digest}")
    return replace(launch, flags=flags, env=env, container=container)


def is_passed_through(name: str, value: str) -> bool:
    """The variable is passed on from outside, so its value is not written anywhere."""
    return value == f"${name}"


def passed_through(launch: Launch) -> list[str]:
    return [name for name, value in launch.env.items() if is_passed_through(name, value)]


def required_key(launch: Launch) -> str | None:
    """The variable with the API key, without which the engine would answer anyone; None: no key is used."""
    name = ENGINE_KEY_VARIABLES.get(launch.engine)
    return name if name and is_passed_through(name, launch.env.get(name, "")) else None


def host_folders(launch: Launch) -> list[str]:
    """Folders to create before the start: podman creates none, and docker creates them for root."""
    mounts = launch.container.mounts if launch.container else ()
    return [mount.source for mount in mounts if not mount.read_only and mount.source[:1] in ("/", "~")]


def warm_request(launch: Launch) -> str:
    """A shell command that sends a first request, as `up` does: it compiles kernels for up to a minute."""
    message = {"role": "user", "content": "ping"}
    body = json.dumps({"model": launch.name, "messages": [message], "max_tokens": 3})
    key = required_key(launch)
    # Through a pipe: other users can read the arguments of a program.
    pipe, header = (f'echo "Authorization: Bearer ${key}" | ', " -H @-") if key else ("", "")
    words = f"curl -fsS -o /dev/null{header} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
    return f"{pipe}{words} {host_url(launch)}/v1/chat/completions"


def rank_of(launch: Launch) -> int | None:
    """Which host of several runs it, 0 for the head; None: it runs on one host."""
    rank = launch.flags.get("node-rank") if "nnodes" in launch.flags else None
    return int(rank) if isinstance(rank, str) and rank.isdecimal() else None


def rank_alone(launch: Launch) -> Launch:
    """A rank as a launch of its own. It is not restarted by itself: the others would not take it back."""
    container = replace(launch.container, restart="no") if launch.container else None
    return replace(launch, sparks=1, container=container)


def warm_notes(launch: Launch) -> list[str]:
    if rank_of(launch) or not (launch.container and launch.container.gpus):
        return []
    return [f"The first request compiles kernels; once it answers /health: {warm_request(launch)}"]


def host_url(launch: Launch) -> str:
    """Where the host itself reaches it."""
    publish = launch.container.publish if launch.container else ()
    address, _, ports = publish[0].rpartition(":")[0].rpartition(":") if publish else ("", "", "")
    if not ports:
        return f"http://{LOOPBACK}:{launch.port}"
    is_any = address in ("", "0.0.0.0", "[::]")
    return f"http://{LOOPBACK if is_any else address}:{ports}"


def require_one_spark(launch: Launch, file_format: str) -> None:
    if launch.sparks > 1:
        raise UsageError(
            f"{launch.name} runs on {launch.sparks} Sparks, and {file_format} describes one",
            next=f"firesteel render {launch.name}, which writes it for each of them",
        )


def flag_comments(launch: Launch, facts: LaunchFacts) -> dict[str, str]:
    """Flags as the engine spells them -> the reason for each."""
    return {
        spelled[0]: why
        for name, why in facts.flag_reasons.items()
        if name in launch.flags and (spelled := format_flag(launch.engine, name, launch.flags[name]))
    }


def heading(launch: Launch, facts: LaunchFacts, *, with_reasons: bool = False) -> list[str]:
    """The comment lines at the top of every format."""
    version = f" {launch.version}" if launch.version else ", unknown version"
    lines = [f"{launch.name}: {launch.model} in {launch.engine}{version}"]
    sizes = []
    if facts.needed_bytes:
        sizes.append(f"up to {show_bytes(facts.needed_bytes)} of memory")
    if facts.start_up_s:
        sizes.append(f"ready within {show_seconds(facts.start_up_s)}")
    if facts.weights_bytes and not launch.model.startswith("/"):
        sizes.append(f"the first start downloads {show_bytes(facts.weights_bytes)}")
    if sizes:
        lines.append("Planned: " + "; ".join(sizes))
    if facts.is_embedded:
        program = " ".join(engine.program(launch.engine))
        lines.append(f"firesteel runs it as a child process (`{program}`); this is its official image")
    lines += _unpinned(launch, facts)
    if with_reasons:
        lines += [f"{word}: {why}" for word, why in flag_comments(launch, facts).items()]
        lines += [f"{name}: {why}" for name, why in facts.env_reasons.items() if name in launch.env]
    return lines


def _unpinned(launch: Launch, facts: LaunchFacts) -> list[str]:
    """What is not pinned."""
    image = launch.container.image if launch.container else None
    lines = []
    if image and "@" not in image:
        lines.append("The image is named by its tag, which can change; its digest is unknown")
    if is_hub_id(launch.model) and "revision" not in launch.flags and not facts.revision:
        lines.append(
            "The revision of the model is not pinned: the next download gets whatever its author pushed last"
        )
    return lines


def comments(lines: Iterable[str], indent: int = 0) -> list[str]:
    """Each as a single line: whatever it contains, it stays a comment."""
    pad = " " * indent
    return [f"{pad}# {' '.join(printable(line).split())}" for line in lines]
