"""`doctor --fix` and `--undo` in a folder that stands for `/`: applied, undone, killed half-way, undone."""

from __future__ import annotations

import os
import re
import signal
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from firesteel.edge.home import Home
from firesteel.edge.sim.host_files import host_probe, write_host
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.facts.host.probe import Probe, Section
from firesteel.hosts.doctor import fix as doctor_fix
from firesteel.hosts.doctor.examine import examine
from firesteel.hosts.doctor.fix import apply_fix, plan_fixes, require_root, to_undo, undo_fix
from firesteel.rules.host.fixes import FIXERS, Change, FixPlan, file
from firesteel.values import replace
from tests.conftest import Firesteel

PROGRAMS = {
    "usermod": 'sed -i "s/^docker:.*:$/&$3/" "$ROOT/etc/group"',
    "gpasswd": 'sed -i "s/^\\(docker:.*:\\)$2$/\\1/" "$ROOT/etc/group"',
    "nvidia-ctk": 'for a; do case $a in --output=*) o=${a#--output=};; *) :;; esac; done; '
    'o=${o:-/etc/docker/daemon.json}; mkdir -p "$ROOT$(dirname $o)"; echo new > "$ROOT$o"; '
    'echo "file /etc/cdi/nvidia.yaml" > "$ROOT/commands/cdi-missing"; '
    'echo "29.2.1|overlay2|/var/lib/docker|{\\"nvidia\\":{}}|[]|systemd" > "$ROOT/commands/docker"',
    "apt-mark": 'case $1 in hold) echo $2 > "$ROOT/commands/held";; *) : > "$ROOT/commands/held";; esac',
    "ufw": 'echo "$@" >> "$ROOT/ufw.log"',
    "timedatectl": '[ $2 = true ] && v=yes || v=no; '
    'printf "NTPSynchronized=$v\\nNTP=$v\\nTimezone=Etc/UTC\\n" > "$ROOT/commands/time"',
    "sync": 'sed -i "s/^Dirty: .*/Dirty: 0 kB/; s/^Writeback: .*/Writeback: 0 kB/" "$ROOT/proc/meminfo"',
    "ip": 'echo "$@" >> "$ROOT/ip.log"; [ "$4" = up ] && s=up || s=down; '
    '[ $1 = link ] && echo $s > "$ROOT/sys/class/net/$3/operstate"; '
    '[ $1 = link ] && { [ $s = up ] && c=1 || c=0; echo $c > "$ROOT/sys/class/net/$3/carrier"; }; '
    '[ "$1 $2" = "addr add" ] && echo "6: $5    inet $3 scope global $5" >> "$ROOT/commands/addresses"; '
    '[ "$1 $2" = "addr del" ] && sed -i "/^6: $5 /d" "$ROOT/commands/addresses"; exit 0',
}  # fmt: skip
"""Stand-ins for the programs that a fix runs, which change the folder as the real ones change a host."""
LOGS = ("ufw.log", "ip.log", "bin")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return tmp_path / "host"


