"""The public functions and what they take: `firesteel.NAME` is the NAME that is imported here."""

from importlib import import_module
from typing import TYPE_CHECKING

from firesteel.bench.load.schedule import RunLimits, Sizes
from firesteel.bench.measurements import RequestSettings
from firesteel.bench.tune.journal import TuneOptions
from firesteel.bench.upgrade.result import UpgradeOptions
from firesteel.gateway.key_limits import KeyLimits
from firesteel.launch import Ask
from firesteel.library.bench import compare_answers, compare_in_turns, measure
from firesteel.library.check import check, compatibility, diagnose, read
from firesteel.library.clients import client_settings, client_target
from firesteel.library.engines import learn, learn_image
from firesteel.library.history import compare, compare_with_plan, compare_with_published, history, stored_run
from firesteel.library.hosts import doctor, doctor_cluster
from firesteel.library.images import build_image, inspect_image
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
from firesteel.library.serve import add_key, keys, revoke_key, serve
from firesteel.library.tune import tune
from firesteel.library.weights import audit, plan_quantization, quantize, repair, undo_repair
from firesteel.render import Cluster

if TYPE_CHECKING:
    from firesteel.gateway.serve import ServeOptions
    from firesteel.run.spec import RunOptions
    from firesteel.workshop.repair import RepairOptions
else:  # slow to load, and few programs need them
    _MODULES = {"RepairOptions": "workshop.repair", "RunOptions": "run.spec", "ServeOptions": "gateway.serve"}

    def __getattr__(name):
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"firesteel.{_MODULES[name]}"), name)
