"""LoRA adapters from their files: rank, shapes, bytes, and which model they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.edge.checkpoints import open_adapter
from firesteel.edge.hub.cache import Store
from firesteel.errors import FiresteelError
from firesteel.facts.model.adapter import Adapter, AdapterModule, slot_bytes
from firesteel.facts.model.architecture import Architecture, FullAttention
from tests.made_adapters import write_gguf, write_peft

SMOLLM2 = Architecture(
    "llama",
    (FullAttention(3, 64, 64),) * 30,
    hidden_size=576,
    vocab_size=49152,
    max_context=8192,
    attention_heads=9,
    feed_forward_size=1536,
)


def opened(path: Path) -> Adapter:
    return open_adapter("polite", str(path), Store(path / "hub", path / "records"))


def test_a_gguf_and_a_peft_folder_say_the_same(tmp_path: Path) -> None:
    gguf = opened(write_gguf(tmp_path / "a.gguf"))
    peft = opened(write_peft(tmp_path / "peft"))
    modules = (AdapterModule("q_proj", 576, 576), AdapterModule("down_proj", 1536, 576))
    assert (gguf.rank, gguf.modules, gguf.layers, gguf.bytes) == (4, modules, 30, 1_566_720)
    assert (peft.rank, peft.modules, peft.layers, peft.bytes) == (4, modules, 30, 1_566_720)
    assert (gguf.architecture, gguf.base) == ("llama", "SmolLM2 135M Instruct")
    assert peft.base == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert not list(gguf.misfits(SMOLLM2)) and not list(peft.misfits(SMOLLM2))


def test_features_that_are_more_than_low_rank_pairs(tmp_path: Path) -> None:
    found = opened(write_peft(tmp_path, use_dora=True, modules_to_save=["lm_head"], bias="all"))
    assert found.features == ("DoRA", "modules_to_save", "a bias")


def test_an_adapter_of_another_model_is_told_by_its_shapes(tmp_path: Path) -> None:
    wide = opened(write_gguf(tmp_path / "a.gguf", ("q_proj",), {"q_proj": (4096, 4096)}, layers=2))
    assert list(wide.misfits(SMOLLM2)) == [
        "its q_proj has 4096 inputs and 4096 outputs, that of the model 576 and 576"
    ]
    deep = opened(write_gguf(tmp_path / "b.gguf", ("q_proj",), layers=32))
    assert list(deep.misfits(SMOLLM2)) == ["it changes 32 layers, and the model has 30"]


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "has neither an adapter_config.json nor a GGUF"),
        ({"adapter_config.json": b"{}"}, "has no adapter_model.safetensors"),
        ({"adapter_config.json": b"{", "adapter_model.safetensors": b""}, "is not JSON"),
        ({"a.gguf": b"GGUF"}, "is truncated"),
    ],
)
def test_what_is_no_adapter_is_refused(tmp_path: Path, files: dict[str, bytes], why: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FiresteelError, match=why):
        opened(tmp_path)


def test_other_kinds_of_adapters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FiresteelError, match="of type PROMPT_TUNING, not LoRA"):
        opened(write_peft(tmp_path, peft_type="PROMPT_TUNING"))


def test_a_repository_that_was_not_pulled_says_how(tmp_path: Path) -> None:
    with pytest.raises(FiresteelError) as raised:
        open_adapter("polite", "org/polite", Store(tmp_path, tmp_path))
    assert raised.value.next == "firesteel pull org/polite"


def test_a_slot_has_a_pair_for_every_module() -> None:
    layer = (576 + 576) + 2 * (576 + 192) + (576 + 576) + 3 * (576 + 1536)
    assert slot_bytes(SMOLLM2, 16) == 2 * 16 * 30 * layer
