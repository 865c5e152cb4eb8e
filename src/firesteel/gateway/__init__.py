"""One endpoint over many models: loaded on demand, evicted by memory size, streamed at wire speed.

`DESIGN.md` explains the structure. The process that moves bytes never plans or loads a model: that happens in
child processes. Import names from their modules: `firesteel key` needs the keys but not the HTTP server.
"""
