"""The web page at `/` of the gateway: HTML, CSS and JavaScript modules, served as they are.

`files` reads them and `run_command` answers what the planner knows; `cli` hands both to the gateway, and
imports them by their own path: the gateway's process loads nothing else. `DESIGN.md` has the rules.
"""
