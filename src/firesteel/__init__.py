"""firesteel takes an NVIDIA DGX Spark from bare to a fast, correct, safe LLM service.

As a library it has functions for every command: `plan`, `check`, `up`, `verify`, `measure` and so on.
`firesteel.library` describes them. They load when first used, so that `firesteel --help` stays quick.
"""

from firesteel.errors import FiresteelError
from firesteel.lazy import lazy_exports

TYPE_CHECKING = False  # `typing` would be the slowest import of all, and a Ctrl-C during it a traceback
if TYPE_CHECKING:
    from firesteel.library.bench import compare_answers, compare_in_turns, measure
    from firesteel.library.check import check, compatibility, diagnose, read
    from firesteel.library.clients import client_settings, client_target
    from firesteel.library.history import (
        compare,
        compare_with_plan,
        compare_with_published,
        history,
        stored_run,
    )
    from firesteel.library.hosts import doctor, doctor_cluster
    from firesteel.library.images import build_image, inspect_image
    from firesteel.library.keys import add_key, keys, revoke_key
    from firesteel.library.learn import learn, learn_image
    from firesteel.library.plans import host, models, plan, propose
    from firesteel.library.render import docker, render_as, render_by_node, render_for_kubernetes
    from firesteel.library.run import (
        down,
        log_file,
        logs,
        pull,
        remove_files,
        roll_back_model,
        services,
        unused_files,
        up,
        upgrade_model,
        verify,
    )
    from firesteel.library.serve import serve
    from firesteel.library.tune import tune
    from firesteel.library.weights import audit, plan_quantization, quantize, repair, undo_repair
else:  # a type checker would accept any name
    __getattr__ = lazy_exports(__name__)

__version__ = "0.1.0"
__all__ = [
    "FiresteelError", "add_key", "audit", "build_image", "check", "client_settings", "client_target",
    "compare", "compare_answers", "compare_in_turns", "compare_with_plan", "compare_with_published",
    "compatibility", "diagnose", "docker", "doctor", "doctor_cluster", "down", "history", "host",
    "inspect_image", "keys", "learn", "learn_image", "log_file", "logs", "measure", "models", "plan",
    "plan_quantization", "propose", "pull", "quantize", "read", "remove_files", "render_as", "render_by_node",
    "render_for_kubernetes", "repair", "revoke_key", "roll_back_model", "serve", "services", "stored_run",
    "tune", "undo_repair", "unused_files", "up", "upgrade_model", "verify",
]  # fmt: skip
