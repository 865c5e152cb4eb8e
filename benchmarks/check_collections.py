#!/usr/bin/env python3
"""What `check` says of collections of other people's launches: a row for each folder, and every stop.

    .venv/bin/python benchmarks/check_collections.py FOLDER ...

A folder is a checkout of a public repository. The rows go to RESULTS.md; whether a stop is true on the
machine and the release that its text states is judged by hand, one by one.
"""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path

from firesteel.catalog.catalog import shipped
from firesteel.edge.files import find_files, read_referenced, read_text
from firesteel.errors import FiresteelError
from firesteel.rules.checker import Finding
from firesteel.rules.linter import CheckReport, LintOptions, lint
from firesteel.values import replace

OPTIONS = LintOptions(shipped().images)


def main() -> None:
    print("| collection | files | launches | a Spark | another machine | not said | stop | warn |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    stops: list[Finding] = []
    for name in sys.argv[1:]:
        folder = Path(name).resolve()
        options = replace(OPTIONS, open_sibling=partial(read_referenced, (folder,)))
        paths = find_files([folder])
        results = list(filter(None, (result_of(path, options) for path in paths)))
        kinds = Counter(machine.kind for result in results for machine in result.machines)
        findings = [finding for result in results for finding in result.findings]
        levels = Counter(finding.level for finding in findings)
        files = sum(bool(result.launches) for result in results)
        launches = sum(len(result.launches) for result in results)
        machines = (kinds[kind] for kind in ("spark", "other", "unsaid"))
        cells = [files, launches, *machines, levels["stop"], levels["warn"]]
        print(f"| {Path(name).name} | {' | '.join(map(str, cells))} |", flush=True)
        stops += [finding for finding in findings if finding.level == "stop"]
    for stop in stops:
        where = f"{stop.spot.path}:{stop.spot.line}" if stop.location else ""
        print(f"{stop.rule}  {where}  {stop.says}")


def result_of(path: Path, options: LintOptions) -> CheckReport | None:
    try:
        return lint(read_text(path), str(path), options)
    except FiresteelError:
        return None


main()
