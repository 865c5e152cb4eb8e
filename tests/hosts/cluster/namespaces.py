"""Hosts without hardware: a network namespace each, on one bridge, with `sshd` as its first process.

Each has a hostname, a home, `/etc/hosts`, process numbers, interfaces and a firewall of its own. They share
the clock, the memory and the file system. Cutting the link and then killing the first process is a power cut.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.conftest import Ran

RAIL = "enp1s0f1np1"
_PROGRAMS = ("ip", "sshd", "unshare", "nsenter", "nft", "ssh-keygen")
_START = """
hostname {name}; mount --make-rprivate /
mount --bind {folder}/passwd /etc/passwd; mount --bind {folder}/hosts /etc/hosts
mount -t tmpfs tmpfs /run; mkdir /run/sshd; mount -t tmpfs tmpfs /dev/shm
exec /usr/sbin/sshd -D -e -h {folder}/hostkey -o UsePAM=no -o StrictModes=no -o PidFile=none \
  -o AuthorizedKeysFile={folder}/home/.ssh/authorized_keys -o AcceptEnv=no
"""


def missing() -> str | None:
    """What keeps this machine from making such hosts."""
    if os.geteuid() != 0:
        return "needs root"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    lacks = [program for program in _PROGRAMS if shutil.which(program, path=path) is None]
    return f"needs {', '.join(lacks)} (Debian: openssh-server iproute2 nftables)" if lacks else None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@dataclass
class NamespaceHost:
    name: str
    address: str
    folder: Path
    namespace: str
    switch: str
    port: str
    """The switch's end of the cable."""
    unshare: subprocess.Popen[bytes] | None = None
    env: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def init(self) -> int:
        """The first process, as this machine numbers it."""
        assert self.unshare
        children = Path(f"/proc/{self.unshare.pid}/task/{self.unshare.pid}/children").read_text().split()
        return int(children[0])

    def start(self) -> None:
        script = _START.format(name=self.name, folder=self.folder)
        with (self.folder / "sshd.log").open("ab") as log:
            self.unshare = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--ipc", "--mount", "--pid",
                 "--fork", "--kill-child", "--mount-proc", "bash", "-c", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_end_with_parent,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while "Server listening on" not in (self.folder / "sshd.log").read_text(errors="replace"):
            assert time.monotonic() < deadline, (self.folder / "sshd.log").read_text(errors="replace")
            time.sleep(0.02)

    def power_off(self) -> None:
        """As when the plug is pulled: nobody is told."""
        self.cable(False)
        assert self.unshare
        os.kill(self.init, signal.SIGKILL)
        self.unshare.wait(timeout=120)

    def shut_down(self) -> None:
        """As `reboot` begins: processes are asked to end, connections are closed, then the link goes."""
        self.run("kill", "-TERM", "-1")
        assert self.unshare
        os.kill(self.init, signal.SIGKILL)
        self.unshare.wait(timeout=120)
        self.cable(False)

    def power_on(self) -> None:
        (self.folder / "sshd.log").write_text("")
        self.cable(True)
        self.start()

    def cable(self, is_in: bool) -> None:
        _ip("-n", self.switch, "link", "set", self.port, "up" if is_in else "down")

    def mtu(self, size: int) -> None:
        _ip("-n", self.namespace, "link", "set", RAIL, "mtu", str(size))

    def firewall(self, rules: str) -> None:
        """`tcp dport 50052 drop`; empty: none."""
        chain = f"chain c {{\ntype filter hook input priority 0\n{rules.replace('; ', chr(10))}\n}}"
        table = f"table inet t {{\n{chain}\n}}" if rules else ""
        nft = ["ip", "netns", "exec", self.namespace, "nft", "-f", "-"]
        subprocess.run(nft, input=f"flush ruleset\n{table}\n", text=True, check=True, capture_output=True)

    def command(self, *words: str) -> list[str]:
        target = str(self.init)
        variables = [f"{name}={value}" for name, value in self.env.items()]
        return [
            "nsenter", "--target", target, "--net", "--uts", "--ipc", "--mount", "--pid", "env",
            f"HOME={self.home}", *variables, *words,
        ]  # fmt: skip

    def run(self, *words: str, timeout_s: float = 600) -> Ran:
        done = subprocess.run(
            self.command(*words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout, done.stderr)

    def firesteel(self, *words: str, timeout_s: float = 600) -> Ran:
        return self.run(sys.executable, "-m", "firesteel", *words, timeout_s=timeout_s)

    def processes(self, word: str) -> list[str]:
        """Command lines on this host that contain the word."""
        listed = self.run("ps", "-ewwo", "args").out.splitlines()
        return [line for line in listed if word in line and "ps -ewwo" not in line]


def _sweep() -> None:
    """Namespaces of test runs that were killed."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for name in (line.split()[0] for line in listed.splitlines() if line.startswith("fs")):
        owner = name[2:].partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _make(folder: Path, index: int, prefix: str, count: int) -> NamespaceHost:
    name = f"spark{index}"
    here = folder / name
    host = NamespaceHost(name, f"10.77.0.{index}", here, f"{prefix}-{name}", f"{prefix}-sw", f"p{index}")
    (here / "home" / ".ssh").mkdir(parents=True, mode=0o700)
    (here / "passwd").write_text(
        f"root:x:0:0:root:{here}/home:/bin/bash\nsshd:x:103:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    names = "".join(f"10.77.0.{number} spark{number}\n" for number in range(1, count + 1))
    (here / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
    for path in (here / "hostkey", here / "home/.ssh/id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    host.env = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "FIRESTEEL_HOME": str(here / "firesteel"),
    }
    _ip("netns", "add", host.namespace)
    _ip("link", "add", host.port, "mtu", "9000", "netns", host.switch, "type", "veth",
        "peer", "name", RAIL, "mtu", "9000", "netns", host.namespace)  # fmt: skip
    _ip("-n", host.switch, "link", "set", host.port, "master", "br0", "up")
    _ip("-n", host.namespace, "link", "set", "lo", "up")
    _ip("-n", host.namespace, "addr", "add", f"{host.address}/24", "dev", RAIL)
    _ip("-n", host.namespace, "link", "set", RAIL, "up")
    return host


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[list[NamespaceHost]]:
    """`spark1`, whose key all others accept, `spark2` and so on. All are gone afterwards."""
    _sweep()
    prefix = f"fs{os.getpid()}"
    made: list[NamespaceHost] = []
    try:
        _ip("netns", "add", f"{prefix}-sw")
        _ip("-n", f"{prefix}-sw", "link", "add", "br0", "mtu", "9000", "type", "bridge")
        _ip("-n", f"{prefix}-sw", "link", "set", "br0", "up")
        for index in range(1, count + 1):
            made.append(_make(folder, index, prefix, count))
        key = (made[0].home / ".ssh/id_ed25519.pub").read_text()
        for host in made:
            (host.home / ".ssh/authorized_keys").write_text(key)
            host.start()
        yield made
    finally:
        for host in made:
            if host.unshare and host.unshare.poll() is None:
                host.unshare.kill()  # takes all processes of the host with it: --kill-child
                host.unshare.wait(timeout=120)
        for name in [*(host.namespace for host in made), f"{prefix}-sw"]:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
