"""Facts of a host -> what `doctor --fix` would change for a check. Pure: nothing is changed here.

A plan has changes as values (files, links, kernel values, commands), each with its way back. A fix adds a
file of its own rather than edit an existing one; where a setting belongs to another file or to
NetworkManager, the plan says whose it is.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from firesteel.facts.host.host_facts import HostFacts, Interface, is_networkmanager_netplan
from firesteel.rules.host.system import SLEEP_TARGETS, is_in_group
from firesteel.values import Value

ChangeKind = Literal["file", "link", "live", "command"]
"""file: the content of a file. link: a symbolic link. live: a value under /proc/sys or /sys, which a reboot
resets. command: a program that changes something, with one that changes it back."""


class Change(Value):
    kind: ChangeKind
    path: str = ""
    """Without the leading `/`; of a command: a file that it rewrites, which is saved before; or empty."""
    after: str = ""
    """Content, target or value. A live value of which nothing is kept (`drop_caches`) has no way back."""
    mode: int = 0o644
    command: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()


class FixPlan(Value):
    check: str
    changes: tuple[Change, ...] = ()
    activate: tuple[tuple[str, ...], ...] = ()
    """Run after the changes, so that they take effect; a failure is reported."""
    deactivate: tuple[tuple[str, ...], ...] = ()
    """Run after they were taken back."""
    notes: tuple[str, ...] = ()
    """What the user should know first: whose file it is, what is interrupted."""
    later: str = ""
    """When it takes effect, if not at once: `from the next login on`."""
    refused: str = ""
    """Why it is not done: it belongs to another program; empty: it can be done."""


def file(path: str, text: str, mode: int = 0o644) -> Change:
    return Change("file", path, text, mode)


def link(path: str, target: str) -> Change:
    return Change("link", path, target)


def live(path: str, value: str) -> Change:
    return Change("live", path, value)


def command(do: tuple[str, ...], undo: tuple[str, ...] = (), *, saves: str = "") -> Change:
    return Change("command", saves, command=do, undo=undo)


Fixer = Callable[[HostFacts], FixPlan]
_RELOAD = (("systemctl", "daemon-reload"),)
_HEAD = "# Written by `firesteel doctor --fix {check}`; `firesteel doctor --undo {check}` removes it.\n"
_NEXT_LOGIN = "from the next login on"
_FIRST_RAIL_NET = 100


def swap(facts: HostFacts) -> FixPlan:
    return _sysctl(facts, "swap", "vm.swappiness", "1")


def reserved_memory(facts: HostFacts) -> FixPlan:
    if facts.value("proc/sys/vm/nr_hugepages") not in (None, "0"):
        return _sysctl(facts, "reserved-memory", "vm.nr_hugepages", "0")
    return _sysctl(facts, "reserved-memory", "vm.min_free_kbytes", "67584")


def _sysctl(facts: HostFacts, check: str, key: str, value: str) -> FixPlan:
    path = f"etc/sysctl.d/99-firesteel-{check}.conf"
    others = _other_files(facts, "sysctl", re.escape(key), path)
    later = [name for name in others if name.rpartition("/")[2] > path.rpartition("/")[2]]
    if later or "etc/sysctl.conf" in others:
        owner = later[0] if later else "etc/sysctl.conf"
        return FixPlan(check, refused=f"/{owner} sets {key}, and wins over any file of ours: change it there")
    notes = tuple(f"/{name} sets {key} too; it is left as it is, and ours wins" for name in others)
    return FixPlan(
        check,
        (
            file(path, f"{_HEAD.format(check=check)}{key} = {value}\n"),
            live(f"proc/sys/{key.replace('.', '/')}", value),
        ),
        notes=notes,
    )


def huge_page_mode(facts: HostFacts) -> FixPlan:
    where = "sys/kernel/mm/transparent_hugepage/enabled"
    line = f"w /{where} - - - - madvise\n"
    path = "etc/tmpfiles.d/99-firesteel-huge-page-mode.conf"
    return FixPlan(
        "huge-page-mode", (file(path, _HEAD.format(check="huge-page-mode") + line), live(where, "madvise"))
    )


def page_cache(facts: HostFacts) -> FixPlan:
    return FixPlan(
        "page-cache",
        (command(("sync",)), live("proc/sys/vm/drop_caches", "3")),  # dirty pages are not dropped
        notes=("files that are read again come from the disk once; there is nothing to take back",),
    )


def dirty_pages(facts: HostFacts) -> FixPlan:
    return FixPlan("dirty-pages", (command(("sync",)),), notes=("there is nothing to take back",))


def read_ahead(facts: HostFacts) -> FixPlan:
    return _disk_queue(facts, "read-ahead", "read_ahead_kb", "8192")


def disk_scheduler(facts: HostFacts) -> FixPlan:
    return _disk_queue(facts, "disk-scheduler", "scheduler", "none")


def _disk_queue(facts: HostFacts, check: str, key: str, value: str) -> FixPlan:
    disk = facts.disk("hf") or facts.disk("own") or facts.disk("root")
    assert disk is not None  # the check found its value
    path = f"etc/udev/rules.d/99-firesteel-{check}.rules"
    rule = f'ACTION=="add|change", KERNEL=="{disk.block}", ATTR{{queue/{key}}}="{value}"\n'
    others = _other_files(facts, "udev", rf"queue/{key}\b", path)
    return FixPlan(
        check,
        (
            file(path, _HEAD.format(check=check) + rule),
            live(f"sys/block/{disk.block}/queue/{key}", value),
        ),
        activate=(("udevadm", "control", "--reload"),),
        deactivate=(("udevadm", "control", "--reload"),),
        notes=tuple(f"/{name} sets {key} too; it is left as it is" for name in others),
    )


def remove_ipc(facts: HostFacts) -> FixPlan:
    return FixPlan(
        "remove-ipc",
        (file(f"var/lib/systemd/linger/{facts.user}", ""),),
        activate=(("loginctl", "enable-linger", facts.user),),
        deactivate=(("loginctl", "disable-linger", facts.user),),
    )


def suspend(facts: HostFacts) -> FixPlan:
    missing = [name for name in SLEEP_TARGETS if facts.link(f"etc/systemd/system/{name}") != "/dev/null"]
    return FixPlan(
        "suspend",
        tuple(link(f"etc/systemd/system/{name}", "/dev/null") for name in missing),
        activate=_RELOAD,
        deactivate=_RELOAD,
    )


def desktop(facts: HostFacts) -> FixPlan:
    target = link("etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target")
    return FixPlan(
        "desktop", (target,), activate=_RELOAD, deactivate=_RELOAD, later="from the next boot on",
        notes=("the desktop does not start any more; `firesteel doctor --undo desktop` brings it back",),
    )  # fmt: skip


def memlock(facts: HostFacts) -> FixPlan:
    path = "etc/security/limits.d/99-firesteel-memlock.conf"
    text = f"{_HEAD.format(check='memlock')}* - memlock unlimited\nroot - memlock unlimited\n"
    return FixPlan("memlock", (file(path, text),), later=_NEXT_LOGIN)


def memory_killers(facts: HostFacts) -> FixPlan:
    unit = facts.units.get("earlyoom.service")
    if not unit or unit.active != "active":
        return FixPlan(
            "memory-killers", refused="it is a service of the system: sudo systemctl disable --now"
        )
    path, wanted = "etc/default/earlyoom", "EARLYOOM_ARGS=\"-m 1 -r 3600 --avoid '^(sshd|systemd)$'\""
    old = facts.probe.text(path)
    new, count = re.subn(r"^EARLYOOM_ARGS=.*$", wanted.replace("\\", r"\\"), old, count=1, flags=re.M)
    restart = (("systemctl", "restart", "earlyoom"),)
    return FixPlan(
        "memory-killers",
        (file(path, f"{new if count else f'{old}{wanted}'.lstrip()}\n"),),
        activate=restart,
        deactivate=restart,
        notes=("/etc/default/earlyoom belongs to the package earlyoom; one line of it changes",),
    )


def time_sync(facts: HostFacts) -> FixPlan:
    do = command(("timedatectl", "set-ntp", "true"), ("timedatectl", "set-ntp", "false"))
    return FixPlan("time-sync", (do,), later="when the first time server has answered")


def docker(facts: HostFacts) -> FixPlan:
    section = facts.probe.sections.get("docker")
    if not section or "permission denied" not in section.text.lower() or is_in_group(facts, "docker"):
        return FixPlan("docker", refused="it is not a matter of rights; see what to type")
    do = command(("usermod", "-aG", "docker", facts.user), ("gpasswd", "-d", facts.user, "docker"))
    notes = (f"members of the group docker can become root on this host; {facts.user} will be one",)
    return FixPlan("docker", (do,), notes=notes, later=_NEXT_LOGIN)


def docker_gpu(facts: HostFacts) -> FixPlan:
    do = command(("nvidia-ctk", "runtime", "configure", "--runtime=docker"), saves="etc/docker/daemon.json")
    restart = (("systemctl", "restart", "docker"),)
    notes = ("docker restarts, and every running container with it",)
    return FixPlan("docker-gpu", (do,), activate=restart, deactivate=restart, notes=notes)


def cdi_stale(facts: HostFacts) -> FixPlan:
    name = next(
        line.removeprefix("file ") for line in facts.probe.lines("cdi-missing") if line.startswith("file ")
    )
    do = command(("nvidia-ctk", "cdi", "generate", f"--output={name}"), saves=name.lstrip("/"))
    return FixPlan("cdi-stale", (do,))


def driver_upgrades(facts: HostFacts) -> FixPlan:
    package = next(name for name in facts.packages if re.fullmatch(r"nvidia-driver-\d+\S*", name))
    do = command(("apt-mark", "hold", package), ("apt-mark", "unhold", package))
    return FixPlan("driver-upgrades", (do,))


def firewall(facts: HostFacts) -> FixPlan:
    rails = [rail.name for rail in facts.cabled_rails]
    if not rails:
        return FixPlan("firewall", refused="without rails nothing is known about who should reach what")
    changes = tuple(
        command(("ufw", "allow", "in", "on", name), ("ufw", "delete", "allow", "in", "on", name))
        for name in rails
    )
    notes = ("everything may then come in over the rails",)
    return FixPlan("firewall", changes, notes=notes, later="at once (`sudo ufw status` shows the rules)")


def rails_up(facts: HostFacts) -> FixPlan:
    down = [rail.name for rail in facts.cabled_rails if not rail.is_up]
    changes = tuple(
        command(("ip", "link", "set", name, "up"), ("ip", "link", "set", name, "down")) for name in down
    )
    return FixPlan("rails-up", changes) if changes else FixPlan("rails-up", refused="no interface is down")


# --- addresses and MTU of the rails ---


def jumbo_frames(facts: HostFacts) -> FixPlan:
    small = [rail for rail in facts.cabled_rails if rail.mtu is not None and rail.mtu < 9000]
    changes, notes, blocks = list[Change](), list[str](), dict[str, str]()
    for rail in small:
        if owner := _networkmanager(rail):
            connection, saved = owner
            do = ("nmcli", "con", "mod", connection, "802-3-ethernet.mtu", "9000")
            changes.append(command(do, ("nmcli", "con", "reload"), saves=saved))
            notes.append(
                f"{rail.name} belongs to NetworkManager's connection `{connection}`: its MTU changes"
            )
        else:
            blocks[rail.name] = "mtu: 9000"
            notes += [f"/{name} sets {rail.name} up; it is left as it is" for name in _netplan_files(rail)]
        changes.append(live(f"sys/class/net/{rail.name}/mtu", "9000"))
    return _netplan("jumbo-frames", blocks, changes, notes)


def rails_addressed(facts: HostFacts) -> FixPlan:
    missing = [rail for rail in facts.cabled_rails if not rail.addresses]
    if not missing:
        return FixPlan("rails-addressed", refused="a rail has several addresses: an old file in /etc/netplan")
    return address_rails(facts, propose_addresses(facts, missing))


def propose_addresses(facts: HostFacts, rails: Iterable[Interface]) -> dict[str, str]:
    """By rail: an address in a private subnet that nothing else on this host uses.

    The number within the subnet is that of the host in its own network, which no other host there has.
    """
    used = [network for each in facts.interfaces for network in each.networks]
    own = next(
        (each.addresses[0] for each in facts.interfaces if each.addresses and not each.is_rail
         and not each.addresses[0].startswith(("127.", "172.17."))),
        "10.0.0.10/24",
    )  # fmt: skip
    number = int(own.partition("/")[0].rpartition(".")[2]) or 10
    found: dict[str, str] = {}
    free = (ipaddress.IPv4Network(f"192.168.{n}.0/24") for n in range(_FIRST_RAIL_NET, 250))
    for rail in rails:
        network = next(network for network in free if not any(network.overlaps(other) for other in used))
        found[rail.name] = f"{network.network_address + number}/24"
    return found


def address_rails(facts: HostFacts, addresses: Mapping[str, str]) -> FixPlan:
    """Gives rails these addresses, with jumbo frames, in a netplan file of its own. Also for `cluster`."""
    changes, notes, blocks = list[Change](), list[str](), dict[str, str]()
    for rail in facts.rails:
        if rail.name not in addresses:
            continue
        if owner := _networkmanager(rail):
            connection = owner[0]
            why = f"{rail.name} belongs to NetworkManager's connection `{connection}`"
            do = f"sudo nmcli con mod {connection} ipv4.method manual ipv4.addresses {addresses[rail.name]}"
            return FixPlan("rails-addressed", refused=f"{why}; {do}")
        address = addresses[rail.name]
        options = "dhcp4: false, dhcp6: false, link-local: [], mtu: 9000"
        blocks[rail.name] = f"{options}, addresses: [{address}]"
        notes += [
            f"/{name} sets {rail.name} up as well; netplan merges both" for name in _netplan_files(rail)
        ]
        changes.append(
            command(
                ("ip", "addr", "add", address, "dev", rail.name),
                ("ip", "addr", "del", address, "dev", rail.name),
            )
        )
        changes.append(live(f"sys/class/net/{rail.name}/mtu", "9000"))
    return _netplan("rails-addressed", blocks, changes, notes)


def address_owner(facts: HostFacts) -> FixPlan:
    blocks: dict[str, str] = {}
    for rail in facts.cabled_rails:
        if not rail.addresses or rail.addresses[0].startswith("169.254.") or rail.is_dynamic:
            return FixPlan(
                "address-owner",
                refused=f"{rail.name} has no address to keep: firesteel doctor --fix rails-addressed",
            )
        blocks[rail.name] = (
            f"dhcp4: false, dhcp6: false, link-local: [], mtu: {rail.mtu}, addresses: [{rail.addresses[0]}]"
        )
    notes = [
        f"{rail.name} is set up by {owner} until the next boot; then by netplan"
        for rail in facts.cabled_rails
        for owner in rail.persisted_by
    ]
    return _netplan("address-owner", blocks, [], notes, later="from the next boot on")


def _netplan(
    check: str, blocks: Mapping[str, str], changes: list[Change], notes: list[str], later: str = ""
) -> FixPlan:
    generate: tuple[tuple[str, ...], ...] = ()
    if blocks:
        rows = "".join(f"    {name}: {{{options}}}\n" for name, options in blocks.items())
        text = f"{_HEAD.format(check=check)}network:\n  version: 2\n  ethernets:\n{rows}"
        changes = [file(f"etc/netplan/99-firesteel-{check}.yaml", text, 0o600), *changes]
        # Not `apply`, which drops the management address for a second: the live values change by themselves.
        generate = (("netplan", "generate"),)
    return FixPlan(check, tuple(changes), generate, generate, tuple(dict.fromkeys(notes)), later)


def _networkmanager(rail: Interface) -> tuple[str, str] | None:
    """The connection that owns it and the file that holds it, unless netplan made the connection."""
    for owner in rail.persisted_by:
        match = re.match(r"NetworkManager connection `(.+)` \((.+)\)", owner)
        if match and not match[1].startswith("netplan-"):
            return match[1], match[2].lstrip("/")
        if is_networkmanager_netplan(owner):
            return rail.name, owner
    return None


def _netplan_files(rail: Interface) -> list[str]:
    return [owner for owner in rail.persisted_by if owner.startswith(("etc/netplan", "run/netplan"))]


def _other_files(facts: HostFacts, section: str, pattern: str, own: str) -> list[str]:
    """Files of others that set the same thing."""
    found = []
    for line in facts.probe.lines(section):
        path, _, text = line.partition(":")
        if path != own and re.search(pattern, text):
            found.append(path)
    return list(dict.fromkeys(found))


FIXERS: dict[str, Fixer] = {
    "swap": swap,
    "reserved-memory": reserved_memory,
    "huge-page-mode": huge_page_mode,
    "page-cache": page_cache,
    "dirty-pages": dirty_pages,
    "read-ahead": read_ahead,
    "disk-scheduler": disk_scheduler,
    "remove-ipc": remove_ipc,
    "suspend": suspend,
    "desktop": desktop,
    "memlock": memlock,
    "memory-killers": memory_killers,
    "time-sync": time_sync,
    "docker": docker,
    "docker-gpu": docker_gpu,
    "cdi-stale": cdi_stale,
    "driver-upgrades": driver_upgrades,
    "firewall": firewall,
    "rails-up": rails_up,
    "jumbo-frames": jumbo_frames,
    "rails-addressed": rails_addressed,
    "address-owner": address_owner,
}
ONLY_BY_NAME = frozenset({"desktop", "firewall", "docker-gpu", "docker"})
"""Fixes with a price, which a plain `--fix` leaves out."""


def plan_fix(check: str, facts: HostFacts) -> FixPlan:
    """For a check that found something wrong."""
    fixer = FIXERS.get(check)
    return fixer(facts) if fixer else FixPlan(check, refused="there is no fix that could be taken back")
