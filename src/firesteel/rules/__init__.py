"""Known mistakes as data, and the findings they give for a launch.

`check` checks a launch against every rule, `lint` a whole text.
Rules are version-ranged data with sources (`data/rules/`), each with examples that it must hit and miss.
Rules never modify a launch; a fix edits the text that it was read from, and is verified by
reading that again.
"""
