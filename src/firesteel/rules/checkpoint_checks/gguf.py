"""Checks of a GGUF: its keys against its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from firesteel.facts.formats.gguf import ArrayInfo, model_layer_count
from firesteel.facts.model.tensors import Role
from firesteel.rules.checkpoint_checks.checks import CheckpointFinding, finding
from firesteel.rules.checkpoint_checks.subject import AuditSubject

_BLOCK = re.compile(r"^blk\.(\d{1,6})\.")
_PLAIN = ("F32", "F16", "BF16")


def check_gguf(subject: AuditSubject) -> Iterator[CheckpointFinding]:
    contents = subject.contents
    if not contents.has_all_files:
        return
    keys, tensors = contents.metadata, list(subject.tensors())
    name = str(keys.get("general.architecture"))
    blocks = {int(match[1]) for tensor in tensors if (match := _BLOCK.match(tensor.name))}
    promised = keys.get(f"{name}.block_count")
    layers = model_layer_count(dict(keys)) if keys else None  # type: ignore[arg-type]
    if type(promised) is int and layers is not None and blocks:
        if missing := [number for number in range(layers) if number not in blocks]:
            evidence = f"block_count is {promised}, and there is no `blk.{missing[0]}`"
            yield finding("layers-missing", f"layer {missing[0]} is absent", evidence, None, len(missing))
        if promised > layers and not any(number >= layers for number in blocks):
            evidence = f"nextn_predict_layers is {promised - layers}, and no tensor belongs to one"
            yield finding("mtp-missing", "the MTP layers are absent", evidence)
    experts = keys.get(f"{name}.expert_count")
    for tensor in tensors:
        is_stack = tensor.role is Role.ROUTED_EXPERTS and len(tensor.shape) == 3
        if is_stack and type(experts) is int and experts and tensor.shape[0] != experts:
            evidence = f"expert_count is {experts}, and `{tensor.name}` has {tensor.shape[0]}"
            yield finding("experts-missing", "experts are absent", evidence, tensor.name)
            break
    routers = [tensor for tensor in tensors if tensor.role is Role.ROUTER and tensor.dtype not in _PLAIN]
    if routers:
        evidence = f"`{routers[0].name}` is {routers[0].dtype}"
        yield finding(
            "router-quantized", "the router is quantized", evidence, routers[0].name, len(routers), "warn"
        )
    yield from _tokens(subject)


def _tokens(subject: AuditSubject) -> Iterator[CheckpointFinding]:
    keys = subject.contents.metadata
    tokens = keys.get("tokenizer.ggml.tokens")
    count = (
        tokens.length if isinstance(tokens, ArrayInfo) else len(tokens) if isinstance(tokens, tuple) else None
    )
    table = next((tensor for tensor in subject.tensors() if tensor.name == "token_embd.weight"), None)
    if count is None:
        yield finding("tokenizer-missing", "there is no tokenizer", "no key tokenizer.ggml.tokens")
    elif table is not None and table.shape and count > table.shape[0]:
        evidence = f"{count:,} tokens, and the table has {table.shape[0]:,} rows"
        what = "the tokenizer has tokens that the embedding table lacks"
        yield finding("tokenizer-beyond-embeddings", what, evidence, table.name)
    if "tokenizer.chat_template" not in keys:
        yield finding("template-missing", "there is no chat template", "no key tokenizer.chat_template")
