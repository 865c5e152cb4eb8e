"""The face in the terminal: words -> Ask on the way in, values -> text or JSON on the way out.

A file a command, loaded when it is used. Results go to stdout, progress to stderr, and with `--json`
stdout carries one JSON document. Decides nothing and does nothing itself.
"""
