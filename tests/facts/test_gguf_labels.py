"""Types by label, held against what llama.cpp's own quantizer says of the same shapes.

`gguf_quants.json` is its answer, recorded by `scripts/record-quants`: eleven models, every label, with
importances and without.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from firesteel.facts.formats.gguf_labels import BASE_TYPES, stored_types
from firesteel.facts.model.parameters import ParameterGroups, parameters_of_config
from firesteel.values import replace

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "gguf_quants.json").read_text())["models"]


def sizes(name: str) -> ParameterGroups:
    return parameters_of_config(json.loads((HERE / "configs" / f"{name}.json").read_text()))


def by_type(model: ParameterGroups, label: str, with_imatrix: bool) -> dict[str, int]:
    """Of the language model; the recorded files leave out the vectors, which are all F32."""
    found: Counter[str] = Counter()
    for tensor in stored_types(model, label, with_imatrix):
        if tensor.group.is_of_model and tensor.type != "F32":
            found[tensor.type] += tensor.bytes
    return dict(found)


@pytest.mark.parametrize("name", RECORDED)
def test_every_label_is_what_the_quantizer_makes(name: str) -> None:
    # the recorded gpt-oss is one whose experts came in 16 bits; published ones come in MXFP4
    model = replace(sizes(name), model_type="") if "gpt-oss" in name else sizes(name)
    assert RECORDED[name].keys() == BASE_TYPES.keys()
    for label, recorded in RECORDED[name].items():
        for key, recorded_sizes in recorded.items():
            real = {kind: size for kind, size in recorded_sizes.items() if kind != "F32"}
            assert by_type(model, label, key == "bytes_with_imatrix") == real, (label, key)


def test_rows_of_2880_fall_back() -> None:
    """No multiple of 256: attention of gpt-oss cannot be Q4_K nor Q6_K; its experts stay MXFP4."""
    types = {tensor.group.part: set[str]() for tensor in stored_types(sizes("openai--gpt-oss-20b"), "q4_k_m")}
    for tensor in stored_types(sizes("openai--gpt-oss-20b"), "q4_k_m"):
        types[tensor.group.part].add(tensor.type)
    assert types["attention"] == {"F32", "Q5_0", "Q8_0", "Q4_K"}  # the output's rows are 4096
    assert types["routed_experts"] == {"F32", "MXFP4"} and types["head"] == {"Q8_0"}
