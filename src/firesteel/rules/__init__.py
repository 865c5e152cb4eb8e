"""Known mistakes as data, and the findings they give: about a launch, a text, a checkpoint, a host.

Rules are version-ranged data with sources (`data/rules/`), each with examples that it must hit and miss.
`checker` checks a launch, `linter` a text; `checkpoint` audits the files of a model, `host` judges what a
probe read. Never reads a file or a host, and never modifies a launch; a fix edits the text that it was read
from, and is verified by reading that again. Public: `checker`, `linter`, `rule`, `tables`, `adapters`, and
what the two packages name.
"""
