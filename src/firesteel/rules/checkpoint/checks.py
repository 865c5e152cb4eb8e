"""The checks of an audit: level, what an engine does with such a checkpoint, what repairs it, and the source.

stop   the engine refuses the checkpoint, or answers with garbage
warn   it loads, and is worse, larger or slower than it should be
note   worth knowing
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from firesteel.rules.rule import Level
from firesteel.values import Value

Mend = Literal["scales", "index", "config", "graft", "invert", "convert"]
SEEN = "2026-11-15"

_VLLM = "https://github.com/vllm-project/vllm"
_COMPRESSOR = "https://github.com/vllm-project/llm-compressor"
_LOADER = f"{_VLLM}/blob/main/vllm/model_executor/model_loader/weight_utils.py"
_COMPRESSED = f"{_VLLM}/tree/main/vllm/model_executor/layers/quantization/compressed_tensors"
_MODELOPT = f"{_VLLM}/blob/main/vllm/model_executor/layers/quantization/modelopt.py"
_FORMAT = "https://github.com/huggingface/safetensors#format"


class CheckpointCheck(Value):
    level: Level
    effect: str
    """What an engine will do with it."""
    source: str
    mend: Mend | None = None
    """What `audit --fix` does about it; None: it cannot."""


CHECKS: Mapping[str, CheckpointCheck] = {
    # files
    "shard-missing": CheckpointCheck(
        "stop", "the engine does not start: a file of the index is absent", _LOADER
    ),
    "shard-is-a-pointer": CheckpointCheck(
        "stop", "the engine does not start: the file was not downloaded, only its git-lfs pointer", _FORMAT
    ),
    "shard-damaged": CheckpointCheck(
        "stop", "the engine does not start: safetensors refuses the header", _FORMAT
    ),
    "shard-truncated": CheckpointCheck(
        "stop", "the engine does not start: the file is shorter than its header says", _FORMAT
    ),
    "shard-too-long": CheckpointCheck(
        "stop", "the engine does not start: safetensors refuses bytes that no tensor covers", _FORMAT
    ),
    "size-differs-from-hub": CheckpointCheck(
        "stop", "the engine reads other bytes than were published", _FORMAT
    ),
    "digest-differs": CheckpointCheck("stop", "the engine reads other bytes than were published", _FORMAT),
    "index-damaged": CheckpointCheck("stop", "the engine does not start", _LOADER, "index"),
    "index-missing": CheckpointCheck(
        "warn", "vLLM loads all files; transformers and most tools find no weights", _LOADER, "index"
    ),
    "index-promises-absent-tensor": CheckpointCheck(
        "stop",
        "transformers refuses it; vLLM leaves a weight that it needs at its initial value",
        _LOADER,
        "index",
    ),
    "index-names-wrong-file": CheckpointCheck(
        "stop", "transformers and readers that open one file for one tensor fail", _LOADER, "index"
    ),
    "tensor-not-in-index": CheckpointCheck(
        "warn", "vLLM loads it, transformers does not: the two run different models", _LOADER, "index"
    ),
    "tensor-twice": CheckpointCheck(
        "stop", "which of the copies is loaded depends on the order of the files", _LOADER, "index"
    ),
    "file-not-in-index": CheckpointCheck("note", "engines do not load it", _LOADER),
    "index-total-differs": CheckpointCheck("note", "tools show a wrong size", _LOADER, "index"),
    # config
    "config-missing": CheckpointCheck("stop", "the engine does not start", _LOADER, "config"),
    "config-damaged": CheckpointCheck("stop", "the engine does not start", _LOADER),
    "architecture-unknown": CheckpointCheck(
        "note", "whether an engine knows it, firesteel cannot tell; shapes were not compared", _LOADER
    ),
    "layers-missing": CheckpointCheck(
        "stop", "vLLM stops with weights that were not initialized from the checkpoint", _LOADER, "graft"
    ),
    "layers-beyond-config": CheckpointCheck(
        "stop", "vLLM stops with a KeyError at the first tensor of such a layer", _LOADER
    ),
    "experts-missing": CheckpointCheck(
        "stop", "the missing experts keep what was in memory: some tokens become garbage", _LOADER, "graft"
    ),
    "experts-beyond-config": CheckpointCheck(
        "stop", "the engine stops, or drops experts that the router picks", _LOADER
    ),
    "tensor-missing": CheckpointCheck(
        "stop", "vLLM stops with weights that were not initialized from the checkpoint", _LOADER, "graft"
    ),
    "shape-contradicts-config": CheckpointCheck(
        "stop", "the engine stops with a shape mismatch", _LOADER, "config"
    ),
    "class-contradicts-config": CheckpointCheck(
        "warn", "vLLM builds the class, transformers the model type: two different models", _LOADER, "config"
    ),
    "head-missing": CheckpointCheck(
        "stop", "vLLM stops with `lm_head.weight` not initialized, or answers with garbage", _LOADER, "config"
    ),
    "head-stored-although-tied": CheckpointCheck(
        "note", "the engine skips the stored head and uses the embedding table", _LOADER
    ),
    # quantization
    "quantization-config-missing": CheckpointCheck(
        "stop",
        "vLLM takes the packed bytes for 16-bit weights and stops at the first scale tensor",
        _COMPRESSED,
        "config",
    ),
    "nothing-is-quantized": CheckpointCheck(
        "stop", "vLLM waits for scales that do not exist and stops", _COMPRESSED, "config"
    ),
    "layout-contradicts-config": CheckpointCheck(
        "stop", "vLLM looks for other tensor names and stops with a KeyError", _MODELOPT, "config"
    ),
    "format-contradicts-config": CheckpointCheck(
        "stop", "the engine reads the weights with another layout: shape mismatch or garbage", _COMPRESSED
    ),
    "group-size-contradicts-config": CheckpointCheck(
        "stop", "the engine allocates scales of another shape and stops", _COMPRESSED, "config"
    ),
    "configs-differ": CheckpointCheck(
        "warn",
        "vLLM reads config.json, other engines hf_quant_config.json: they run different models",
        _MODELOPT,
        "config",
    ),
    "quantization-unknown": CheckpointCheck(
        "note", "firesteel does not know this format; scales were not compared", _COMPRESSED
    ),
    "experts-not-quantized": CheckpointCheck(
        "stop",
        "vLLM prepares packed experts, finds 16-bit ones and stops, or keeps uninitialized memory",
        "https://github.com/NVIDIA/Model-Optimizer/issues/1173",
    ),
    "experts-left-in-16-bits": CheckpointCheck(
        "warn",
        "it runs, and takes the memory and the bandwidth of a model that was never quantized",
        "https://github.com/NVIDIA/Model-Optimizer/issues/1173",
    ),
    "experts-mixed": CheckpointCheck(
        "stop",
        "engines load the experts of a layer into one tensor of one format: others are garbage",
        f"{_COMPRESSOR}/issues/2430",
    ),
    "unquantized-not-ignored": CheckpointCheck(
        "stop",
        "vLLM waits for scales of this module and stops, because the ignore list does not name it",
        _COMPRESSED,
        "config",
    ),
    "ignored-but-quantized": CheckpointCheck(
        "stop",
        "vLLM takes packed bytes for a 16-bit weight and stops: the ignore list names the module",
        _COMPRESSED,
        "config",
    ),
    "ignore-entry-misses": CheckpointCheck(
        "note", "the entry has no effect: no module has that name", _COMPRESSED, "config"
    ),
    "router-quantized": CheckpointCheck(
        "stop",
        "vLLM keeps the router in 16 bits and stops at its scales; elsewhere tokens go to wrong experts",
        f"{_COMPRESSOR}/issues/2430",
        "graft",
    ),
    "embeddings-quantized": CheckpointCheck(
        "stop", "vLLM keeps embeddings in 16 bits and stops at their scales", _COMPRESSED, "graft"
    ),
    "norms-quantized": CheckpointCheck("stop", "the engine stops at scales of a norm", _COMPRESSED, "graft"),
    "head-quantized": CheckpointCheck(
        "note", "vLLM up to 0.22 does not know the head's input scale and stops", f"{_VLLM}/issues/44081"
    ),
    "mtp-missing": CheckpointCheck(
        "warn",
        "speculation with MTP is refused; older releases start and accept no token",
        f"{_VLLM}/issues/35548",
        "graft",
    ),
    "mtp-quantized": CheckpointCheck(
        "warn",
        "vLLM's MTP loader stops with a shape mismatch when speculation is on",
        f"{_VLLM}/issues/35031",
        "graft",
    ),
    "mtp-not-ignored": CheckpointCheck(
        "warn",
        "with speculation vLLM prepares packed MTP weights and stops at the 16-bit ones",
        f"{_VLLM}/issues/35031",
        "config",
    ),
    "moe-target-missing": CheckpointCheck(
        "warn",
        "vLLM does not apply the format to experts called w1, w2, w3, and loads them as 16 bits",
        f"{_COMPRESSOR}/issues/3069",
        "config",
    ),
    "kv-scales-absent": CheckpointCheck(
        "note",
        "an fp8 KV cache runs with scales of 1.0: right for most models, too coarse for some",
        _MODELOPT,
    ),
    "input-scales-missing": CheckpointCheck(
        "stop", "vLLM quantizes activations with a scale that was never set: garbage", _MODELOPT, "config"
    ),
    # scales
    "scale-missing": CheckpointCheck(
        "stop", "the engine stops, or multiplies with whatever was in memory", _COMPRESSED, "graft"
    ),
    "scale-without-weight": CheckpointCheck(
        "stop", "the engine stops with a KeyError at the scale", _COMPRESSED
    ),
    "weight-twice": CheckpointCheck(
        "stop", "the engine stops at the one that it does not expect, or loads that", _COMPRESSED
    ),
    "scale-shape": CheckpointCheck("stop", "the engine stops with a shape mismatch", _COMPRESSED, "graft"),
    "scale-dtype": CheckpointCheck(
        "stop",
        "the engine copies the values into another type: they lose their meaning",
        _COMPRESSED,
        "graft",
    ),
    "scale-not-positive": CheckpointCheck(
        "stop",
        "every weight under this scale becomes zero, changes its sign or is not a number",
        _COMPRESSED,
        "graft",
    ),
    "scale-zeros": CheckpointCheck("warn", "the weights under these scales are all zero", _COMPRESSED),
    "scale-saturated": CheckpointCheck(
        "warn", "large weights were cut off: their blocks needed more than E4M3's 448", _COMPRESSED
    ),
    "scale-inverted": CheckpointCheck(
        "stop",
        "every weight is off by a factor of millions: compressed-tensors divides by it, ModelOpt multiplies",
        _COMPRESSED,
        "invert",
    ),
    "shared-scales-differ": CheckpointCheck(
        "warn",
        "vLLM and SGLang use one scale for matrices that they stack: the others are wrong by the ratio",
        f"{_VLLM}/issues/54974",
        "scales",
    ),
    "weights-not-finite": CheckpointCheck(
        "stop", "answers become NaN, which shows as `!!!!` or as an empty text", _LOADER, "graft"
    ),
    "weights-all-zero": CheckpointCheck("warn", "the matrix has no effect", _LOADER, "graft"),
    # tokenizer
    "tokenizer-missing": CheckpointCheck(
        "stop", "the engine does not start without `--tokenizer`", _LOADER, "graft"
    ),
    "tokenizer-damaged": CheckpointCheck("stop", "the engine does not start", _LOADER, "graft"),
    "tokenizer-beyond-embeddings": CheckpointCheck(
        "stop", "a prompt with such a token reads past the embedding table: CUDA error or garbage", _LOADER
    ),
    "template-missing": CheckpointCheck(
        "note", "`/v1/chat/completions` answers with an error; a base model has none", _LOADER, "graft"
    ),
    "templates-differ": CheckpointCheck(
        "warn",
        "transformers takes chat_template.jinja, tools that read tokenizer_config.json take the other",
        "https://huggingface.co/docs/transformers/chat_templating",
    ),
    "eos-differs": CheckpointCheck(
        "note", "an answer may go on after its end: generation_config lacks the tokenizer's end", _LOADER
    ),
    "eos-missing": CheckpointCheck(
        "warn", "an answer ends only at its limit: no file says which token ends one", _LOADER, "config"
    ),
    "eos-beyond-vocabulary": CheckpointCheck(
        "warn", "an answer never ends by itself: the model cannot produce that token", _LOADER, "config"
    ),
}


class CheckpointFinding(Value):
    check: str
    level: Level
    says: str
    effect: str
    """What an engine will do."""
    evidence: str
    """What was read."""
    tensor: str | None
    """A tensor, a module or a file that shows it; of several, the worst."""
    count: int = 1
    """How many there are like it."""
    mend: Mend | None = None
    source: str = ""


def finding(
    check: str,
    says: str,
    evidence: str,
    tensor: str | None = None,
    count: int = 1,
    level: Level | None = None,
) -> CheckpointFinding:
    known = CHECKS[check]
    return CheckpointFinding(
        check,
        level or known.level,
        says,
        known.effect,
        evidence[:400],
        tensor,
        count,
        known.mend,
        known.source,
    )
