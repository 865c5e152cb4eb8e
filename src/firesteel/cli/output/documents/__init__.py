"""The documents of `--json` that belong to one command; the others stand in the package of their values.

Every id is `firesteel.COMMAND/N` or `firesteel.COMMAND-WHAT/N`, where WHAT is the subcommand or the option
that changes the shape. Two belong to no command: `firesteel.overview/N` (bare `firesteel`) and
`firesteel.error/N` (a command that failed). `all.py` lists them all.
"""
