"""Which files are needed: tables of what repositories hold, after the ones that people serve."""

from __future__ import annotations

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.edge.hub.files import HubFile
from firesteel.errors import FiresteelError, UsageError
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask, EngineName
from firesteel.planner.propose import propose
from firesteel.run.weights import WeightsNeed, packages, parse_name, select_files, weights_needed

MODEL = "config.json tokenizer.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors"
INDEX = f"{MODEL} model.safetensors.index.json"


def files(names: str) -> list[HubFile]:
    return [HubFile(name, 1 + place, f"{place:040x}") for place, name in enumerate(names.split())]


def chosen(names: str, need: WeightsNeed) -> set[str]:
    return {file.path for file in select_files(files(names), need)}


def need(
    engine: EngineName | None = "vllm", label: str | None = None, load_format: str = "auto"
) -> WeightsNeed:
    return WeightsNeed("o/n", engine, label=label, load_format=load_format)


@pytest.mark.parametrize(
    ("beside", "selected"),
    [
        ("pytorch_model.bin consolidated.00.pth tf_model.h5 flax_model.msgpack", ""),
        ("original/model.safetensors metal/model.bin onnx/model.onnx", ""),
        ("n-Q4_K_M.gguf bench.png .gitattributes training_args.bin", ""),
        ("chat_template.jinja modeling_x.py", "chat_template.jinja modeling_x.py"),
        ("assistant/model.safetensors", "assistant/model.safetensors"),
    ],
)
def test_the_same_weights_are_not_fetched_twice(beside: str, selected: str) -> None:
    assert chosen(f"{INDEX} {beside}", need()) == set(f"{INDEX} {selected}".split())


def test_bin_files_if_there_are_no_others() -> None:
    found = chosen("config.json pytorch_model.bin optimizer.bin tf_model.h5", need())
    assert found == {"config.json", "pytorch_model.bin"}


@pytest.mark.parametrize(
    ("engine", "load_format", "has"),
    [
        ("vllm", "mistral", "consolidated"),
        ("vllm", "safetensors", "model"),
        ("sglang", "auto", "model"),
        ("vllm", "auto", "consolidated model"),
    ],
)
def test_mistral_holds_its_weights_twice(engine: EngineName, load_format: str, has: str) -> None:
    names = f"{INDEX} params.json consolidated-00001.safetensors consolidated.safetensors.index.json"
    found = chosen(names, need(engine, load_format=load_format))
    weights = {path.partition("-")[0] for path in found if path.endswith(".safetensors")}
    assert weights == set(has.split()) and "params.json" in found


GGUFS = (
    "README.md n-Q3_K_M.gguf n-Q4_K_M.gguf n-Q8_0.gguf UD-Q4_K_XL/n-UD-Q4_K_XL-00001-of-00003.gguf"
    " UD-Q4_K_XL/n-UD-Q4_K_XL-00003-of-00003.gguf UD-Q4_K_XL/n-UD-Q4_K_XL-00002-of-00003.gguf"
    " imatrix-Q8_0.gguf"
)


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("Q3_K_M", ["n-Q3_K_M.gguf"]),
        ("q3_k_m", ["n-Q3_K_M.gguf"]),
        (None, ["n-Q4_K_M.gguf"]),
        ("Q8_0", ["n-Q8_0.gguf"]),
        ("UD-Q4_K_XL", [f"UD-Q4_K_XL/n-UD-Q4_K_XL-0000{part}-of-00003.gguf" for part in (1, 2, 3)]),
    ],
)
def test_one_gguf_with_all_its_parts(label: str | None, found: list[str]) -> None:
    assert [file.path for file in select_files(files(GGUFS), need("llamacpp", label))] == found


def test_a_projector_of_the_nearest_width() -> None:
    names = "n-Q4_K_M.gguf mmproj-F32.gguf mmproj-F16.gguf sub/mmproj-Q4_0.gguf"
    assert chosen(names, need("llamacpp", "Q4_K_M")) == {"n-Q4_K_M.gguf", "mmproj-F16.gguf"}


@pytest.mark.parametrize(
    ("names", "meant", "says"),
    [
        (GGUFS, need("llamacpp", "Q5_K_M"), "no GGUF called Q5_K_M; it has"),
        ("n-Q4_0-00001-of-00002.gguf", need("llamacpp", "Q4_0"), "lacks part 2 of 2"),
        ("README.md", need(), "no weights that vllm reads"),
        ("README.md", WeightsNeed("o/n", patterns=("*.gguf",)), r"no file like \*\.gguf; it has README\.md"),
        (GGUFS, need(None), "has 4 GGUF models: Q3_K_M, Q4_K_M, Q4_K_XL, Q8_0"),
    ],
)
def test_missing_files_are_named(names: str, meant: WeightsNeed, says: str) -> None:
    with pytest.raises(FiresteelError, match=says) as caught:
        select_files(files(names), meant)
    assert caught.value.next


def test_shell_patterns() -> None:
    assert chosen(GGUFS, WeightsNeed("o/n", patterns=("*Q8_0*",))) == {"n-Q8_0.gguf", "imatrix-Q8_0.gguf"}


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "a/b c", "", "/etc/passwd", "a/b:" * 1000])
def test_an_invalid_name(name: str) -> None:
    with pytest.raises(UsageError):
        select_files(files("x.gguf"), parse_name(name, ()))


def test_a_name_with_label_and_revision() -> None:
    assert parse_name("o/n:Q4_0@v2", ()) == WeightsNeed("o/n", None, "v2", "Q4_0")


def test_every_recipe_has_its_needs() -> None:
    """The weights of a container come from the Hub, its drafter and plugin files too."""
    spark = idle_host(hardware("gb10"))
    by_name = {proposal.name: proposal for proposal in propose(shipped(), spark, Ask())}
    for name, proposal in by_name.items():
        assert (weights_needed(proposal) == ()) == proposal.is_embedded, name
    nano = weights_needed(by_name["nemotron-3-nano-nvfp4"])
    assert [need.what for need in nano] == ["weights", "file"]
    assert nano[1].patterns[0] == "nano_v3_reasoning_parser.py"
    drafted = weights_needed(by_name["qwen3.5-27b-dflash"])
    assert [need.repository for need in drafted][1:] == ["z-lab/Qwen3.5-27B-DFlash"]
    # Its drafter is in its own repository.
    assert len(weights_needed(by_name["gemma-4-12b-coder-nvfp4-mtp"])) == 1
    assert weights_needed(by_name["gpt-oss-120b-llamacpp"])[0].label == "MXFP4"
    assert packages(by_name["phi-4-multimodal-nvfp4"]) == ("scipy",)
