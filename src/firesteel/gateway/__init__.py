"""One endpoint over many models: loaded on demand, evicted by memory size, streamed at wire speed.

`DESIGN.md` explains the structure. The process that moves bytes never plans or loads a model: that happens in
child processes. Public are `serve` (with `http.server` and `page`), `address`, `state`, `keys`, `key_limits`,
`admin.usage`, `client_target` and `grafana`. Import names from these modules: `serve key` needs the keys
but not the HTTP server.
"""
