"""What a container finds on the host: the store of weights, and what its engine compiled at earlier starts.

After a pull nothing is left to fetch, so the engine is told to stay offline and the store is mounted
read-only: a container that runs as root leaves no files there that its owner cannot touch.

Kernels that an engine compiles are good for one image and one driver. Each pair has a folder of its own, so
that a new version never reads what an old one left; a folder that nothing uses any more is stale. All pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from firesteel.catalog import Image
from firesteel.catalog.catalog import HUB_INSIDE
from firesteel.edge.files.home import Home
from firesteel.facts import Host
from firesteel.launch import EngineName, FlagValue, Launch, Mount
from firesteel.rules import Proposal
from firesteel.run.fetch.weights import packages

STORE_INSIDE = f"{HUB_INSIDE}/hub"
COMPILED_INSIDE = "/compiled"
WHEELS_INSIDE = "/wheels"
_OFFLINE: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
    "sglang": {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
    "llamacpp": {"LLAMA_ARG_OFFLINE": "1", "LLAMA_OFFLINE": "1"},
}
"""llama.cpp renamed its variable between builds 9310 and 9360."""
_PYTORCH = {
    "TORCHINDUCTOR_CACHE_DIR": f"{COMPILED_INSIDE}/inductor",
    "TRITON_CACHE_DIR": f"{COMPILED_INSIDE}/triton",
    "FLASHINFER_WORKSPACE_BASE": COMPILED_INSIDE,
    "CUDA_CACHE_PATH": f"{COMPILED_INSIDE}/cuda",
    # gpt-oss: its vocabulary comes from elsewhere than the Hub, at the first start
    "TIKTOKEN_RS_CACHE_DIR": f"{COMPILED_INSIDE}/tiktoken",
}
_COMPILED: Mapping[EngineName, Mapping[str, str]] = {
    "vllm": {"VLLM_CACHE_ROOT": f"{COMPILED_INSIDE}/vllm", **_PYTORCH},
    "sglang": {"SGLANG_CACHE_DIR": f"{COMPILED_INSIDE}/sglang", **_PYTORCH},
    "llamacpp": {"CUDA_CACHE_PATH": f"{COMPILED_INSIDE}/cuda"},
}
_ANY_DRIVER = "any"


def offline_env(engine: EngineName) -> dict[str, str]:
    """What keeps an engine from asking the Hub."""
    return dict(_OFFLINE[engine])


def compiled_env(engine: EngineName) -> dict[str, str]:
    """Where an engine keeps what it compiles, whoever its user is in the container.

    vllm/envs.py and flashinfer/jit/env.py in their releases, seen 2026-11-15; tiktoken:
    https://github.com/openai/harmony/issues/46.
    """
    return dict(_COMPILED[engine])


def package_env() -> dict[str, str]:
    """pip's own variables: what was pulled is all there is."""
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS_INSIDE}


def driver(host: Host) -> str | None:
    return host.gpus[0].driver if host.gpus else None


def cache_name(engine: EngineName, version: str | None, image: str, on_driver: str | None) -> str:
    """`vllm-0.28.0-1f2e3d4c5b6a-580.95.05`: engine, version, the image by its reference, the driver."""
    digest = hashlib.sha256(image.encode()).hexdigest()[:12]
    words = (engine, version or "unknown", digest, on_driver or _ANY_DRIVER)
    return re.sub(r"[^A-Za-z0-9._+-]", "_", "-".join(words))


def compiled_folder(home: Home, launch: Launch, on_driver: str | None) -> str | None:
    box = launch.container
    if box is None:
        return None
    return str(home.root / "compiled" / cache_name(launch.engine, launch.version, box.image, on_driver))


def wheels_folder(home: Home, launch: Launch) -> str | None:
    """Packages are built for the Python in the image."""
    box = launch.container
    name = cache_name(launch.engine, launch.version, box.image, None) if box else None
    return str(home.root / "wheels" / name) if name else None


def mounts(home: Home, launch: Launch, on_driver: str | None, store: str) -> tuple[Mount, ...]:
    """The store in place of the mount that a launch has for the Hub, and what was compiled for it."""
    box, compiled = launch.container, compiled_folder(home, launch, on_driver)
    if box is None or compiled is None:
        return ()
    others = tuple(mount for mount in box.mounts if mount.target != HUB_INSIDE and not _is_in(store, mount))
    held = (Mount(store, STORE_INSIDE, read_only=True),) if len(others) < len(box.mounts) else ()
    return (*others, *held, Mount(compiled, COMPILED_INSIDE))


def _is_in(store: str, mount: Mount) -> bool:
    return mount.source.startswith(f"{store}/")


def _model(launch: Launch, store: str) -> str:
    """A file of the store is a link into another folder of it: only the whole store will do."""
    for mount in launch.container.mounts if launch.container else ():
        if _is_in(store, mount) and launch.model.startswith(mount.target):
            return f"{STORE_INSIDE}{mount.source[len(store) :]}{launch.model[len(mount.target) :]}"
    return launch.model


def staged(proposal: Proposal, home: Home, store: str) -> Launch:
    """The launch as it runs after a pull: offline, from the store, with what was compiled before.

    What the recipe says of a variable or a flag stands.
    """
    launch = proposal.plan.launch
    box = launch.container
    if box is None:
        return launch
    on_driver = driver(proposal.plan.host)
    found = mounts(home, launch, on_driver, store)
    env = compiled_env(launch.engine)
    if any(mount.target == STORE_INSIDE for mount in found):
        env |= offline_env(launch.engine)
    if packages(proposal):
        env |= package_env()
        found = (*found, Mount(wheels_folder(home, launch) or "", WHEELS_INSIDE, read_only=True))
    return replace(
        launch,
        model=_model(launch, store),
        flags={**_pinned(proposal), **launch.flags},
        env={**env, **launch.env},
        container=replace(box, mounts=found),
    )


def _pinned(proposal: Proposal) -> dict[str, FlagValue]:
    """A commit that no branch names must be said; llama.cpp knows no revisions."""
    revision = proposal.model.revision if proposal.model else None
    return {"revision": revision} if revision and proposal.plan.launch.engine != "llamacpp" else {}


def stale(found: Iterable[str], images: Iterable[Image], on_driver: str | None) -> tuple[str, ...]:
    """Of the names of such folders those that no image of a recipe reads any more, on this driver.

    Where no driver is known none is taken for another one.
    """
    used = [(image.engine, image.version, image.reference) for image in images if image.reference]
    starts = tuple(cache_name(*each, None).removesuffix(_ANY_DRIVER) for each in used)
    ends = (f"-{on_driver}", f"-{_ANY_DRIVER}") if on_driver else ("",)
    return tuple(name for name in found if not (starts and name.startswith(starts) and name.endswith(ends)))
