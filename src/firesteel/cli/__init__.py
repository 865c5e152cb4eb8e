"""The command line: arguments -> Ask on the way in, values -> text or JSON on the way out.

One module per command, imported when the command is used; `compare` and `history` are of `bench`, `keys` of
`serve`. `options` has what several of them take, `output` what several of them show. Results go to stdout,
progress to stderr; with `--json` stdout carries one JSON document. Decides nothing itself: that is the
business of the packages below.
"""
