"""What tests of several packages share: a home with the real engine pulled into it, the program itself."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from firesteel import __file__ as package
from firesteel.edge.home import Home
from firesteel.edge.host import machine
from firesteel.edge.programs import wheels
from firesteel.errors import HostNotReady
from tests.built_engine import find_built_engine
from tests.needs import skip_elsewhere
from tests.warm_process import WarmProcess

# A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP. What the tests start would
# inherit that, and firesteel respects it.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

pytest_plugins = ["tests.time_limit"]

gc.disable()
"""Until all tests are collected: of what was loaded by then nothing becomes garbage, and looking through it
takes a third of the time of the collection."""

vars(machine)["measure_read_bandwidth"] = cache(machine.measure_read_bandwidth)
"""Once in this process: else each of the first five plans of every home takes all cores for a fifth of a
second. tests/edge/test_machine.py has the function itself."""

settings.register_profile("firesteel", deadline=None)
settings.load_profile("firesteel")
"""A timing is a benchmark, not a test."""


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


ENGINES = frozenset({"engine_home", "quick_home", "native_home", "pulled", "embedded_engine"})
SECONDS = Path(__file__).with_name("seconds.json")
"""How long files take that take some seconds, on two cores. FIRESTEEL_TEST_SECONDS=write writes it anew."""
_measured_s: dict[str, float] = defaultdict(float)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order in which several workers get files: long ones first; those with engines, those with a docker
    daemon and the others spread evenly.

    None that takes minutes may come last, when one worker would be busy and the rest idle. Engines compute
    where many other tests wait. There is one docker daemon at a time, so such files wait for each other.
    """
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    seconds: dict[str, int] = json.loads(SECONDS.read_text("utf-8"))
    groups: dict[str, list[tuple[float, list[pytest.Item]]]] = defaultdict(list)
    for file, in_file in groupby(items, key=lambda item: item.location[0]):
        tests = list(in_file)
        groups[_group_of(tests)].append((seconds.get(file, 0.02 * len(tests)), tests))
    placed = []
    for files in groups.values():
        files.sort(key=lambda file: file[0], reverse=True)
        placed += [(place / len(files), tests) for place, (_, tests) in enumerate(files)]
    placed.sort(key=lambda file: file[0])
    items[:] = [item for _, tests in placed for item in tests]


def _group_of(file: list[pytest.Item]) -> str:
    fixtures = {name for test in file for name in getattr(test, "fixturenames", ())}
    return "docker" if "docker_daemon" in fixtures else "engine" if fixtures & ENGINES else "other"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _measured_s[report.location[0]] += report.duration


def pytest_sessionfinish() -> None:
    if os.environ.get("FIRESTEEL_TEST_SECONDS") == "write" and "PYTEST_XDIST_WORKER" not in os.environ:
        long = {file: round(seconds) for file, seconds in sorted(_measured_s.items()) if seconds >= 3}
        SECONDS.write_text(json.dumps(long, indent=1) + "\n", "utf-8")


@pytest.fixture(autouse=True)
def unchanged_environment() -> Iterator[None]:
    """`--sim` in this process changes the environment for good; the next test must not run on that Spark."""
    before = dict(os.environ)
    yield
    if dict(os.environ) != before:
        os.environ.clear()
        os.environ.update(before)


Firesteel = Callable[..., Ran]


READ_AT_START = ("PYTHON", "COLUMNS", "TERM", "NO_COLOR", "LANG", "LC_")
"""Variables that Python or rich read when they are loaded."""


@contextmanager
def unclosed_generators() -> Iterator[list[str]]:
    """The names of async generators that began in it and were left to the garbage collector."""
    names: list[str] = []
    before = sys.get_asyncgen_hooks()

    def finalize(generator: AsyncGenerator[object]) -> None:
        names.append(generator.ag_code.co_qualname)  # type: ignore[attr-defined]
        if before.finalizer:
            before.finalizer(generator)

    sys.set_asyncgen_hooks(finalizer=finalize)
    try:
        yield names
    finally:
        sys.set_asyncgen_hooks(*before)


def run_firesteel(home: Path, *words: str, stdin: str = "", env: dict[str, str] | None = None) -> Ran:
    environ = {**os.environ, "FIRESTEEL_HOME": str(home), **(env or {})}
    if any(name.startswith(READ_AT_START) for name in env or ()):
        argv = [sys.executable, "-m", "firesteel", *words]
        done = subprocess.run(argv, input=stdin, capture_output=True, text=True, env=environ, check=False)
        return Ran(done.returncode, done.stdout, done.stderr)
    return Ran(*_warm.run(words, environ, stdin.encode()))


_warm = WarmProcess()


@pytest.fixture
def firesteel(tmp_path: Path) -> Firesteel:
    """The command, with an empty home of its own."""
    return lambda *words, **more: run_firesteel(tmp_path / "home", *words, **more)


