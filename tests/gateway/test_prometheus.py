"""The page that Prometheus reads. Oracle: `prometheus_client`, its writer for engines and its parser."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter as Count
from collections.abc import Iterable, Mapping
from pathlib import Path

import prometheus_client
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from firesteel.gateway.admin import prometheus
from firesteel.gateway.admin.prometheus import MetricFamily, MetricSample


def page(families: Iterable[MetricFamily]) -> bytes:
    return asyncio.run(prometheus.render(families))


def merge(own: bytes, engines: Mapping[str, str]) -> bytes:
    return asyncio.run(prometheus.merge(own, engines))


Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: bytes) -> Series:
    """By the oracle. NaN is no number, and equals nothing: it is told as -1."""
    found: Series = {}
    for family in text_string_to_metric_families(text.decode()):
        for each in family.samples:
            key = each.name, tuple(sorted(each.labels.items()))
            assert key not in found, f"told twice: {key}"
            found[key] = -1.0 if each.value != each.value else each.value
    return found


def sound(text: bytes) -> Series:
    """What readers that are stricter than the oracle insist on too."""
    lines = text.decode().split("\n")
    assert lines[-1] == ""
    heads = Count(
        line.split(" ")[1:3][0] + line.split(" ")[2] for line in lines if re.match("# (TYPE|HELP) ", line)
    )
    assert not [head for head, count in heads.items() if count > 1], "TYPE and HELP once"
    current, owners = "", dict[str, str]()
    for line in lines[:-1]:
        if line.startswith("# TYPE "):
            current = line.split(" ")[2]
        elif not line.startswith("#"):
            name = re.split("[{ ]", line)[0]
            assert re.fullmatch("(_bucket|_sum|_count)?", name.removeprefix(current)), (name, current)
            assert owners.setdefault(name, current) == current, "one family a name"
    return read(text)


def vllm_like() -> str:
    """As vLLM's own page is made, by the same writer."""
    registry = prometheus_client.CollectorRegistry()
    waits = prometheus_client.Histogram(
        "vllm:e2e_request_latency_seconds", "latency\nin s \\ real", ["model_name"], registry=registry
    )
    waits.labels('org/m "quoted" \\ {x="y"}, \n z').observe(0.3)
    prometheus_client.Counter("vllm:prompt_tokens", "prompts", ["engine"], registry=registry).labels("0").inc(
        7
    )
    prometheus_client.Gauge("vllm:kv_cache_usage_perc", "share", registry=registry).set(float("nan"))
    prometheus_client.Summary("rpc_seconds", "of python", registry=registry).observe(1)
    return prometheus_client.generate_latest(registry).decode()


def test_ours() -> None:
    hard = 'a"b\\c\nd{e="f"},'
    text = page(
        [
            MetricFamily("x_total", "counter", "all \\ of\nthem", [MetricSample("", (("model", hard),), 3)]),
            MetricFamily(
                "y", "gauge", "", [MetricSample("", (), 1.5), MetricSample("", (("a", ""),), float("inf"))]
            ),
            MetricFamily("none", "gauge", "nothing yet", []),
        ]
    )
    assert sound(text) == {
        ("x_total", (("model", hard),)): 3,
        ("y", ()): 1.5,
        ("y", (("a", ""),)): float("inf"),
    }


def test_an_engines_page_gets_its_model_and_loses_nothing() -> None:
    text = vllm_like()
    merged = sound(merge(b"", {"coder": text}))
    wanted = {
        (name, tuple(sorted((*labels, ("model", "coder"))))): value
        for (name, labels), value in read(text.encode()).items()
    }
    assert merged == wanted and len(wanted) > 20


def test_helps_and_types_come_along() -> None:
    before = {
        each.name: (each.type, each.documentation) for each in text_string_to_metric_families(vllm_like())
    }
    after = text_string_to_metric_families(merge(b"", {"a": vllm_like(), "b": vllm_like()}).decode())
    assert {each.name: (each.type, each.documentation) for each in after} == before


