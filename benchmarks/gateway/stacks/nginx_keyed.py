"""nginx as a house sets it up: a key from a map, and an access log. It still knows no model."""

from __future__ import annotations

from stacks import BEARER, KEY, Proxy, Room, nginx

name = "nginx+key+log"
missing = nginx.missing
MAP = f'map $http_authorization $who {{ default ""; "Bearer {KEY}" house; }}'
CHECK = 'if ($who = "") { return 401; }'


def start(room: Room, upstream_port: int) -> Proxy:
    proxy = nginx.start(room, upstream_port, f"{room.folder}/access.log combined", MAP, CHECK)
    return Proxy(proxy.pid, proxy.port, BEARER)