def make_host(root: Path, check: str) -> None:
    write_host(root, host_probe(check))
    (root / "proc/sys/vm/drop_caches").write_text("")
    for name in ("bin", "var/lib/systemd"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, code in PROGRAMS.items():
        (root / "bin" / name).write_text(f"#!/bin/sh\n{code}\n")
        (root / "bin" / name).chmod(0o755)


def tree(root: Path) -> dict[str, tuple[str, int]]:
    """Every file and link with its content and mode, except the journal."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if name.startswith((doctor_fix.JOURNAL_FOLDER.as_posix(), *LOGS)) or name == "var/lib/firesteel":
            continue
        if path.is_symlink():
            found[name] = (f"-> {path.readlink()}", 0)
        elif path.is_file():
            # The kernel shows `always [madvise] never`, a plain file what was written.
            text = (
                re.sub(r"^.*\[(\S+)\].*$", r"\1", path.read_text())
                if name.endswith(("transparent_hugepage/enabled", "queue/scheduler"))
                else path.read_text()
            )
            found[name] = (text, stat.S_IMODE(path.stat().st_mode))
        else:
            found[name] = ("folder", 0)
    return found


def without_records(found: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Without the outputs that the stand-in of nvidia-ctk recorded for the next examination."""
    return {
        name: row for name, row in found.items() if name not in ("commands/cdi-missing", "commands/docker")
    }


def fix(root: Path, check: str) -> FixPlan:
    plans = plan_fixes(examine(Home(root / "home"), root=root), (check,))
    assert [plan.check for plan in plans] == [check]
    assert not plans[0].refused, plans[0].refused
    return plans[0]


@pytest.mark.parametrize("check", sorted(FIXERS.keys() - {"page-cache", "dirty-pages"}))
def test_a_fix_helps_and_can_be_taken_back(check: str, host: Path) -> None:
    make_host(host, check)
    before = tree(host)
    plan = fix(host, check)
    shown = doctor_fix.diff(host, plan)
    assert all(change.path in shown or " ".join(change.command) in shown for change in plan.changes)
    assert tree(host) == before, "showing a diff changes nothing"
    fixed = apply_fix(plan, Home(host / "home"), host)
    assert fixed.verified, fixed.says
    if check != "firewall":  # whose stand-in only writes down what it was asked
        assert tree(host) != before
    entries = to_undo(host, [check])
    undone = [undo_fix(entry, host) for entry in entries]
    assert [result.left for result in undone] == [()]
    after = tree(host)
    assert without_records(after) == without_records(before)
    assert to_undo(host) == []


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Runs the action in a process that is killed at this step; False: it ended before that."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        count = 0

        def deadly(function: Any) -> Any:
            def wrapped(*arguments: Any, **more: Any) -> Any:
                nonlocal count
                count += 1
                if count == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*arguments, **more)

            return wrapped

        os.fsync = deadly(os.fsync)
        for name in ("replace", "symlink_to", "write_text", "write_bytes", "unlink"):
            setattr(Path, name, deadly(getattr(Path, name)))
        setattr(doctor_fix, "run_command", deadly(doctor_fix.run_command))  # noqa: B010  # mypy: not a module variable
        try:
            action()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("check", ["suspend", "docker", "jumbo-frames", "read-ahead", "cdi-stale"])
def test_a_fix_that_is_killed_anywhere_can_be_taken_back(check: str, tmp_path: Path) -> None:
    root = tmp_path / "host"
    make_host(root, check)
    plan, before = fix(root, check), tree(root)
    for step in range(1, 100):
        was_killed = killed_at(step, partial(doctor_fix.apply, root, plan))
        for entry in to_undo(root):
            assert undo_fix(entry, root).left == ()
        assert without_records(tree(root)) == without_records(before), f"killed at step {step}"
        if not was_killed:
            break
    assert 5 < step < 99


def test_an_undo_that_is_killed_anywhere_can_be_repeated(tmp_path: Path) -> None:
    root = tmp_path / "host"
    make_host(root, "docker")
    plan, before = fix(root, "docker"), tree(root)
    for step in range(1, 100):
        entry = doctor_fix.apply(root, plan)
        was_killed = killed_at(step, partial(doctor_fix.undo, root, entry))
        for entry in to_undo(root):
            assert undo_fix(entry, root).left == ()
        assert tree(root) == before, f"killed at step {step}"
        if not was_killed:
            break
    assert 3 < step < 99


def several(root: Path) -> tuple[str, ...]:
    """A host with three faults at once."""
    sections = dict(host_probe("swap").sections)
    for fault in ("read-ahead", "jumbo-frames"):
        good, bad = host_probe().sections, host_probe(fault).sections
        sections |= {name: section for name, section in bad.items() if good[name] != section}
    write_host(root, Probe(sections))
    return ("swap", "read-ahead", "jumbo-frames")


def test_fixes_are_taken_back_in_any_order(host: Path) -> None:
    names = several(host)
    before = tree(host)
    for name in names:
        assert apply_fix(fix(host, name), Home(host / "home"), host).verified
    for name in ("read-ahead", "swap", "jumbo-frames"):
        (entry,) = to_undo(host, [name])
        assert undo_fix(entry, host).left == ()
    assert tree(host) == before


def test_a_fix_is_taken_back_after_a_reboot(host: Path) -> None:
    make_host(host, "swap")
    before = tree(host)
    apply_fix(fix(host, "swap"), Home(host / "home"), host)
    value = host / "proc/sys/vm/swappiness"
    value.write_text("60\n")  # the kernel starts with its own value, and the file may not be applied yet
    (entry,) = to_undo(host)
    assert undo_fix(entry, host).left == ()
    assert tree(host) == before


