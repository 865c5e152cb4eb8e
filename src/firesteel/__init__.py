"""firesteel takes an NVIDIA DGX Spark from bare to a fast, correct, safe LLM service.

As a library it has a function for every command: `plan`, `check`, `up`, `verify`, `measure` and so on.
`firesteel.library` describes them. They load when one is first used, so that `firesteel --help` stays quick.
"""

from firesteel.errors import FiresteelError

__version__ = "0.1.0"
__all__ = [
    "Ask", "Cluster", "FiresteelError", "KeyLimits", "RepairOptions", "RequestSettings", "RunLimits",
    "RunOptions", "ServeOptions", "Sizes", "TuneOptions", "UpgradeOptions", "add_key", "audit", "build_image",
    "check", "client_settings", "client_target", "compare", "compare_answers", "compare_in_turns",
    "compare_with_plan", "compare_with_published", "compatibility", "diagnose", "docker", "doctor",
    "doctor_cluster", "down", "history", "host", "inspect_image", "keys", "learn", "learn_image", "log_file",
    "logs", "measure", "models", "plan", "plan_quantization", "propose", "pull", "quantize", "read",
    "remove_files", "render_as", "render_by_node", "render_for_kubernetes", "repair", "revoke_key",
    "roll_back_model", "serve", "services", "stored_run", "tune", "undo_repair", "unused_files", "up",
    "upgrade_model", "verify",
]  # fmt: skip

TYPE_CHECKING = False  # `typing` would be the slowest import of all, and a Ctrl-C during it a traceback
if TYPE_CHECKING:
    from firesteel.library.api import *  # noqa: F403
else:  # a type checker would accept any name

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from firesteel.library import api

        return getattr(api, name)
