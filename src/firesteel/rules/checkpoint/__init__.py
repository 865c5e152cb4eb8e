"""What is wrong with a checkpoint, judged from its headers, its scales and its small files.

`judge` takes what `edge/contents.py` read and returns findings, the most severe first. Pure: `audit`
shows them, `plan` and `up` use them before anything starts, `--fix` repairs those that it can verify.
Public: `judge`, `checks` (as data, and their findings), `audited` (a checkpoint and what follows from it),
`scales`.
"""