def test_two_engines_are_one_family_with_all_samples() -> None:
    own = page([MetricFamily("firesteel_x", "gauge", "ours", [MetricSample("", (), 1)])])
    one, both = sound(merge(own, {"a": vllm_like()})), sound(merge(own, {"a": vllm_like(), "b": vllm_like()}))
    assert len(both) - 1 == 2 * (len(one) - 1)
    assert merge(own, {"a": vllm_like()}).startswith(own)


def test_a_label_of_the_engines_own_is_kept_by_another_name() -> None:
    merged = sound(merge(b"", {"coder": 'x{model="org/m"} 1\n'}))
    assert merged == {("x", (("exported_model", "org/m"), ("model", "coder"))): 1}
    both = merge(b"", {"coder": 'x{model="a",exported_model="b"} 1\ny 2\n'})
    assert sound(both) == {("y", (("model", "coder"),)): 2}


LLAMA_CPP = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 34
# HELP llamacpp:predicted_tokens_seconds Average generation throughput in tokens/s.
# TYPE llamacpp:predicted_tokens_seconds gauge
llamacpp:predicted_tokens_seconds nan
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1 1731628800000
"""


def test_llama_cpp_says_nan_as_cpp_does() -> None:
    merged = merge(b"", {"s": LLAMA_CPP})
    assert b'llamacpp:predicted_tokens_seconds{model="s"} NaN\n' in merged
    assert b'llamacpp:requests_processing{model="s"} 1 1731628800000\n' in merged
    assert len(sound(merged)) == 3


@pytest.mark.parametrize("name", ["logs/vllm-0.32.0-cpu-metrics.txt", "metrics/llamacpp-11549.txt"])
def test_pages_that_real_engines_wrote(name: str) -> None:
    text = (Path(__file__).parent.parent / "engines" / name).read_text()
    merged = merge(b"", {"coder": text})
    wanted = {
        (series, tuple(sorted((*labels, ("model", "coder"))))): value
        for (series, labels), value in read(text.encode()).items()
    }
    assert sound(merged) == wanted and b"left out" not in merged


HOSTILE = {
    "no metrics": "<html><body>502 Bad Gateway</body></html>",
    "ours": "# TYPE firesteel_requests_total counter\nfiresteel_requests_total 9e9\n",
    "half a label": 'x{a="b 1\n',
    "bad escape": 'x{a="\\q"} 1\n',
    "label twice": 'x{a="1",a="2"} 1\n',
    "name of the page itself": 'x{__name__="y"} 1\n',
    "brace in brace": "x{{a}} 1\n",
    "no value": "x\n",
    "no blank before the value": "x0\n",
    "words": "x one\n",
    "hex": "x 0x10\n",
    "underscore": "x 1_000\n",
    "two values": "x 1 2 3\n",
    "a type that is none": "# TYPE x spaceship\nx 1 x\n",
    "types at odds": "# TYPE x counter\n# TYPE x gauge\nx a\n",
    "told twice": "x 1\nx 2\n",
    "type after sample": "x_bucket 1\n# TYPE x histogram\nx_sum 1\n",
    "bucket without bound": "# TYPE x histogram\nx_bucket 1\n",
    "bucket with no number": '# TYPE x histogram\nx_bucket{le="much"} 1\n',
    "histogram itself": "# TYPE x histogram\nx 1\n",
    "quantile": "# TYPE x summary\nx 1\n",
    "carriage returns": "x 1\ry 2\rz 3\r\n",
    "line separators": "x 1\u2028y 2\x85z 3\x0bq 4\n",
    "nul": "x\x00 1\n",
    "digits of others": "x \u0661\n",
    "long name": "x" * 5000 + " 1\n",
    "openmetrics": '# TYPE x unknown\n# UNIT x s\nx_total{a="b"} 1 # {trace="1"} 0.5\n# EOF\n',
    "quoted name": '{"x.y", a="b"} 1\n',
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_page_gives_a_comment_and_breaks_nothing(text: str) -> None:
    own = page([MetricFamily("firesteel_requests_total", "counter", "ours", [MetricSample("", (), 1)])])
    merged = merge(own, {"bad": text, "good": "y 5\n"})
    found = sound(merged)
    assert found["firesteel_requests_total", ()] == 1
    assert found["y", (("model", "good"),)] == 5
    assert b"# firesteel left out of the page of bad: " in merged


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("# TYPE x counter\nx 1\n", "# TYPE x gauge\nx 2\n"),
        ('# TYPE x histogram\nx_bucket{le="1"} 1\nx_count 1\n', "# TYPE x_count gauge\nx_count 5\n"),
        ("# TYPE x_count gauge\nx_count 5\n", '# TYPE x histogram\nx_bucket{le="1"} 1\nx_count 1\n'),
        ("x 1\n", "# TYPE x counter\nx 2\n"),
    ],
)
def test_engines_that_contradict_one_another(first: str, second: str) -> None:
    found = sound(merge(b"", {"a": first, "b": second}))
    assert {dict(labels)["model"] for _, labels in found} == {"a"}, "whoever said it first"


def test_a_help_with_a_stray_backslash_is_escaped_anew() -> None:
    merged = merge(b"", {"a": "# HELP x 50\\% of C:\\new\\\\old\n# TYPE x gauge\nx 1\n"})
    assert b"# HELP x 50\\\\% of C:\\new\\\\old\n" in merged
    sound(merged)


@pytest.mark.parametrize("most", range(10_000, 10_016))
def test_a_page_without_end_is_cut(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(prometheus, "MAX_ENGINE_CHARS", most)
    endless = "".join(f'x{{n="{at}"}} {at}\n' for at in range(10_000))
    merged = merge(b"", {"a": endless})
    assert len(merged) < 40_000 and b"beyond its limit" in merged
    values = sound(merged)
    assert list(values.values()) == list(range(len(values))), "no half line is a number"


def test_samples_without_end_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prometheus, "MAX_ENGINE_SAMPLES", 50)
    monkeypatch.setattr(prometheus, "MAX_SAMPLES", 120)
    many = "".join(f"x{at} 1\n" for at in range(1000))
    merged = merge(b"", {"a": many, "b": many, "c": many})
    assert len(sound(merged)) == 120 and merged.count(b"beyond its limit") == 3


@pytest.mark.parametrize(
    "text", ["x{" + '"' * 200_000, 'x{a="' + "\\" * 200_001, "x{" + 'a="b",' * 50_000, "{" * 10**6]
)
def test_one_line_without_end_takes_no_time(text: str) -> None:
    """Seen to matter: a pattern that tries again from every quote would not end."""
    assert sound(merge(b"", {"a": text})) in ({}, {("x", (("model", "a"),)): 1})


PIECES = st.sampled_from(
    ["# TYPE ", "# HELP ", "x", "y_bucket", "y", "_sum", " histogram", " counter", "{", "}", 'a="b"',
     'le="1"', ",", " ", "1", "NaN", "\n", "\n", "\\", '"', "model=", "\t", "#", "firesteel_", "\r", "é",
     "\ud800"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=60).map("".join), st.lists(PIECES, max_size=60).map("".join))
@example('# TYPE y histogram\ny_bucket{le="1"} 1\n', "# TYPE y_bucket counter\ny_bucket 1\n")
def test_no_text_breaks_the_page(one: str, other: str) -> None:
    sound(merge(b"# TYPE firesteel_x counter\nfiresteel_x 1\n", {"a": one, 'b"\n': other}))


@given(st.text(max_size=300))
def test_no_text_at_all_breaks_the_page(text: str) -> None:
    sound(merge(b"", {"a": text}))


def test_names_of_models_are_labels_and_nothing_else() -> None:
    """The file allows no such name; should it ever, the page stands."""
    merged = sound(merge(b"", {'a"} 1\nevil{x="': "x 1\nbroken line\n"}))
    assert json.dumps([name for name, _ in merged]) == '["x"]'
