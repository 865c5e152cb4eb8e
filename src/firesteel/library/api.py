"""The public functions: `firesteel.NAME` is the NAME that is imported here."""

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