@pytest.fixture(scope="session")
def pulled(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The real engine and its weights, pulled once for all tests, by `firesteel pull`.

    The workers' folders have one parent, which is new for each run.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "pulled"
    with root.with_suffix(".lock").open("a+") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        if not turn.read():
            ran = run_firesteel(root, "pull", "smollm2")
            if ran.code == HostNotReady.exit_code:
                skip_elsewhere(ran.err)  # a library that the engine loads is missing
            assert ran.code == 0, ran.err
            turn.write("pulled")
            turn.flush()
    return Home(root)


@pytest.fixture
def engine_home(pulled: Home, tmp_path: Path) -> Iterator[Home]:
    """A home of its own for each test, with the pulled engine in it; what runs there is stopped after."""
    yield from _home_with(pulled, pulled.engines, tmp_path)


@pytest.fixture(scope="session")
def embedded_engine(pulled: Home) -> Iterator[int]:
    """The port of the real engine, started as `up` does, for tests of what it answers. Nothing proved it."""
    (python,), (weights,) = pulled.engines.glob("*/bin/python"), pulled.weights.rglob("*.gguf")
    port = find_free_port()
    words = ["--model", str(weights), "--port", str(port), "--ctx-size", "4096", "--parallel", "2"]
    env = {**os.environ, "GOMP_SPINCOUNT": "1000"}  # as `up` does: two threads wait for each other briefly
    with subprocess.Popen([str(python), "-I", str(wheels.SERVER), *words], env=env) as engine:
        try:
            deadline = time.monotonic() + 120
            while not is_listening(port):
                assert engine.poll() is None and time.monotonic() < deadline
                time.sleep(0.05)
            yield port
        finally:
            engine.kill()


def is_listening(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture
def quick_home(pulled: Home, tmp_path: Path) -> Iterator[Home]:
    """As `engine_home`, but its engine does not compute: `tests/quick_engine.py` answers in its place."""
    yield from _home_with(pulled, quick_engines(pulled, tmp_path), tmp_path)


def quick_engines(pulled: Home, folder: Path, holds_mib: int = 0) -> Path:
    """Engines for a home, with `tests/quick_engine.py` in place of the one that computes."""
    if os.environ.get("FIRESTEEL_TEST_REAL_ENGINE"):
        return pulled.engines
    engines, (real,) = folder / "quick-engines", pulled.engines.glob("*/complete")
    program = engines / real.parent.name / "bin" / "python"
    program.parent.mkdir(parents=True)
    (program.parents[1] / "complete").touch()
    server = shlex.join([sys.executable, str(Path(__file__).with_name("quick_engine.py"))])
    variables = f"HOLDS_MIB={holds_mib} PYTHONPATH={shlex.quote(str(Path(package).parents[1]))}"
    pip = shlex.quote(str(real.with_name("bin") / "python"))
    program.write_text(
        "#!/bin/sh\n"  # anything but the server is pip, for a pull
        f'case "$2" in *server.py) ;; *) exec {pip} "$@" ;; esac\n'
        f'{variables} exec {server} "$@"\n'
    )
    program.chmod(0o755)
    return engines


@pytest.fixture(scope="session")
def built_engine() -> Path:
    """The folder of a llama.cpp that was built here, which takes tens of minutes: not by a test."""
    folder = find_built_engine()
    if folder is None:
        assert os.environ.get("CI") != "true", "scripts/test should have built it"
        pytest.skip("no llama-server was built; scripts/make-test-engine PYTHON does")
    return folder


@pytest.fixture
def native_home(pulled: Home, built_engine: Path, tmp_path: Path) -> Iterator[Home]:
    """A home with weights and the built engine, but without the embedded one."""
    home = Home(tmp_path / "native-home")
    home.engines.mkdir(parents=True)
    (home.engines / built_engine.name).symlink_to(built_engine)
    home.weights.symlink_to(pulled.weights)
    know_bandwidth(home)
    yield home
    run_firesteel(home.root, "down", "--all")


def know_bandwidth(home: Home) -> None:
    """As after five plans: new processes, like a gateway's loader, do not measure it."""
    for _ in range(machine._MEASUREMENTS):
        machine.bandwidth(home, len(os.sched_getaffinity(0)))


def _home_with(pulled: Home, engines: Path, folder: Path) -> Iterator[Home]:
    home = Home(folder / "engine-home")
    home.root.mkdir()
    know_bandwidth(home)
    (home.root / pulled.engines.name).symlink_to(engines)
    (home.root / pulled.weights.name).symlink_to(pulled.weights)
    yield home
    run_firesteel(home.root, "down", "--all")


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def free_port() -> int:
    return find_free_port()


@pytest.fixture(scope="module")
def docker_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a docker daemon of our own. One at a time: they share the host's bridge and firewall."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        assert os.environ.get("CI") != "true", "scripts/test installs docker in CI"
        pytest.skip("needs root and dockerd (Debian: docker.io)")
    with (Path(tempfile.gettempdir()) / "firesteel-test-docker.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        # A short name: paths of sockets may have 108 letters.
        with docker_daemon_in(tmp_path_factory.mktemp("docker")) as address:
            yield address


@contextmanager
def docker_daemon_in(folder: Path, *options: str) -> Iterator[str]:
    """The address of a daemon whose files are all in the folder."""
    address = f"unix://{folder}/docker.sock"
    words = ["dockerd", "--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "-H", address]
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen([*words, "--pidfile", f"{folder}/pid", *options], stdout=log, stderr=log)
    try:
        asked = ["docker", "-H", address, "version"]
        while subprocess.run(asked, capture_output=True, check=False).returncode:
            assert daemon.poll() is None, (folder / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield address
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=60)
        # Left by containers in the host's network; a folder with a mount in it cannot be removed.
        for mount in (folder / "exec" / "netns").glob("*"):
            subprocess.run(["umount", "--lazy", str(mount)], capture_output=True, check=False)
