"""Folders on the host that containers use: what their engine compiled at earlier starts, and wheels. Pure.

Kernels that an engine compiles are good for one image and one driver. Each pair has a folder of its own, so
that a new version never reads what an old one left; a folder that nothing uses any more is stale.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from firesteel.catalog.image import Image
from firesteel.catalog.launches import with_host_folders, with_local_files
from firesteel.edge.home import Home
from firesteel.facts.host.hardware import Host
from firesteel.launch import HUB_CACHE_INSIDE, HUB_INSIDE, EngineName, Launch, Mount
from firesteel.planner.propose import Proposal
from firesteel.render import containerized
from firesteel.run.fetch.weights import packages
from firesteel.values import replace

_ANY_DRIVER = "any"


def driver(host: Host) -> str | None:
    return host.gpus[0].driver if host.gpus else None


def cache_name(engine: EngineName, version: str | None, image: str, on_driver: str | None) -> str:
    """`vllm-0.28.0-1f2e3d4c5b6a-580.95.05`: engine, version, the image by its reference, the driver."""
    digest = hashlib.sha256(image.encode()).hexdigest()[:12]
    parts = (engine, version or "unknown", digest, on_driver or _ANY_DRIVER)
    return re.sub(r"[^A-Za-z0-9._+-]", "_", "-".join(parts))


def compiled_folder(home: Home, launch: Launch, on_driver: str | None) -> str | None:
    if launch.container is None:
        return None
    name = cache_name(launch.engine, launch.version, launch.container.image, on_driver)
    return str(home.root / "compiled" / name)


def wheels_folder(home: Home, launch: Launch) -> str | None:
    """Packages are built for the Python in the image."""
    if launch.container is None:
        return None
    name = cache_name(launch.engine, launch.version, launch.container.image, None)
    return str(home.root / "wheels" / name)


def staged(proposal: Proposal, home: Home, hub_cache: str) -> Launch:
    """The launch as it runs after a pull."""
    launch = proposal.plan.launch
    compiled = compiled_folder(home, launch, driver(proposal.plan.host))
    if compiled is None:
        return launch
    wheels = wheels_folder(home, launch) if packages(proposal) else None
    revision = proposal.model.revision if proposal.model else None
    return with_local_files(launch, hub_cache, compiled, wheels, revision)


def with_user_folders(proposal: Proposal, home: Home, store: Path, user: Path) -> Proposal:
    """The proposal in a container with the folders that `up` uses on this host; for `render`."""
    plan, launch = proposal.plan, containerized(proposal.plan.launch)
    on_driver = driver(plan.host)
    compiled = (
        compiled_folder(home, launch, on_driver) if launch.container and launch.container.gpus else None
    )
    # HF_HOME has the cache in its folder `hub`; HF_HUB_CACHE may have any name.
    hub = (store.parent, HUB_INSIDE) if store.name == "hub" else (store, HUB_CACHE_INSIDE)
    mount = Mount(_short(hub[0], user), hub[1])
    launch = with_host_folders(launch, mount, _short(Path(compiled), user) if compiled else None)
    return replace(proposal, plan=replace(plan, launch=launch))


def _short(path: Path, user: Path) -> str:
    """`~/...` where it is in the user's own folder: what is rendered may run as somebody else."""
    return f"~/{path.relative_to(user)}" if path.is_relative_to(user) and path != user else str(path)


def stale(names: Iterable[str], images: Iterable[Image], on_driver: str | None) -> tuple[str, ...]:
    """Names of such folders that no image of a recipe reads any more, with this driver.

    Where the driver is not known, no folder counts as that of another one.
    """
    used = [(image.engine, image.version, image.reference) for image in images if image.reference]
    starts = tuple(cache_name(*image, None).removesuffix(_ANY_DRIVER) for image in used)
    ends = (f"-{on_driver}", f"-{_ANY_DRIVER}") if on_driver else ("",)
    return tuple(name for name in names if not (starts and name.startswith(starts) and name.endswith(ends)))
