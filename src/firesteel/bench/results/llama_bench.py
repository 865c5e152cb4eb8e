"""Results of llama.cpp's `llama-bench -o json` or `-o jsonl`: an entry per test, with every repetition. Pure.

https://github.com/ggml-org/llama.cpp/tree/master/tools/llama-bench; a file of build 11434, seen 2026-11-16.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from firesteel.bench.compare.stats import mean_interval
from firesteel.bench.results.foreign_file import FileNode, foreign_point, foreign_run
from firesteel.bench.values import BenchRun, PointFigures, Subject
from firesteel.values import replace

KEYS = frozenset({"model_filename", "n_prompt", "n_gen", "avg_ts"})
_NOTES = (
    "by llama-bench, without a server: no HTTP, no chat template, no sampling; a server is slower",
    "it generates after random tokens, by default after none: compare with short prompts only",
)


def read(entries: Sequence[FileNode]) -> BenchRun:
    first = entries[0]
    tests = [(entry, entry["n_prompt"].count(), entry["n_gen"].count()) for entry in entries]
    rows = [_row(*test) for test in tests if not (test[1] and test[2])]
    notes = list(_NOTES)
    if mixed := len(tests) - len(rows):
        notes.append(f"{mixed} tests of prompts and answers together are left out: one rate for both")
    name = re.split(r"[\\/]", first["model_filename"].text())[-1]
    others = {entry["model_filename"].text() for entry in entries} - {first["model_filename"].text()}
    if others:
        notes.append(f"{len(others)} more models are in the file; all tests are listed here under the first")
    began = first["test_time"].text() if first["test_time"].value is not None else ""
    build = first["build_number"]
    version = f"b{build.count()}" if build.value else None  # 0: built without git
    subject = Subject("", name, "llamacpp", version)
    digits = re.sub("[^0-9]", "", began)[:14] or "unknown"
    return foreign_run(f"llama-bench-{digits}", began, subject, rows, notes)


def _row(entry: FileNode, prompt: int, answer: int) -> PointFigures:
    """Either a prompt is read or an answer is generated, `n_depth` tokens into the context."""
    depth = entry["n_depth"].count() if entry["n_depth"].value is not None else 0
    samples = entry["samples_ts"]
    rates = samples.numbers() if samples.value is not None else [entry["avg_ts"].number()]
    figure = mean_interval([rate for rate in rates if rate > 0])
    if answer:
        point = foreign_point(1, depth, answer)
        return PointFigures(point, len(rates), decode_tokens_per_s=figure, repetitions=len(rates))
    point = replace(foreign_point(1, prompt, 1), shared_tokens=depth)
    return PointFigures(point, len(rates), prefill_tokens_per_s=figure, repetitions=len(rates))
