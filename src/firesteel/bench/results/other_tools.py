"""Result files of other tools as runs: llama-benchy (JSON, CSV), vLLM's own `bench`, guidellm, llama-bench.
Pure.

What a file does not contain stays unknown, and what it measures differently is left out instead of being
shown next to our figures: the notes of each run say what a reader must know about the tool. Every value is
read through `FileNode`, which knows its place in the file for the error.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import sqrt
from statistics import fmean
from typing import Any

from msgspec import Struct

from firesteel.bench import measurements
from firesteel.bench.compare.stats import mean_interval, spread, student_quantile
from firesteel.bench.measurements import (
    BenchRun,
    MeasuredFigure,
    Point,
    PointFigures,
    RequestSettings,
    StoredRun,
    Subject,
)
from firesteel.errors import UsageError, printable
from firesteel.values import Value, replace

_MAX_ENTRIES = 10_000
"""The most loads or lines of a file."""
_MAX_VALUES = 200_000
"""The most values of one list. Files come from others, and these bounds are what one may cost."""
_MAX_NUMBER = 1e12
"""A larger number is no figure of a benchmark."""
_UNCHANGED = "use the file as the tool wrote it"


class FileNode(Value):
    """A value in a file with its place; a wrong type is an error that names the place."""

    value: Any
    where: str

    def __getitem__(self, key: str) -> FileNode:
        if not isinstance(self.value, Mapping):
            raise self.error("is not an object")
        return FileNode(self.value.get(key), f"{self.where}.{key}")

    def error(self, what: str) -> UsageError:
        return UsageError(f"{self.where} {what}", next=_UNCHANGED)

    def number(self) -> float:
        value = self.value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < _MAX_NUMBER:
            raise self.error("is not a number of 0 or more")
        return float(value)

    def optional_number(self) -> float | None:
        return None if self.value is None else self.number()

    def count(self, least: int = 0) -> int:
        value = self.number()
        if value != int(value) or not least <= value <= 2**31:
            raise self.error(f"is not a whole number of {least} or more")
        return int(value)

    def text(self) -> str:
        if not isinstance(self.value, str) or len(self.value) > 500:
            raise self.error("is not a short text")
        return self.value

    def items(self, most: int = _MAX_VALUES) -> list[FileNode]:
        if not isinstance(self.value, list) or len(self.value) > most:
            raise self.error(f"is not a list of at most {most:,}")
        return [FileNode(value, f"{self.where}[{index}]") for index, value in enumerate(self.value)]

    def numbers(self) -> list[float]:
        return [item.number() for item in self.items()]


def read_results(text: str, where: str) -> StoredRun:
    """Read a result file of any known tool, or of firesteel; the run is `reported`."""
    source = printable(where)
    if text.lstrip().startswith("model,test_name,"):
        return StoredRun(_read_benchy_csv(text, where), origin="reported", source=source)
    if text.lstrip()[:1] in ("{", "["):
        documents = _parse_documents(text, where)
        if isinstance(documents[0].value, list) and documents[0].value:  # llama-bench
            documents = documents[0].items(_MAX_ENTRIES)
        first = documents[0].value
        if measurements.is_document(first):
            return measurements.from_document(first, where)
        for keys, reader in _READERS:
            if isinstance(first, Mapping) and keys <= first.keys():
                return StoredRun(reader(documents), origin="reported", source=source)
    raise UsageError(
        f"{where} is not a result of firesteel, llama-benchy (JSON or CSV), `vllm bench`, guidellm (JSON) or "
        "llama-bench (-o json or jsonl)",
        next="firesteel bench export RUN",
    )


def _parse_documents(text: str, where: str) -> list[FileNode]:
    """One JSON text, or one per line, as `--append-result` writes them."""
    try:
        return [FileNode(measurements.parse_json(text), where)]
    except (ValueError, RecursionError):
        lines = [line for line in text.splitlines() if line.strip()]
        if not 1 < len(lines) <= _MAX_ENTRIES or not all(line.startswith("{") for line in lines):
            return [FileNode(measurements.load_json(text, where), where)]
    places = [f"{where}:{number}" for number in range(1, len(lines) + 1)]
    return [
        FileNode(measurements.load_json(line, place), place)
        for line, place in zip(lines, places, strict=True)
    ]


# --- what the tools share ---


def _make_run(
    name: str, began: str, subject: Subject, rows: Sequence[PointFigures], notes: Sequence[str]
) -> BenchRun:
    """A complete run; what no tool writes into its file stays unknown."""
    return BenchRun(
        id=name,
        began=began,
        subject=subject,
        settings=RequestSettings(temperature=None),
        points=tuple(row.point for row in rows),
        figures=tuple(rows),
        is_whole=True,
        notes=tuple(notes),
    )


def _make_point(users: int, prompt: int, answer: int) -> Point:
    """A load with a fixed number of users. No file names its kind of text: it is listed as prose."""
    return Point("single" if users == 1 else "sweep", "prose", users, max(1, prompt), max(1, answer))


def _figure_with_std(mean: float, std: float, n: int) -> MeasuredFigure | None:
    """A figure from a mean and the standard deviation as numpy counts it: over n, not n - 1."""
    if n < 2:
        return mean_interval([mean] * n)
    margin = student_quantile(0.975, n - 1) * std / sqrt(n - 1)
    return MeasuredFigure(mean, max(0.0, mean - margin), mean + margin, n)


def _rate_of_time(time_ms: MeasuredFigure | None) -> MeasuredFigure | None:
    """Tokens per second, from milliseconds per token."""
    if time_ms is None or not time_ms.value:
        return None
    fastest = 1000 / time_ms.low if time_ms.low else 2000 / time_ms.value
    return MeasuredFigure(1000 / time_ms.value, 1000 / time_ms.high, fastest, time_ms.n)


def _parse_stamp(stamp: str) -> str:
    """`2026-11-15 12:01:45Z` or `20261115-120245` as an ISO date; anything else is an empty text."""
    digits = re.sub("[^0-9]", "", stamp)
    if len(digits) != 14:
        return ""
    zone = "+00:00" if stamp.endswith("Z") else ""
    day, time = digits[:8], digits[8:]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:]}{zone}"


# --- llama-benchy ---
# Version, model, one entry per point with every value; 0.4.0, seen 2026-11-15:
# https://github.com/eugr/llama-benchy/blob/main/src/llama_benchy/results.py

_BENCHY_NOTES = (
    "by llama-benchy: temperature, thinking and max_num_seqs are not in its file; its text is prose",
    "its prefill subtracts the measured network latency from the time to the first response",
    "its total excludes the time to the first token, which ours includes, and is left out here",
)
_TEST_NAME = re.compile(r"(pp|tg|ctx_pp|ctx_tg)(\d{1,9})?(?: @ d(\d{1,9}))?(?: \(c(\d{1,6})\))?")
"""`pp2048 @ d4096 (c8)`: what the tokens are of, the context before them, and the users at once."""


class _CsvRow(Struct):
    """Lines of the table that belong to one point."""

    prompt_tokens: int = 0
    answer_tokens: int = 0
    decode: float | None = None
    prefill: float | None = None
    ttft_ms: float | None = None


def _read_benchy(documents: list[FileNode]) -> BenchRun:
    document = documents[0]
    is_cached = document["prefix_caching_enabled"].value is True
    rows = [_read_benchy_entry(entry, is_cached) for entry in document["benchmarks"].items(_MAX_ENTRIES)]
    stamp = document["timestamp"].text()
    name = f"llama-benchy-{re.sub('[^0-9]', '', stamp)[:14]}"
    notes = (*_BENCHY_NOTES, f"llama-benchy {document['version'].text()[:20]}")
    return _make_run(name, _parse_stamp(stamp), Subject("", document["model"].text()), rows, notes)


def _read_benchy_entry(entry: FileNode, is_cached: bool) -> PointFigures:
    """One entry; its context is shared if the run cached prefixes, and otherwise a part of the prompt."""
    users, context = entry["concurrency"].count(1), entry["context_size"].count()
    prompt, answer = entry["prompt_size"].count(), entry["response_size"].count()
    if entry["is_context_prefill_phase"].value is True:
        point = _make_point(users, context, answer)
    elif is_cached:
        point = replace(_make_point(users, prompt, answer), shared_tokens=context)
    else:  # the context is another part of the prompt
        point = _make_point(users, prompt + context, answer)

    def values(name: str) -> list[float]:
        metric = entry[name]
        return [] if metric.value is None else metric["values"].numbers()

    ttft_ms = values("e2e_ttft")
    prefill = _average_repetitions(values("pp_req_throughput"), 1) if users == 1 else None
    return PointFigures(
        point=point,
        samples=len(ttft_ms),
        decode_tokens_per_s=_average_repetitions(values("tg_req_throughput"), users),
        prefill_tokens_per_s=prefill,
        ttft_ms=spread(ttft_ms),
        ttft_mean_ms=_average_repetitions(ttft_ms, users),
        repetitions=len(ttft_ms) // users,
    )


def _average_repetitions(values: Sequence[float], users: int) -> MeasuredFigure | None:
    """The mean of each repetition. Values come run by run, and the streams of one run are one observation.
    If one of them failed, the file does not say which."""
    if users > 1 and len(values) % users:
        return None
    return mean_interval([fmean(values[start : start + users]) for start in range(0, len(values), users)])


def _read_benchy_csv(text: str, where: str) -> BenchRun:
    """A table of means: the table does not contain the number of runs, so their spread is unknown."""
    lines = list(csv.DictReader(io.StringIO(text[: 2**20])))
    if len(lines) > _MAX_ENTRIES:
        raise UsageError(f"{where} has more than {_MAX_ENTRIES:,} rows", next="import fewer rows")
    rows: dict[tuple[bool, int, int], _CsvRow] = defaultdict(_CsvRow)
    model = ""
    for number, line in enumerate(lines, 2):
        place = f"{where}:{number}"
        test = _TEST_NAME.fullmatch(line.get("test_name") or "")
        if not test:
            raise UsageError(f"{place} has an unknown test name", next=_UNCHANGED)
        model = model or printable((line.get("model") or "")[:500])
        row = rows[test[1].startswith("ctx"), int(test[3] or 0), int(test[4] or 1)]
        rate, size = _read_cell(line, "t_s_req_mean", place), int(test[2] or 0)
        if test[1].endswith("pp"):
            row.prefill, row.prompt_tokens = rate, size
        else:
            row.decode, row.answer_tokens = rate, size
        if line.get("e2e_ttft_mean"):
            row.ttft_ms = _read_cell(line, "e2e_ttft_mean", place)
    notes = (*_BENCHY_NOTES, "a table of means: the JSON file (--format json) has every value")
    return _make_run(
        "llama-benchy-csv", "", Subject("", model), [_make_csv_figures(*item) for item in rows.items()], notes
    )


def _read_cell(line: Mapping[str, str], name: str, where: str) -> float:
    try:
        return FileNode(float(line.get(name) or ""), f"{where}, {name},").number()
    except ValueError as error:
        raise UsageError(f"{where}, {name}, is not a number", next=_UNCHANGED) from error


def _make_csv_figures(key: tuple[bool, int, int], row: _CsvRow) -> PointFigures:
    is_context, depth, users = key
    return PointFigures(
        point=_make_point(users, depth + (0 if is_context else row.prompt_tokens), row.answer_tokens),
        samples=0,
        decode_tokens_per_s=mean_interval([row.decode] if row.decode is not None else []),
        prefill_tokens_per_s=mean_interval([row.prefill] if row.prefill is not None and users == 1 else []),
        ttft_ms={"mean": row.ttft_ms} if row.ttft_ms is not None else {},
    )


# --- vllm bench ---
# `serve`: one object per run, several lines with --append-result; 0.32.0, seen 2026-11-15:
# https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py
# `latency`: seconds per batch; the file does not contain the batch size. `throughput`: tokens of prompts and
# answers together.

_SERVE_NOTES = (
    "by `vllm bench serve`: thinking, temperature and max_num_seqs are not in its file; since 0.15 the "
    "temperature is the server's own by default",
    "its inter-token figure is of chunks, including the empty last one, and is left out here",
    "tokens are from `usage` if the server sends it in a separate chunk, otherwise by its own tokenizer",
    "its prompts may share a beginning, and a cache may be what was measured: the file does not say",
    "every request counts, also the first: nothing is left out as cold",
    "the file does not say what kind of text it was; it is listed here as prose",
)


def _read_vllm_serve(documents: list[FileNode]) -> BenchRun:
    rows = [_read_serve_run(document) for document in documents]
    stamp, model = documents[0]["date"].text(), documents[0]["model_id"].text()
    others = {document["model_id"].text() for document in documents} - {model}
    notes = (*_SERVE_NOTES, f"also of {', '.join(sorted(others))[:200]}") if others else _SERVE_NOTES
    return _make_run(f"vllm-bench-{stamp[:20]}", _parse_stamp(stamp), Subject("", model), rows, notes)


def _read_serve_run(document: FileNode) -> PointFigures:
    """One run, in which every request counts."""
    done = document["completed"].count()
    failed = document["failed"].count() if document["failed"].value is not None else 0
    tokens_in, tokens_out = document["total_input_tokens"].count(), document["total_output_tokens"].count()
    limit, most = (document[name] for name in ("max_concurrency", "max_concurrent_requests"))
    users = max(1, int(limit.optional_number() or most.optional_number() or 1))
    rate = document["request_rate"]
    is_open = rate.value not in ("inf", None)
    point = Point(
        "open" if is_open else "single" if users == 1 else "sweep",
        "prose",
        users,
        max(1, round(tokens_in / done)) if done else 1,
        max(1, round(tokens_out / done)) if done else 1,
        rate_per_s=rate.number() if is_open else None,
    )
    total = mean_interval([document["output_throughput"].number()]) if done else None
    note = "decode is from `tpot`, the mean of requests: with several users they are not independent"
    return PointFigures(
        point=point,
        samples=done,
        wrong={"http": failed} if failed else {},
        decode_tokens_per_s=_read_serve_decode(document, done),
        total_tokens_per_s=total if users > 1 or is_open else None,
        ttft_ms=_read_percentiles(document, "ttft"),
        time_per_output_token_ms=_read_percentiles(document, "tpot"),
        goodput_per_s=document["request_goodput"].optional_number(),
        ttft_mean_ms=_read_mean_with_std(document, "ttft", done),
        accepted_per_step=document["spec_decode_acceptance_length"].optional_number(),
        notes=(note,) if users > 1 else (),
    )


def _read_percentiles(document: FileNode, name: str) -> dict[str, float]:
    keys = {"p50": "median", "p90": "p90", "p99": "p99", "mean": "mean"}
    found = {ours: document[f"{theirs}_{name}_ms"].optional_number() for ours, theirs in keys.items()}
    return {ours: value for ours, value in found.items() if value is not None}


def _read_mean_with_std(document: FileNode, name: str, n: int) -> MeasuredFigure | None:
    mean = document[f"mean_{name}_ms"].optional_number()
    std = document[f"std_{name}_ms"].optional_number()
    return None if mean is None or std is None else _figure_with_std(mean, std, n)


def _read_serve_decode(document: FileNode, done: int) -> MeasuredFigure | None:
    """The decode speed of every request if the file has them, otherwise from the mean time per token."""
    gaps, lengths = document["itls"], document["output_lens"]
    if gaps.value is not None and lengths.value is not None:
        rates = []
        for own_gaps, length in zip(gaps.items(), lengths.items(), strict=False):
            duration_s, tokens = sum(own_gaps.numbers()), length.count()
            if tokens > 1 and duration_s > 0:
                rates.append((tokens - 1) / duration_s)
        return mean_interval(rates)
    return _rate_of_time(_read_mean_with_std(document, "tpot", done))


def _read_vllm_latency(documents: list[FileNode]) -> BenchRun:
    """Seconds of whole batches; only its command line says of how many prompts and tokens."""
    found = mean_interval(documents[0]["latencies"].numbers())
    text = (
        f"{found.value:.3f} s a batch ({found.low:.3f} to {found.high:.3f}, n {found.n})"
        if found
        else "no batch"
    )
    why = "by `vllm bench latency`, whose file does not contain the number of prompts and tokens"
    return _make_run("vllm-bench-latency", "", Subject("", "not known"), (), (f"{text}; {why}",))


def _read_vllm_throughput(documents: list[FileNode]) -> BenchRun:
    document = documents[0]
    requests, tokens = document["requests_per_second"].number(), document["tokens_per_second"].number()
    text = f"{requests:.2f} requests/s, {tokens:.1f} tok/s of prompts and answers together"
    why = "by `vllm bench throughput`, which does not separate them, so the rate of answers is unknown"
    return _make_run("vllm-bench-throughput", "", Subject("", "not known"), (), (f"{text}; {why}",))


# --- guidellm ---
# `benchmarks.json`: one benchmark per load, with distributions over requests.
# https://github.com/vllm-project/guidellm, 0.8.1, src/guidellm/benchmark/schemas, read 2026-11-16. Its
# `time_per_output_token_ms` includes the first token and `inter_token_latency_ms` does not: decode is from
# the second.

_GUIDELLM_NOTES = (
    "by guidellm: thinking, temperature and max_num_seqs are not read from its file; listed here as prose",
    "tokens are from `usage` where the server sends it; its prompts may share a beginning",
    "intervals are over requests, which are not independent: with several users they are too narrow",
)
_MAX_TIME_S = 4e9
"""Seconds since 1970: the year 2096, so that any time has a date."""
_RATES = ("constant", "poisson")
"""Strategies that send requests at a rate, answered or not."""


class _Successful:
    """A distribution over the requests that succeeded; all zero without any."""

    def __init__(self, metric: FileNode) -> None:
        self._node = metric["successful"]

    @property
    def mean(self) -> float:
        return 0.0 if self._node.value is None else self._node["mean"].number()

    def figure(self) -> MeasuredFigure | None:
        if self._node.value is None or not self.mean:
            return None
        return _figure_with_std(self.mean, self._node["std_dev"].number(), self._node["count"].count())

    def percentiles(self) -> dict[str, Any]:
        if self._node.value is None or not self.mean:
            return {}
        found = {p: self._node["percentiles"][p].optional_number() for p in ("p50", "p90", "p99")}
        return {p: value for p, value in found.items() if value is not None} | {"mean": self.mean}


def _read_guidellm(documents: Sequence[FileNode]) -> BenchRun:
    document = documents[0]
    version = document["metadata"]["guidellm_version"].text()[:20]
    loads = document["benchmarks"].items(_MAX_ENTRIES)
    if not loads:
        raise document["benchmarks"].error("is empty")
    started = loads[0]["start_time"]
    if (seconds := started.optional_number() or 0.0) > _MAX_TIME_S:
        raise started.error("is not a time")
    began = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds else ""
    name = loads[0]["config"]["backend"]["model"].value
    model = name[:500] if isinstance(name, str) and name else "not known"
    rows = [_read_guidellm_load(load) for load in loads]
    notes = (*_GUIDELLM_NOTES, f"guidellm {version}")
    id = f"guidellm-{began[:19].replace(':', '').replace('T', '-') or 'unknown'}"
    return _make_run(id, began, Subject("", model), rows, notes)


def _read_guidellm_load(load: FileNode) -> PointFigures:
    """One benchmark, from the requests that succeeded."""
    metrics = load["metrics"]
    done, failed = (metrics["request_totals"][name].count() for name in ("successful", "errored"))
    ttft, gap = (_Successful(metrics[name]) for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
    prompt, answer = (_Successful(metrics[name]) for name in ("prompt_token_count", "output_token_count"))
    point = _read_guidellm_point(load["config"]["strategy"], metrics, round(prompt.mean), round(answer.mean))
    total = _Successful(metrics["output_tokens_per_second"]).mean
    is_single = point.users == 1 and point.rate_per_s is None
    return PointFigures(
        point=point,
        samples=done,
        wrong={"http": failed} if failed else {},
        decode_tokens_per_s=_rate_of_time(gap.figure()),
        total_tokens_per_s=None if is_single or not total else mean_interval([total]),
        ttft_ms=ttft.percentiles(),
        ttft_mean_ms=ttft.figure(),
    )


def _read_guidellm_point(strategy: FileNode, metrics: FileNode, prompt: int, answer: int) -> Point:
    """The load, from the strategy of the benchmark."""
    kind = strategy["type_"].value
    if kind in _RATES:
        users = strategy["max_concurrency"].optional_number() or 512
        rate = strategy["rate"].number()
        return Point("open", "prose", int(users), max(1, prompt), max(1, answer), rate_per_s=rate or None)
    if kind == "synchronous":
        return _make_point(1, prompt, answer)
    if kind == "concurrent":
        return _make_point(strategy["streams"].count(1), prompt, answer)
    # As many as it could: the mean that were open tells how many these were.
    return _make_point(max(1, round(_Successful(metrics["request_concurrency"]).mean)), prompt, answer)


# --- llama-bench ---
# `llama-bench -o json` or `-o jsonl`: an entry per test, with every repetition.
# https://github.com/ggml-org/llama.cpp/tree/master/tools/llama-bench; a file of build 11434, seen 2026-11-16.

_LLAMA_BENCH_NOTES = (
    "by llama-bench, without a server: no HTTP, no chat template, no sampling; a server is slower",
    "it generates after random tokens, by default after none: compare with short prompts only",
)


def _read_llama_bench(entries: Sequence[FileNode]) -> BenchRun:
    first = entries[0]
    tests = [(entry, entry["n_prompt"].count(), entry["n_gen"].count()) for entry in entries]
    rows = [_read_llama_bench_test(*test) for test in tests if not (test[1] and test[2])]
    notes = list(_LLAMA_BENCH_NOTES)
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
    return _make_run(f"llama-bench-{digits}", began, subject, rows, notes)


def _read_llama_bench_test(entry: FileNode, prompt: int, answer: int) -> PointFigures:
    """Either a prompt is read or an answer is generated, `n_depth` tokens into the context."""
    depth = entry["n_depth"].count() if entry["n_depth"].value is not None else 0
    samples = entry["samples_ts"]
    rates = samples.numbers() if samples.value is not None else [entry["avg_ts"].number()]
    figure = mean_interval([rate for rate in rates if rate > 0])
    if answer:
        point = _make_point(1, depth, answer)
        return PointFigures(point, len(rates), decode_tokens_per_s=figure, repetitions=len(rates))
    point = replace(_make_point(1, prompt, 1), shared_tokens=depth)
    return PointFigures(point, len(rates), prefill_tokens_per_s=figure, repetitions=len(rates))


# --- which tool wrote a file ---

_READERS: tuple[tuple[frozenset[str], Callable[[list[FileNode]], BenchRun]], ...] = (
    (frozenset({"benchmarks", "latency_mode", "version"}), _read_benchy),
    (frozenset({"model_id", "completed", "total_output_tokens"}), _read_vllm_serve),
    (frozenset({"avg_latency", "latencies"}), _read_vllm_latency),
    (frozenset({"metadata", "benchmarks"}), _read_guidellm),
    (frozenset({"model_filename", "n_prompt", "n_gen", "avg_ts"}), _read_llama_bench),
    (frozenset({"tokens_per_second", "requests_per_second"}), _read_vllm_throughput),
)
"""Keys that only files of one tool have together, and what reads such a file; the first that fits counts."""
