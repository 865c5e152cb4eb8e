"""firesteel takes an NVIDIA DGX Spark from bare to a fast, correct, safe LLM service.

As a library: `plan`, `models`, `check`, `read`, `docker`, `up`, `down`, `services`, `host`;
`firesteel.library` tells more. They load when first used, so that `firesteel --help` stays quick.
"""

from typing import TYPE_CHECKING, Any

from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    from firesteel.library import check, docker, down, host, models, plan, propose, read, services, up

__version__ = "0.1.0"
__all__ = [
    "FiresteelError", "check", "docker", "down", "host", "models", "plan", "propose",
    "read", "services", "up",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        from firesteel import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
