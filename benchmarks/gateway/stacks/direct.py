"""No proxy: what the mock and the client take by themselves."""

from stacks import Proxy, Room

name = "direct"


def missing() -> str | None:
    return None


def start(room: Room, upstream_port: int) -> Proxy:
    return Proxy(None, upstream_port)
