"""Commands in processes that are forked from one that has imported everything, in place of new ones.

    code, out, err = WarmProcess().run(["plan", "smollm2"], environ, stdin=b"")

Starting Python and importing firesteel takes longer than most commands, and the tests run two thousand of
them. A forked process has its own environment, files, signals and exit code as a new one has. Variables that
are read when a module is loaded have no effect here.

Run as a program, this file is the server: for each connection it forks a process which takes the request with
its three files, runs the command in another one, and answers with the exit code.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import pkgutil
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

TIMEOUT_S = 1200
_LENGTH, _LOOK_S = 8, 2.0


class WarmProcess:
    """The client. The server starts with the first command; all workers of a run have the same one."""

    def __init__(self) -> None:
        self._address = ""
        self._starting = threading.Lock()

    def run(self, words: Sequence[str], environ: Mapping[str, str], stdin: bytes) -> tuple[int, str, str]:
        with self._starting:
            if not self._address:
                self._address = _started()
        with (
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            given.write(stdin)
            given.seek(0)
            files = [given.fileno(), out.fileno(), err.fileno()]
            code = self._ask(
                {"words": list(words), "environ": dict(environ), "folder": str(Path.cwd())}, files
            )
            out.seek(0)
            err.seek(0)
            return code, out.read().decode(), err.read().decode()

    def _ask(self, request: Mapping[str, object], files: list[int]) -> int:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(self._address)
            body = json.dumps(request).encode()
            length = len(body).to_bytes(_LENGTH)
            connection.sendmsg([length], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))])
            connection.sendall(body)
            return int(connection.makefile("rb").read())


def _started() -> str:
    """The address of a server, which ends some seconds after the run."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        run = os.getppid()
        folder = Path(tempfile.gettempdir(), f"fs-warm-{os.environ['PYTEST_XDIST_TESTRUNUID']}")
        folder.mkdir(mode=0o700, exist_ok=True)
    else:
        run, folder = os.getpid(), Path(tempfile.mkdtemp(prefix="fs-warm-"))
    address = folder / "socket"
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not address.exists():
            reader, writer = os.pipe()
            words = [sys.executable, __file__, str(address), str(run)]
            files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, writer, 1)]
            # Without the home of the test that comes first: others look for processes of their home.
            environ = {name: value for name, value in os.environ.items() if name != "FIRESTEEL_HOME"}
            os.posix_spawn(sys.executable, words, environ, file_actions=files)
            os.close(writer)
            assert os.read(reader, 1), "it does not listen"
            os.close(reader)
    return str(address)


def serve(address: str, run: int) -> None:
    """`run`: the process of the tests; the server ends after it."""
    import firesteel
    from firesteel.catalog.catalog import shipped
    from firesteel.cli.main import main
    from firesteel.edge.host import machine

    for module in pkgutil.walk_packages(firesteel.__path__, "firesteel."):
        with contextlib.suppress(ImportError):  # what needs a package that is optional
            importlib.import_module(module.name)
    vars(machine)["measure_read_bandwidth"] = cache(machine.measure_read_bandwidth)
    machine.measure_read_bandwidth(len(os.sched_getaffinity(0)))  # as in tests/conftest.py
    for model in shipped().models.values():
        _ = model.weights  # derived at first use
    assert threading.active_count() == 1, "a process with threads cannot be forked safely"
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, b"listens\n")
        os.dup2(0, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
        listener.settimeout(_LOOK_S)
        while Path(f"/proc/{run}").exists():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            if os.fork() == 0:
                listener.close()
                _answer(connection, main)
            connection.close()
    shutil.rmtree(Path(address).parent, ignore_errors=True)


def _answer(connection: socket.socket, main: Callable[[], object]) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    length, (control, *_), *_ = connection.recvmsg(_LENGTH, socket.CMSG_SPACE(12))
    files = array.array("i", control[2])
    request = json.loads(connection.makefile("rb").read(int.from_bytes(length)))
    child = os.fork()
    if child == 0:
        connection.close()
        _become(request, list(files), main)
    _, status = os.waitpid(child, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: Mapping[str, Any], files: list[int], main: Callable[[], object]) -> NoReturn:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    sys.argv = ["firesteel", *request["words"]]
    code: object = 1
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
        if not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
    except BaseException:
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
