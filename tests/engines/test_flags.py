"""Arguments as people type them, per engine."""

from __future__ import annotations

import shlex

import pytest

from firesteel.engines.engine import parse_argv
from firesteel.launch import EngineName, FlagValue


def flags(engine: EngineName, line: str) -> dict[str, FlagValue]:
    return dict(parse_argv(engine, shlex.split(line), contained=True).flags)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("m --max_model_len 4096", {"max-model-len": "4096"}),
        ("m --max-model-len=4096 -tp 2", {"max-model-len": "4096", "tensor-parallel-size": "2"}),
        ("m -tp=2 -pp 1", {"tensor-parallel-size": "2", "pipeline-parallel-size": "1"}),
        ("m -O3", {"optimization-level": "3"}),
        ("m -O 2", {"optimization-level": "2"}),
        ("m --no-enable-prefix-caching", {"enable-prefix-caching": False}),
        ("--trust-remote-code m", {"trust-remote-code": True}),
        ("m --seed -1 --x -0.5", {"seed": "-1", "x": "-0.5"}),
        ("m --seed 1 --seed 2", {"seed": "2"}),
        ('m --speculative-config \'{"method": "mtp"}\'', {"speculative-config": {"method": "mtp"}}),
        ("m -sc.method mtp", {"speculative-config": {"method": "mtp"}}),
        ("m --compilation-config.mode 0", {"compilation-config": {"mode": 0}}),
        (
            "m -cc '{\"mode\":3}' --compilation-config.pass_config.x=true -cc.ops+ a -cc.ops+ b,c",
            {"compilation-config": {"mode": 3, "pass_config": {"x": True}, "ops": ["a", "b", "c"]}},
        ),
        ("m --hf-overrides {not-json}", {"hf-overrides": "{not-json}"}),
        ("m --served-model-name a b --seed 1", {"served-model-name": ["a", "b"], "seed": "1"}),
        ("m --kv-cache-memory 4G", {"kv-cache-memory-bytes": "4G"}),
        ("m --api-key=", {"api-key": ""}),
        ("m --gpu-mem 0.97", {"gpu-memory-utilization": "0.97"}),
        ("m --gpu_memory_util=0.95", {"gpu-memory-utilization": "0.95"}),
        ("m --device-mem 0.9", {"gpu-memory-utilization": "0.9"}),
        ("m --speculative.method mtp", {"speculative-config": {"method": "mtp"}}),
        ("m --no-enable-prefix-c", {"enable-prefix-caching": False}),
        ("m --speculative-conf.method mtp", {"speculative-config": {"method": "mtp"}}),
        ("m --max-num 4", {"max-num": "4"}),  # `max-num-seqs`, `max-num-batched-tokens`: argparse refuses it
        ("--enable-return-routed-experts m", {"enable-return-routed-experts": True}),
        ("--trust-remote --numa-bind m", {"trust-remote-code": True, "numa-bind": True}),
        ("--fully-sharded-loras -dph m", {"fully-sharded-loras": True, "data-parallel-hybrid-lb": True}),
        ("m --unknown-switch", {"unknown-switch": True}),
        ("m --port $PORT", {"port": "$PORT"}),
        ("m --port 99999", {"port": "99999"}),
        ("m --host 127.0.0.1", {"host": "127.0.0.1"}),
        ("m --host 0.0.0.0", {}),
    ],
)
def test_vllm(line: str, expected: dict[str, FlagValue]) -> None:
    assert flags("vllm", line) == expected
    assert parse_argv("vllm", shlex.split(line)).model == "m"


def test_vllm_model_port_and_the_rest() -> None:
    parsed = parse_argv("vllm", shlex.split("--model m --port 9 --served-model-name chat extra"))
    # `served-model-name` takes every argument up to the next flag, as argparse does
    assert (parsed.model, parsed.port, parsed.name) == ("m", 9, None)
    assert parsed.flags == {"served-model-name": ["chat", "extra"]}
    parsed = parse_argv("vllm", shlex.split("serve m --seed 1 -- --x"))
    assert (parsed.model, parsed.extra) == ("serve", ("m", "--x"))
    parsed = parse_argv("vllm", shlex.split("m --trust-remote-code true --seed 1"))
    assert (parsed.extra, parsed.starts) == (("true",), {"model": 0, "trust-remote-code": 1, "seed": 3})


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("-c 4096 -ngl 99 -np 2", {"ctx-size": "4096", "n-gpu-layers": "99", "parallel": "2"}),
        ("-fa", {"flash-attn": True}),
        ("-fa -ngl all", {"flash-attn": True, "n-gpu-layers": "all"}),
        ("-fa on --jinja", {"flash-attn": "on", "jinja": True}),
        ("--no-mmap --mlock", {"mmap": False, "mlock": True}),
        ("--no-host", {"no-host": True}),
        ("-nkvo -no-kvu", {"kv-offload": False, "kv-unified": False}),
        ("--parallel -1", {"parallel": "-1"}),
        ("--draft 16", {"draft-max": "16"}),
        ("-hff f.gguf", {"hf-file": "f.gguf"}),
    ],
)
def test_llamacpp(line: str, expected: dict[str, FlagValue]) -> None:
    assert flags("llamacpp", line) == expected


def test_llamacpp_models() -> None:
    assert parse_argv("llamacpp", ["-m", "/a.gguf"]).model == "/a.gguf"
    assert parse_argv("llamacpp", ["-hf", "org/repo:Q8_0"]).model == "org/repo:Q8_0"
    assert parse_argv("llamacpp", ["-a", "chat"]).name == "chat"


def test_llamacpp_has_no_equals_sign() -> None:
    assert parse_argv("llamacpp", ["--ctx-size=4096"]).extra == ("--ctx-size=4096",)


def test_sglang() -> None:
    parsed = parse_argv("sglang", shlex.split("--model m --tp 2 --cuda-graph-bs 1 2 4 --enable-metrics"))
    assert parsed.model == "m"
    assert parsed.flags == {
        "tensor-parallel-size": "2",
        "cuda-graph-bs": ["1", "2", "4"],
        "enable-metrics": True,
    }


def test_abbreviated_flags() -> None:
    assert flags("sglang", "--mem-frac 0.95") == {"mem-fraction-static": "0.95"}
    assert flags("llamacpp", "--ctx 4096") == {"ctx": "4096"}  # llama.cpp takes no abbreviations