def test_what_somebody_else_changed_since_is_left_alone_and_told(host: Path) -> None:
    make_host(host, "swap")
    apply_fix(fix(host, "swap"), Home(host / "home"), host)
    path = host / "etc/sysctl.d/99-firesteel-swap.conf"
    path.write_text("vm.swappiness = 5\n")
    (host / "proc/sys/vm/swappiness").write_text("5")
    (entry,) = to_undo(host)
    left = undo_fix(entry, host).left
    assert any("99-firesteel-swap.conf was changed by others" in each for each in left)
    assert any("swappiness is 5 now" in each for each in left)
    assert path.read_text() == "vm.swappiness = 5\n"


def test_dropped_caches_need_no_way_back(host: Path) -> None:
    make_host(host, "page-cache")
    entry = doctor_fix.apply(host, fix(host, "page-cache"))
    assert (host / "proc/sys/vm/drop_caches").read_text() == "3\n"
    assert doctor_fix.undo(host, entry).left == ()


def test_pages_that_wait_for_the_disk_are_written(host: Path) -> None:
    make_host(host, "dirty-pages")
    fixed = apply_fix(fix(host, "dirty-pages"), Home(host / "home"), host)
    assert fixed.verified, fixed.says
    (entry,) = to_undo(host)
    assert undo_fix(entry, host).left == ()


def test_a_fix_that_does_not_help_is_taken_back(host: Path) -> None:
    make_host(host, "swap")
    before = tree(host)
    plan = FixPlan("swap", (file("etc/sysctl.d/99-firesteel-other.conf", "vm.laptop_mode = 1\n"),))
    fixed = apply_fix(plan, Home(host / "home"), host)
    assert not fixed.verified and "reverted" in fixed.says
    assert tree(host) == before


def test_a_fix_that_fails_half_way_is_taken_back_at_once(host: Path) -> None:
    make_host(host, "swap")
    before = tree(host)
    plan = FixPlan("swap", (file("etc/sysctl.d/99-a.conf", "x"), Change("live", "proc/sys/no/such", "1")))
    with pytest.raises(FiresteelError, match="everything was reverted"):
        apply_fix(plan, Home(host / "home"), host)
    assert tree(host) == before


def test_a_setting_of_a_file_that_wins_over_ours_is_not_touched(host: Path) -> None:
    probe = host_probe("swap")
    line = "etc/sysctl.d/99-zz-mine.conf:vm.swappiness=60"
    write_host(host, Probe({**probe.sections, "sysctl": Section(line)}))
    (plan,) = plan_fixes(examine(Home(host / "home"), root=host), ("swap",))
    assert "99-zz-mine.conf" in plan.refused


def test_a_connection_of_networkmanager_is_named_and_its_file_restored(host: Path) -> None:
    probe = host_probe("jumbo-frames")
    path = "etc/NetworkManager/system-connections/cx7.nmconnection"
    rows = f"cx7:enp1s0f1np1:802-3-ethernet:/{path}\nnetplan-b:enP2p1s0f1np1:802-3-ethernet:/run/x"
    write_host(host, Probe({**probe.sections, "connections": Section(rows)}))
    (host / path).parent.mkdir(parents=True, exist_ok=True)
    (host / path).write_text("[ethernet]\nmtu=1500\n")
    (host / "bin").mkdir()
    program = f'[ $2 = mod ] && echo "[ethernet]\nmtu=$5" > "$ROOT/{path}"; exit 0'
    (host / "bin/nmcli").write_text(f"#!/bin/sh\n{program}\n")
    (host / "bin/nmcli").chmod(0o755)
    before = tree(host)
    (plan,) = plan_fixes(examine(Home(host / "home"), root=host), ("jumbo-frames",))
    assert any("NetworkManager's connection `cx7`" in note for note in plan.notes)
    assert apply_fix(plan, Home(host / "home"), host).verified
    assert "9000" in (host / path).read_text()
    netplan = (host / "etc/netplan/99-firesteel-jumbo-frames.yaml").read_text()
    assert "enP2p1s0f1np1" in netplan and "enp1s0f1np1" not in netplan
    (entry,) = to_undo(host)
    undo_fix(entry, host)
    assert tree(host) == before


