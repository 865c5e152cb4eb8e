"""What a service file has started: by this host, by several together, or by others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firesteel.errors import UsageError
from firesteel.launch import LOOPBACK, AdapterReference, Ask
from firesteel.values import Value

if TYPE_CHECKING:
    from firesteel.service_file import ServiceFile

FIRST_PORT = 8000


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def asks(file: ServiceFile) -> dict[str, Ask]:
    """What this host starts, by name, each on a port that it has every time."""
    return {name: ask for name, ask in _all_asks(file).items() if not file.models[name].node}


class NodeModel(Value):
    """A model that other hosts serve, each by itself."""

    ask: Ask
    addresses: dict[str, str]
    """By node."""

    @property
    def has_here(self) -> bool:
        """This host is one of them."""
        return LOOPBACK in self.addresses.values()

    @property
    def urls(self) -> tuple[str, ...]:
        hosts = (f"[{address}]" if ":" in address else address for address in self.addresses.values())
        return tuple(f"http://{host}:{self.ask.port}" for host in hosts)


def on_nodes(file: ServiceFile) -> dict[str, NodeModel]:
    """What the hosts of the file start, by name."""
    return {
        name: NodeModel(ask, {node: file.hosts[node] for node in nodes})
        for name, ask in _all_asks(file).items()
        if (nodes := file.models[name].node)
    }


def own_ports(file: ServiceFile) -> dict[str, int]:
    """Of the models that are started, by a recipe or a command."""
    taken = {port_of(file.listen), *(entry.port for entry in file.models.values())}
    free = (port for port in range(FIRST_PORT, FIRST_PORT + 1000) if port not in taken)
    ours = {name: entry for name, entry in file.models.items() if entry.recipe or entry.cmd}
    return {name: entry.port or next(free) for name, entry in ours.items()}


def _all_asks(file: ServiceFile) -> dict[str, Ask]:
    ports = own_ports(file)
    return {
        name: Ask(
            entry.recipe,
            entry.context,
            entry.users,
            ports[name],
            name=name,
            sparks=entry.nodes,
            runtime="native" if entry.engine_path else entry.runtime,
            engine_path=entry.engine_path,
            adapters=tuple(AdapterReference(*each) for each in entry.adapters.items()),
        )
        for name, entry in file.models.items()
        if entry.recipe
    }


def chosen(file: ServiceFile, names: tuple[str, ...]) -> dict[str, Ask]:
    """Those that were named, or all; none that may not meet."""
    known = asks(file)
    for name in names:
        if name not in known:
            raise UsageError(
                f"the service file starts no `{name}`; it has {', '.join(known)}",
                next=f"name {next(iter(known), 'one')}",
            )
    wanted = {name: ask for name, ask in known.items() if not names or name in names}
    for group in file.never_together:
        meet = [name for name in group if name in wanted]
        if len(meet) > 1:
            raise UsageError(
                f"{' and '.join(meet)} must not run together, says `never_together`",
                next=f"name the ones to start, without {' or without '.join(meet)}",
            )
    return wanted
