"""The table of model sizes against published checkpoints, and against the table that guides copy."""

import pytest
from calibration.size_table import FORMATS, size_table, weight_bytes

from firesteel.catalog.catalog import shipped
from firesteel.errors import UsageError

CATALOG = shipped()
GB = 10**9
ROWS = {row.family: row for row in size_table(CATALOG)}


@pytest.mark.parametrize(
    ("family", "format", "gigabytes"),
    [
        ("llama-3.3-70b", "BF16", 141.1),
        ("llama-3.3-70b", "NVFP4", 42.7),  # guides say 40, and 35 in INT4
        ("llama-3.3-70b", "INT4", 39.8),
        ("qwen3-coder-next", "BF16", 159.3),
        ("qwen3-coder-next", "FP8", 80.4),  # what Qwen's own FP8 checkpoint is; guides say 85
        ("qwen3-235b-a22b", "INT4", 124.5),  # what Qwen's own GPTQ checkpoint is
        ("llama-3.1-405b", "BF16", 811.7),
        ("llama-3.1-405b", "INT4", 217.2),  # guides say 100
        ("llama-3.1-405b", "NVFP4", 234.3),  # guides say 115
    ],
)
def test_figures(family: str, format: str, gigabytes: float) -> None:
    assert ROWS[family].bytes[format] / GB == pytest.approx(gigabytes, abs=0.05)


def test_no_format_beats_its_bits() -> None:
    """A 405B in four bits is 203 GB before a scale is counted."""
    bits = {"BF16": 16, "FP8": 8, "INT4": 4, "NVFP4": 4}
    for row in ROWS.values():
        for format, size in row.bytes.items():
            assert size > row.parameters * bits[format] // 8 * 0.999, (row.family, format)
    assert ROWS["llama-3.1-405b"].bytes["INT4"] > 202 * GB


def test_formats_are_ordered_by_size() -> None:
    for row in ROWS.values():
        assert row.bytes["INT4"] < row.bytes["NVFP4"] < row.bytes["FP8"] < row.bytes["BF16"]
        assert tuple(row.bytes) == FORMATS


def test_size_equals_the_published_checkpoint_in_a_single_format() -> None:
    row = ROWS["llama-3.3-70b"]
    assert row.bytes["NVFP4"] == row.published_bytes
    assert CATALOG.models["Qwen/Qwen3-Coder-Next-FP8"].weights.total_bytes == pytest.approx(
        ROWS["qwen3-coder-next"].bytes["FP8"], rel=1e-3
    )


def test_drafters_and_towers_are_not_counted() -> None:
    """Nemotron's MTP layer is 2.9 B beside its 120.7 B."""
    assert ROWS["nemotron-3-super"].bytes["BF16"] == pytest.approx(2 * 120.67 * GB, rel=1e-3)


def test_unknown_format_and_missing_config_are_refused() -> None:
    with pytest.raises(UsageError, match="`INT3` is not one of BF16, FP8, INT4, NVFP4"):
        weight_bytes(CATALOG.models["openai/gpt-oss-20b"], "INT3")
    with pytest.raises(UsageError, match="has no `config` in its file"):
        size_table(CATALOG, ["poolside/Laguna-XS.2"])
