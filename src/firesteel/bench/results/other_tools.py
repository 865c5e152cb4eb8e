"""Result files of other tools as runs: llama-benchy (JSON, CSV) and vLLM's own `bench`. Pure.

What a file does not say stays unknown, and what it says in another meaning than ours is left out rather than
put beside ours: each run carries in its notes what a reader must know of the tool that made it.

    llama-benchy         version, model, one entry a point with every value; 0.4.0 read
                         https://github.com/eugr/llama-benchy/blob/main/src/llama_benchy/results.py
    vllm bench serve     one object a run, several lines with --append-result; 0.32.0 read
                         https://github.com/vllm-project/vllm/blob/main/vllm/benchmarks/serve.py
    vllm bench latency   seconds of batches whose size the file does not tell
    vllm bench throughput  tokens of prompts and answers together
All seen 2026-11-15.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import fmean
from typing import Any

from firesteel.bench.compare.stats import mean_interval, percentile, student_quantile
from firesteel.bench.results import serialize
from firesteel.bench.results.serialize import StoredRun
from firesteel.bench.values import BenchRun, MeasuredFigure, Point, PointFigures, RequestSettings, Subject
from firesteel.errors import UsageError
from firesteel.printable import printable

MAX_ENTRIES = 10_000
MAX_VALUES = 200_000
_MOST = 1e12
_BENCHY = (
    "by llama-benchy: temperature, thinking and max_num_seqs are not in its file; its text is prose",
    "its prefill takes the measured latency of the network off the time to the first response",
    "its total leaves out the time to the first token, which ours has in it, and is left out here",
)
_SERVE = (
    "by `vllm bench serve`: thinking, temperature and max_num_seqs are not in its file; since 0.15 the "
    "temperature is the server's own unless it is told",
    "its inter-token figure is of chunks, with the empty last one among them, and is left out here",
    "tokens are from `usage` where the server sends that in a chunk of its own, else by its own tokenizer",
    "its prompts may share a beginning, and then a cache is what was measured: the file does not tell",
    "every request counts, the first too: nothing is left out as cold",
    "what kind of text it was the file does not say; it stands here as prose",
)


@dataclass(frozen=True, slots=True)
class _Place:
    """A value somewhere in a file; what is not as it should be is a sentence with the place."""

    said: Any
    where: str

    def __getitem__(self, key: str) -> _Place:
        if not isinstance(self.said, Mapping):
            raise self.wrong("is no object")
        return _Place(self.said.get(key), f"{self.where}.{key}")

    def wrong(self, what: str) -> UsageError:
        return UsageError(f"{self.where} {what}", next="the file as the tool wrote it")

    def number(self) -> float:
        value = self.said
        is_one = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_one or not 0 <= value < _MOST:
            raise self.wrong("is no number of 0 or more")
        return float(value)

    def maybe(self) -> float | None:
        return None if self.said is None else self.number()

    def count(self, least: int = 0) -> int:
        value = self.number()
        if value != int(value) or not least <= value <= 2**31:
            raise self.wrong(f"is no whole number of {least} or more")
        return int(value)

    def text(self) -> str:
        if not isinstance(self.said, str) or len(self.said) > 500:
            raise self.wrong("is no text")
        return self.said

    def each(self, most: int = MAX_VALUES) -> list[_Place]:
        if not isinstance(self.said, list) or len(self.said) > most:
            raise self.wrong(f"is no list of at most {most:,}")
        return [_Place(value, f"{self.where}[{at}]") for at, value in enumerate(self.said)]


def read(text: str, where: str) -> StoredRun:
    """A run of any tool whose files are known, ours among them; it is `reported`."""
    if text.lstrip()[:1] not in ("{", "["):
        if text.lstrip().startswith("model,test_name,"):
            return _kept(_benchy_csv(text, where), where)
        raise _not_known(where)
    documents = _documents(text, where)
    if serialize.is_document(documents[0].said):
        return serialize.from_document(documents[0].said, where)
    for is_its, reader in _READERS:
        if isinstance(documents[0].said, Mapping) and is_its <= documents[0].said.keys():
            return _kept(reader(documents), where)
    raise _not_known(where)


def _not_known(where: str) -> UsageError:
    return UsageError(
        f"{where} is no result of firesteel, llama-benchy (--format json or csv) or `vllm bench`",
        next="firesteel history export RUN, for one of ours",
    )


def _kept(run: BenchRun, where: str) -> StoredRun:
    return StoredRun(run, origin="reported", source=printable(where))


def _documents(text: str, where: str) -> list[_Place]:
    """One JSON text, or one a line, as `--append-result` leaves them."""
    try:
        return [_Place(serialize.parsed(text), where)]
    except (ValueError, RecursionError):
        lines = [line for line in text.splitlines() if line.strip()]
        if not 1 < len(lines) <= MAX_ENTRIES or not all(line.startswith("{") for line in lines):
            return [_Place(serialize.loaded(text, where), where)]
    return [
        _Place(serialize.loaded(line, f"{where}:{at}"), f"{where}:{at}") for at, line in enumerate(lines, 1)
    ]


def _run(name: str, began: str, model: str, rows: Sequence[PointFigures], notes: Sequence[str]) -> BenchRun:
    return BenchRun(
        id=name,
        began=began,
        subject=Subject("", model),
        settings=RequestSettings(temperature=None),
        points=tuple(row.point for row in rows),
        figures=tuple(rows),
        is_whole=True,
        notes=tuple(notes),
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {**{f"p{share}": percentile(values, share) for share in (50, 90, 99)}, "mean": fmean(values)}


# --- llama-benchy ---


def _benchy(documents: list[_Place]) -> BenchRun:
    whole = documents[0]
    is_cached = whole["prefix_caching_enabled"].said is True
    rows = [_benchy_row(each, is_cached) for each in whole["benchmarks"].each(MAX_ENTRIES)]
    name = f"llama-benchy-{re.sub('[^0-9]', '', whole['timestamp'].text())[:14]}"
    notes = (*_BENCHY, f"llama-benchy {whole['version'].text()[:20]}")
    return _run(name, _iso(whole["timestamp"].text()), whole["model"].text(), rows, notes)


def _iso(stamp: str) -> str:
    """`2026-11-15 12:01:45Z`, `20261115-120245`; empty for anything else."""
    digits = re.sub("[^0-9]", "", stamp)
    if len(digits) != 14:
        return ""
    zone = "+00:00" if stamp.endswith("Z") else ""
    day, time = digits[:8], digits[8:]
    return f"{day[:4]}-{day[4:6]}-{day[6:]}T{time[:2]}:{time[2:4]}:{time[4:]}{zone}"


def _benchy_row(entry: _Place, is_cached: bool) -> PointFigures:
    users, context = entry["concurrency"].count(1), entry["context_size"].count()
    prompt, answer = entry["prompt_size"].count(), entry["response_size"].count()
    if entry["is_context_prefill_phase"].said is True:
        point = _point(users, max(1, context), answer)
    elif is_cached:
        point = replace(_point(users, max(1, prompt), answer), shared_tokens=context)
    else:  # the context is another part of the prompt
        point = _point(users, max(1, prompt + context), answer)
    first = _values(entry["e2e_ttft"])
    return PointFigures(
        point=point,
        samples=len(first),
        decode_tokens_per_s=_over_visits(_values(entry["tg_req_throughput"]), users),
        prefill_tokens_per_s=_over_visits(_values(entry["pp_req_throughput"]), 1) if users == 1 else None,
        ttft_ms=_spread(first),
        ttft_mean_ms=_over_visits(first, users),
        repetitions=len(first) // users,
    )


def _point(users: int, prompt: int, answer: int) -> Point:
    return Point("single" if users == 1 else "sweep", "prose", users, prompt, max(1, answer))


def _values(metric: _Place) -> list[float]:
    return [] if metric.said is None else [each.number() for each in metric["values"].each()]


def _over_visits(values: Sequence[float], users: int) -> MeasuredFigure | None:
    """They come run by run; streams of one run are one observation. Where one failed it is not told which."""
    if users > 1 and len(values) % users:
        return None
    return mean_interval([fmean(values[at : at + users]) for at in range(0, len(values), users)])


_TEST = re.compile(r"(pp|tg|ctx_pp|ctx_tg)(\d{1,9})?(?: @ d(\d{1,9}))?(?: \(c(\d{1,6})\))?")


def _benchy_csv(text: str, where: str) -> BenchRun:
    """Means only: the table does not say of how many runs, so nothing is known of their spread."""
    lines = list(csv.DictReader(io.StringIO(text[: 2**20])))
    if len(lines) > MAX_ENTRIES:
        raise UsageError(f"{where} has more than {MAX_ENTRIES:,} rows", next="fewer of them")
    found: dict[tuple[bool, int, int], dict[str, float]] = defaultdict(dict)
    sizes: dict[tuple[bool, int, int], dict[str, int]] = defaultdict(dict)
    model = ""
    for at, line in enumerate(lines, 2):
        named = _TEST.fullmatch(line.get("test_name") or "")
        if not named:
            raise UsageError(f"{where}:{at} has no test that is known", next="the file as the tool wrote it")
        model = model or printable((line.get("model") or "")[:500])
        key = (named[1].startswith("ctx"), int(named[3] or 0), int(named[4] or 1))
        kind = named[1][-2:]
        sizes[key][kind] = int(named[2] or 0)
        found[key][kind] = _cell(line, "t_s_req_mean", f"{where}:{at}")
        if line.get("e2e_ttft_mean"):
            found[key]["ttft"] = _cell(line, "e2e_ttft_mean", f"{where}:{at}")
    rows = [_csv_row(key, sizes[key], told) for key, told in found.items()]
    notes = (*_BENCHY, "a table of means: the JSON file (--format json) has every value")
    return _run("llama-benchy-csv", "", model, rows, notes)


def _cell(line: Mapping[str, str], name: str, where: str) -> float:
    try:
        return _Place(float(line.get(name) or ""), f"{where}, {name},").number()
    except ValueError as error:
        raise UsageError(f"{where}, {name}, is no number", next="the file as the tool wrote it") from error


def _csv_row(key: tuple[bool, int, int], sizes: Mapping[str, int], told: Mapping[str, float]) -> PointFigures:
    is_context, depth, users = key
    prompt = depth if is_context else depth + sizes.get("pp", 0)
    return PointFigures(
        point=_point(users, max(1, prompt), sizes.get("tg", 0)),
        samples=0,
        decode_tokens_per_s=mean_interval([told["tg"]]) if "tg" in told else None,
        prefill_tokens_per_s=mean_interval([told["pp"]]) if "pp" in told and users == 1 else None,
        ttft_ms={"mean": told["ttft"]} if "ttft" in told else {},
    )


# --- vllm bench ---


def _serve(documents: list[_Place]) -> BenchRun:
    rows = [_serve_row(each) for each in documents]
    first = documents[0]
    stamp = first["date"].text()
    run = _run(f"vllm-bench-{stamp[:20]}", _iso(stamp), first["model_id"].text(), rows, _SERVE)
    others = {each["model_id"].text() for each in documents} - {run.subject.model}
    return replace(run, notes=(*run.notes, f"also of {', '.join(sorted(others))[:200]}")) if others else run


def _serve_row(said: _Place) -> PointFigures:
    done = said["completed"].count()
    failed = said["failed"].count() if said["failed"].said is not None else 0
    tokens_in, tokens_out = said["total_input_tokens"].count(), said["total_output_tokens"].count()
    at_once = said["max_concurrency"].maybe() or said["max_concurrent_requests"].maybe() or 1
    rate = said["request_rate"]
    point = Point(
        "open" if rate.said not in ("inf", None) else "single" if at_once == 1 else "sweep",
        "prose",
        max(1, int(at_once)),
        max(1, round(tokens_in / done)) if done else 1,
        max(1, round(tokens_out / done)) if done else 1,
        rate_per_s=None if rate.said in ("inf", None) else rate.number(),
    )
    total = mean_interval([said["output_throughput"].number()]) if done else None
    return PointFigures(
        point=point,
        samples=done,
        wrong={"http": failed} if failed else {},
        decode_tokens_per_s=_serve_decode(said, done),
        total_tokens_per_s=total if point.users > 1 or point.rate_per_s is not None else None,
        prefill_tokens_per_s=None,
        ttft_ms=_told(said, "ttft"),
        time_per_output_token_ms=_told(said, "tpot"),
        goodput_per_s=said["request_goodput"].maybe(),
        ttft_mean_ms=_from_std(said, "ttft", done),
        accepted_per_step=said["spec_decode_acceptance_length"].maybe(),
        notes=(
            "of `tpot`, the mean of requests: with several users at once they are not apart from each other",
        )
        if point.users > 1
        else (),
    )


def _told(said: _Place, name: str) -> dict[str, float]:
    keys = {"p50": "median", "p90": "p90", "p99": "p99", "mean": "mean"}
    found = {ours: said[f"{theirs}_{name}_ms"].maybe() for ours, theirs in keys.items()}
    return {ours: value for ours, value in found.items() if value is not None}


def _from_std(said: _Place, name: str, n: int) -> MeasuredFigure | None:
    mean, std = said[f"mean_{name}_ms"].maybe(), said[f"std_{name}_ms"].maybe()
    if mean is None or std is None or not n:
        return None
    if n == 1:
        return mean_interval([mean])
    off = student_quantile(0.975, n - 1) * std / sqrt(n - 1)  # numpy's std is of all, not of a sample
    return MeasuredFigure(mean, max(0.0, mean - off), mean + off, n)


def _serve_decode(said: _Place, done: int) -> MeasuredFigure | None:
    """From every request where the file has them, else from the mean time of a token."""
    if said["itls"].said is not None and said["output_lens"].said is not None:
        return mean_interval(list(_rates(said)))
    took = _from_std(said, "tpot", done)
    if took is None or not took.value:
        return None
    fastest = 1000 / took.low if took.low else 2000 / took.value
    return MeasuredFigure(1000 / took.value, 1000 / took.high, fastest, took.n)


def _rates(said: _Place) -> Iterator[float]:
    for gaps, made in zip(said["itls"].each(), said["output_lens"].each(), strict=False):
        took = sum(each.number() for each in gaps.each())
        if made.count() > 1 and took > 0:
            yield (made.count() - 1) / took


def _latency(documents: list[_Place]) -> BenchRun:
    """Seconds of whole batches; of how many prompts and tokens only its command line tells."""
    values = [each.number() for each in documents[0]["latencies"].each()]
    took = mean_interval(values)
    words = (
        f"{took.value:.3f} s a batch ({took.low:.3f} to {took.high:.3f}, n {took.n})" if took else "no batch"
    )
    why = "by `vllm bench latency`, whose file does not say of how many prompts and tokens"
    return _run("vllm-bench-latency", "", "not known", (), (f"{words}; {why}",))


def _throughput(documents: list[_Place]) -> BenchRun:
    told = documents[0]
    requests, tokens = told["requests_per_second"].number(), told["tokens_per_second"].number()
    words = f"{requests:.2f} requests/s, {tokens:.1f} tok/s of prompts and answers together"
    why = "by `vllm bench throughput`, which does not tell them apart: no rate of answers can be had from it"
    return _run("vllm-bench-throughput", "", "not known", (), (f"{words}; {why}",))


_READERS: tuple[tuple[frozenset[str], Callable[[list[_Place]], BenchRun]], ...] = (
    (frozenset({"benchmarks", "latency_mode", "version"}), _benchy),
    (frozenset({"model_id", "completed", "total_output_tokens"}), _serve),
    (frozenset({"avg_latency", "latencies"}), _latency),
    (frozenset({"tokens_per_second", "requests_per_second"}), _throughput),
)
