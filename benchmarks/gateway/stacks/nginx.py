"""nginx at its best: one worker, kept connections upstream, nothing buffered, no log. It checks no key and
reads no body. `start_keyed`: as a house sets it up, a key from a map and an access log. It still knows no
model.
"""

from __future__ import annotations

from stacks import BEARER, KEY, Proxy, Room, free_port, program_missing, wait_for

MAP = f'map $http_authorization $who {{ default ""; "Bearer {KEY}" house; }}'
CHECK = 'if ($who = "") { return 401; }'
CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 4096; }}
http {{
  access_log {log};
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 64m;
  client_body_buffer_size 1m;
  keepalive_timeout 600s;
  keepalive_requests 1000000;
  {http}
  upstream mock {{
    server 127.0.0.1:{upstream};
    keepalive 256;
    keepalive_requests 1000000;
    keepalive_timeout 600s;
  }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      {location}
      proxy_pass http://mock;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_request_buffering {collect};
      proxy_read_timeout 600s;
    }}
  }}
}}
"""


def missing() -> str | None:
    return program_missing("nginx", "nginx-light")


def start(
    room: Room, upstream_port: int, log: str = "off", http: str = "", location: str = "", collect: str = "off"
) -> Proxy:
    port = free_port()
    config = room.folder / "nginx.conf"
    fields = {"folder": room.folder, "upstream": upstream_port, "port": port}
    config.write_text(CONFIG.format(**fields, log=log, http=http, location=location, collect=collect))
    child = room.start(["/usr/sbin/nginx", "-p", str(room.folder), "-c", str(config)])
    wait_for(port, child, room)
    return Proxy(child.pid, port)


def start_keyed(room: Room, upstream_port: int) -> Proxy:
    proxy = start(room, upstream_port, f"{room.folder}/access.log combined", MAP, CHECK)
    return Proxy(proxy.pid, proxy.port, BEARER)
