"""What a checkpoint holds, as far as an audit needs it: headers, the values of scales, and its small files.

Read by `edge/files/contents.py` and judged by `rules/checkpoint_checks`. A file that cannot be read is a
value too: an audit names everything that is wrong, where a plan stops at the first damage.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from firesteel.facts.formats.gguf import MetadataValue
from firesteel.facts.formats.number_bytes import ValueSummary
from firesteel.facts.model.tensors import Tensor
from firesteel.values import Value

Defect = Literal["missing", "pointer", "damaged", "truncated", "too long", "wrong size", "wrong digest"]


class WeightFile(Value):
    name: str
    bytes: int
    tensors: tuple[Tensor, ...] = ()
    """In the order of their data; empty where the header cannot be read."""
    data_start: int = 0
    defect: Defect | None = None
    why: str = ""
    """The defect, for the user."""
    is_listed: bool = True
    """In the index, or there is none. Engines do not load a file that is not."""


class TokenizerFacts(Value):
    files: frozenset[str]
    """Which of the known tokenizer files there are."""
    defect: str = ""
    highest_id: int | None = None
    """Of the vocabulary and the added tokens together; None: not known."""
    eos: str | None = None
    eos_id: int | None = None
    has_template: bool = False
    templates_differ: bool = False


class CheckpointContents(Value):
    origin: str
    """The path or the Hub id, as a user would write it."""
    format: Literal["gguf", "safetensors"]
    files: tuple[WeightFile, ...]
    config: Mapping[str, object] | None = None
    config_defect: str = ""
    modelopt_config: Mapping[str, object] | None = None
    """`hf_quant_config.json`"""
    generation_config: Mapping[str, object] | None = None
    index: Mapping[str, str] | None = None
    """Tensor -> file, as the index has it; None: there is no index."""
    index_defect: str = ""
    index_bytes: int | None = None
    """`total_size` of the index."""
    scalars: Mapping[str, float] = {}
    """Tensors of one element that scale others."""
    values: Mapping[str, ValueSummary] = {}
    """Other scale tensors, or their beginning."""
    weight_values: Mapping[str, ValueSummary] = {}
    """Weights; only a deep audit reads them."""
    tokenizer: TokenizerFacts | None = None
    metadata: Mapping[str, MetadataValue] = {}
    """Of a GGUF."""
    read_bytes: int = 0
    is_deep: bool = False
    unread: tuple[str, ...] = ()
    """What was not read, and why."""

    @property
    def has_all_files(self) -> bool:
        """Every header could be read, so what is absent is absent from the checkpoint."""
        return not self.index_defect and all(
            file.defect not in ("missing", "pointer", "damaged") for file in self.files
        )

    @property
    def stored_bytes(self) -> int:
        return sum(tensor.bytes for file in self.files for tensor in file.tensors)