def test_proposed_addresses_are_in_subnets_that_nobody_uses(host: Path) -> None:
    probe = host_probe("rails-addressed")
    make_host(host, "rails-addressed")
    plan = plan_fixes(examine(Home(host / "home"), root=host), ("rails-addressed",))[0]
    assert "192.168.101.20/24" in plan.changes[0].after, "192.168.100.0/24 is the other rail's"
    assert probe.text("addresses").count("192.168.101") == 0
    assert stat.S_IMODE(plan.changes[0].mode) == 0o600


def test_undo_of_what_was_not_done_says_so(host: Path) -> None:
    make_host(host, "swap")
    with pytest.raises(UsageError, match="was not changed here"):
        to_undo(host, ["swap"])


def test_a_real_host_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostNotReady) as error:
        require_root(Path("/"), "firesteel doctor --fix swap")
    assert error.value.next == "sudo firesteel doctor --fix swap"
    require_root(Path("/somewhere"), "")


def test_two_at_once_are_refused(host: Path) -> None:
    make_host(host, "swap")
    with doctor_fix.exclusive(host), pytest.raises(FiresteelError, match="another `firesteel doctor`"):
        apply_fix(fix(host, "swap"), Home(host / "home"), host)


def test_a_damaged_journal_is_ignored(host: Path) -> None:
    make_host(host, "swap")
    apply_fix(fix(host, "swap"), Home(host / "home"), host)
    (host / doctor_fix.JOURNAL_FOLDER / "0009-x.json").write_text("{")
    (entry,) = to_undo(host)
    assert entry == replace(entry, state="done")
    assert undo_fix(entry, host).left == ()


def test_the_command_asks_shows_a_diff_and_takes_back(firesteel: Firesteel, host: Path) -> None:
    several(host)
    before = tree(host)
    ran = firesteel("doctor", "--root", str(host), "--fix", "swap")  # nobody can answer
    assert ran.code == 2 and "next: add --yes" in ran.err
    ran = firesteel("doctor", "--root", str(host), "--fix", "swap", stdin="n\n")
    assert "+vm.swappiness = 1" in ran.err and "nothing was changed" in ran.err and tree(host) == before
    ran = firesteel("doctor", "--root", str(host), "--fix", "--yes", "--json")
    assert ran.code == 0, ran.err
    rows = {row["check"]: row for row in ran.json["fixes"]}
    assert rows.keys() == {"swap", "read-ahead", "jumbo-frames"}
    assert all(row["done"] and row["verified"] for row in rows.values())
    ran = firesteel("doctor", "--root", str(host), "--undo", "--yes")
    assert ran.code == 0 and ran.err.count("reverted") == 3
    assert tree(host) == before
    assert "nothing to take back" in firesteel("doctor", "--root", str(host), "--undo").err


def test_a_fix_that_was_killed_is_told(firesteel: Firesteel, host: Path) -> None:
    make_host(host, "suspend")
    before = tree(host)
    assert killed_at(14, partial(doctor_fix.apply, host, fix(host, "suspend")))
    assert tree(host) != before
    ran = firesteel("doctor", "--root", str(host), "suspend")
    assert "the fix of suspend was interrupted half-way" in ran.err
    assert firesteel("doctor", "--root", str(host), "--undo", "suspend", "--yes").code == 0
    assert tree(host) == before


def test_a_journal_that_only_root_can_read_is_not_called_empty(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host / doctor_fix.JOURNAL_FOLDER).mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(HostNotReady, match="only by root"):
        to_undo(host)


def test_a_simulated_spark_can_be_mended(firesteel: Firesteel) -> None:
    assert firesteel("--sim", "bad-read-ahead", "doctor", "--fix", "--yes").code == 0
    found = firesteel("--sim", "doctor", "--json").json["findings"]
    assert {row["level"] for row in found} <= {"good", "unknown", "skipped"}
    assert firesteel("--sim", "doctor", "--undo", "--yes").code == 0
    found = firesteel("--sim", "doctor", "--json").json["findings"]
    assert [row["check"] for row in found if row["level"] == "note"] == ["read-ahead"]
