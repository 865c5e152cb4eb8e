"""Checks of what a checkpoint says of itself against its tensors: layers, experts, shapes, the head.

A safetensors checkpoint says it in config.json, a GGUF in its keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod

from firesteel.facts.formats.gguf import ArrayInfo, model_layer_count
from firesteel.facts.model.config import known_model_types
from firesteel.facts.model.contents import StoredModule
from firesteel.facts.model.tensors import Role, TensorGroup
from firesteel.rules.checkpoint.audited import AuditedCheckpoint
from firesteel.rules.checkpoint.checks import CheckpointFinding, finding

_LAYER = re.compile(r"(?:^|\.)layers\.(\d{1,6})\.")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_EXPERT = re.compile(r"^(.*\.experts)\.(\d{1,6})\.(.*)")
_PREFIX = re.compile(r"^(?:model\.|language_model\.|backbone\.|transformer\.|text_model\.)+")
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def check_config(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    contents = checkpoint.contents
    if contents.config_defect:
        yield finding("config-damaged", "config.json cannot be read", contents.config_defect, "config.json")
        return
    if contents.config is None:
        yield finding("config-missing", "there is no config.json", "no config.json", "config.json")
        return
    if checkpoint.architecture is None:
        model_type = str(checkpoint.text_config.get("model_type"))[:60]
        yield finding(
            "architecture-unknown", f"firesteel does not know `{model_type}`", "model_type of config.json"
        )
    if contents.has_all_files:
        yield from _layers(checkpoint)
        yield from _experts(checkpoint)
        yield from _head(checkpoint)
        yield from _matrices(checkpoint)
        yield from _vectors(checkpoint)
    yield from _class(checkpoint)
    yield from _vocabulary(checkpoint)


def _layers(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    count = checkpoint.whole_number("num_hidden_layers", "n_layer", "num_layers")
    if count is None or not 0 < count <= 4096:
        return
    present: set[int] = set()
    for module in checkpoint.representatives:
        if module.role is not Role.TOWER and not module.name.startswith("mtp"):
            layer = _LAYER.search(module.name)
            if layer:
                present.add(int(layer[1]))
    if not present:
        return
    missing = [number for number in range(count) if number not in present]
    if missing:
        evidence = f"num_hidden_layers is {count}, and there are no tensors of layer {_listed(missing)}"
        yield finding("layers-missing", f"layer {missing[0]} is absent", evidence, None, len(missing))
    beyond = sorted(number for number in present if number >= count + checkpoint.drafter_layers)
    if beyond and checkpoint.architecture is not None:  # families not known here may have several stacks
        evidence = f"num_hidden_layers is {count}, and there are tensors of layer {_listed(beyond)}"
        yield finding(
            "layers-beyond-config", "there are more layers than the config has", evidence, None, len(beyond)
        )


def _experts(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    count = checkpoint.whole_number(*_EXPERT_KEYS)
    if not count or count > 65_536:
        return
    numbers: dict[tuple[str, str], set[int]] = {}
    for name, module in checkpoint.modules.items():
        expert = _EXPERT.match(name)
        if expert and module.role is Role.ROUTED_EXPERTS:
            numbers.setdefault((expert[1], expert[3]), set()).add(int(expert[2]))
    lacking = {place: count - len(own) for place, own in numbers.items() if max(own) < count > len(own)}
    if lacking:
        parent, leaf = next(iter(lacking))
        absent = [number for number in range(count) if number not in numbers[parent, leaf]]
        evidence = f"the config has {count} experts; `{parent}` lacks {_listed(absent)} ({leaf})"
        yield finding("experts-missing", "experts are absent", evidence, parent, sum(lacking.values()))
    most = count + (checkpoint.whole_number("zero_expert_num") or 0)  # experts that pass their input on
    if extra := {parent: max(own) for (parent, _), own in numbers.items() if max(own) >= most}:
        parent = next(iter(extra))
        evidence = f"the config has {count} experts; `{parent}` has number {extra[parent]}"
        what = "there are more experts than the config has"
        yield finding("experts-beyond-config", what, evidence, parent, len(extra))


def _head(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    parameters = checkpoint.parameters
    if parameters is None:
        return
    heads = [module for module in checkpoint.representatives if module.role is Role.HEAD and module.weight]
    has_embeddings = any(module.role is Role.EMBEDDINGS for module in checkpoint.representatives)
    if not parameters.tied_head and not heads and has_embeddings:
        evidence = "tie_word_embeddings is false, and no tensor is a head"
        yield finding("head-missing", "the head is absent", evidence, "lm_head.weight")
    if parameters.tied_head and heads:
        weight = heads[0].weight
        evidence = (
            f"tie_word_embeddings is true, and `{heads[0].name}` has {weight.bytes if weight else 0:,} bytes"
        )
        yield finding(
            "head-stored-although-tied", "a head is stored that is not used", evidence, heads[0].name
        )


def _vocabulary(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """For families whose shapes are not known, the embedding table alone."""
    if checkpoint.parameters is not None:
        return
    vocabulary, hidden = checkpoint.whole_number("vocab_size"), checkpoint.whole_number("hidden_size")
    for module in checkpoint.representatives:
        name = _PREFIX.sub("", module.name)
        shape = module.shape
        if name == "embed_tokens" and shape and vocabulary and hidden and shape[0] < vocabulary:
            evidence = f"vocab_size {vocabulary:,}, and the table has {shape[0]:,} rows"
            what = "the embedding table is smaller than the vocabulary"
            yield finding("shape-contradicts-config", what, evidence, module.name)


def _matrices(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """Every matrix that the config implies, with its shape."""
    parameters = checkpoint.parameters
    if parameters is None:
        return
    stored = {_PREFIX.sub("", name): module for name, (module, _) in checkpoint.kinds.items()}
    wanted = [group for group in parameters.groups if _is_compared(group)]
    found = [(group, module) for group in wanted if (module := _find(stored, group)) is not None]
    matched = {module.name for _, module in found}
    if not found:
        return
    if absent := _absent(checkpoint, wanted, stored, matched):
        evidence = f"its config implies {absent[0].name} of {_shape(absent[0].shape)}"
        yield finding(
            "tensor-missing", f"`{absent[0].name}` is absent", evidence, absent[0].name, len(absent)
        )
    wrong = [(group, module) for group, module in found if not _agrees(group, module, parameters.experts)]
    if wrong:
        group, module = wrong[0]
        evidence = f"stored {_shape(module.shape or ())}, and the config implies {_shape(group.shape)}"
        what = f"`{module.name}` has another shape than the config implies"
        yield finding("shape-contradicts-config", what, evidence, module.name, len(wrong))


def _vectors(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """Norms and biases that most layers have and a few lack, although the module around them is there."""
    if checkpoint.architecture is None:
        return
    blocks: dict[str, set[int]] = {}
    layers: dict[str, set[int]] = {}
    for tensor in checkpoint.tensors():
        match = _LAYER.search(tensor.name)
        if match is None or tensor.role is Role.TOWER:
            continue
        number = int(match[1])
        path = _kind(tensor.name)
        while "." in path:
            path = path.rpartition(".")[0]
            blocks.setdefault(path, set()).add(number)
        if tensor.role is Role.NORMS or tensor.name.endswith(".bias"):
            layers.setdefault(_kind(tensor.name), set()).add(number)
    for kind, present in layers.items():
        module = kind.removesuffix(".weight").removesuffix(".bias")
        around = blocks[module if kind.endswith(".bias") else module.rpartition(".")[0]]
        missing = sorted(around - present)
        if missing and len(missing) * 3 <= len(present):
            evidence = f"{len(present)} layers have `{kind}`, and layer {_listed(missing)} does not"
            yield finding("tensor-missing", f"`{kind}` is absent", evidence, kind, len(missing))
            return


def _class(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """The class that vLLM builds by, where it is named after another model type."""
    names = checkpoint.config.get("architectures")
    model_type = str(checkpoint.config.get("model_type") or "").replace("_", "").replace("-", "").lower()
    if not isinstance(names, list) or not names or not model_type:
        return
    named = str(names[0]).lower()
    types = {each.replace("_", ""): each for each in known_model_types()}
    of_class = max((each for each in types if named.startswith(each)), key=len, default=None)
    if of_class and model_type in types and not named.startswith(model_type) and of_class not in model_type:
        evidence = f"architectures has {str(names[0])[:80]}, model_type is {types[model_type]}"
        what = f"the class is that of `{types[of_class]}`, the config that of `{types[model_type]}`"
        yield finding("class-contradicts-config", what, evidence, "config.json")


def _is_compared(group: TensorGroup) -> bool:
    """Matrices of the language model by their own name; one norm may stand for several."""
    if group.in_drafter or group.part in ("tower", "norm", "recurrence", "indexer", "other"):
        return False
    if len(group.shape) == 1 or group.bits == 64:  # a bias or a table of indexes
        return False
    return group.part in ("embedding", "router") or group.is_linear


def _absent(
    checkpoint: AuditedCheckpoint,
    wanted: Sequence[TensorGroup],
    stored: Mapping[str, StoredModule],
    matched: set[str],
) -> list[TensorGroup]:
    """The matrices that are not stored under any name.

    Publishers fuse and rename. What no layer has under its own name, while as many values are stored under
    names that nothing implies, was renamed; what other layers have is missing in this one.
    """
    names = {_kind(group.name) for group in wanted if _find(stored, group) is not None}
    lacking = [group for group in wanted if _find(stored, group) is None]
    absent = [group for group in lacking if _kind(group.name) in names]
    renamed = [group for group in lacking if _kind(group.name) not in names]
    spare = sum(
        sum(counts.values()) * (prod(module.shape) if module.shape else 2 * module.weight.bytes)
        for module, counts in checkpoint.kinds.values()
        if module.name not in matched and module.weight and len(module.weight.shape) > 1
    )
    return absent + (renamed if spare < sum(group.elements for group in renamed) else [])


def _kind(name: str) -> str:
    return _NUMBER.sub("#", name)


def _find(stored: Mapping[str, StoredModule], group: TensorGroup) -> StoredModule | None:
    name = _PREFIX.sub("", group.name)
    for known in _other_names(name):
        module = stored.get(known)
        if module is None or module.weight is None:
            continue
        split = ("k_proj", "v_proj") if name.endswith(".qkv_proj") and known != name else ()
        others = [stored.get(known.removesuffix("q_proj") + leaf) for leaf in split]
        return module if all(other and other.weight for other in others) else None
    return None


_NUMBERED = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_FUSED = {
    "gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "qkv_proj": "q_proj",
    "in_proj_qkvz": "in_proj_qkv", "in_proj_ba": "in_proj_b",
}  # fmt: skip


def _other_names(name: str) -> Iterator[str]:
    """The names that publishers use for one matrix: fused or by expert, as one layer or as several."""
    yield name
    parent, _, leaf = name.rpartition(".")
    is_down = leaf in ("down_proj", "w2")
    for names in (_NUMBERED, _FUSED):
        if leaf in names:
            yield f"{parent}.{names[leaf]}"
    block = parent
    if parent.endswith(".experts.0"):
        block = parent.removesuffix(".experts.0")
        yield f"{block}.experts.{'down_proj' if is_down else 'gate_up_proj'}"
        yield f"{block}.experts.{leaf}"
    if leaf in ("gate_proj", "up_proj", "down_proj"):
        yield f"{block}.{'output_linear' if is_down else 'input_linear'}"
    if parent.endswith(".experts"):
        yield f"{parent}.0.{'down_proj' if is_down else 'gate_proj'}"
    if leaf == "router":
        yield f"{parent}.gate"
        yield f"{parent}.router.layer"
    if leaf == "gate":
        yield f"{parent}.router"
        yield f"{parent}.router.gate"


def _agrees(group: TensorGroup, module: StoredModule, experts: int) -> bool:
    shape = module.shape
    if shape is None or len(shape) < 2:
        return True
    if _PREFIX.sub("", module.name) != _PREFIX.sub("", group.name):
        # Fused or split: the same elements, arranged in another way. A part of them is another name's.
        return prod(shape) % min(group.shape) == 0
    if group.part == "embedding":
        return shape[1] == group.shape[1] and shape[0] >= group.shape[0]
    if len(shape) == 3:
        return shape[0] == experts and sorted(shape[1:]) == sorted(group.shape[-2:])
    return shape == group.shape


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:6]))
    return f"{shown} and {len(numbers) - 6} more" if len(numbers) > 6 else shown


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


_BLOCK = re.compile(r"^blk\.(\d{1,6})\.")
_PLAIN = ("F32", "F16", "BF16")


def check_gguf(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """Compare the keys of a GGUF file with its tensors: layers, shapes and experts."""
    contents = checkpoint.contents
    if any(file.defect for file in contents.files):  # its keys could not be read either
        return
    keys, tensors = contents.metadata, list(checkpoint.tensors())
    name = str(keys.get("general.architecture"))
    blocks = {int(match[1]) for tensor in tensors if (match := _BLOCK.match(tensor.name))}
    promised = keys.get(f"{name}.block_count")
    layers = model_layer_count(keys)
    if type(promised) is int and layers is not None and blocks:
        if missing := [number for number in range(layers) if number not in blocks]:
            evidence = f"block_count is {promised}, and there is no `blk.{missing[0]}`"
            yield finding("layers-missing", f"layer {missing[0]} is absent", evidence, None, len(missing))
        if promised > layers and not any(number >= layers for number in blocks):
            evidence = f"nextn_predict_layers is {promised - layers}, and no tensor belongs to one"
            yield finding("mtp-missing", "the MTP layers are absent", evidence)
    yield from _gguf_shapes(checkpoint, name)
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
    yield from _tokens(checkpoint)


def _gguf_shapes(checkpoint: AuditedCheckpoint, name: str) -> Iterator[CheckpointFinding]:
    """Tensors that most blocks have; sizes of the embedding, the head and the feed-forward layers."""
    keys, tensors = checkpoint.contents.metadata, list(checkpoint.tensors())
    blocks: dict[str, set[int]] = {}
    for tensor in tensors:
        if match := _BLOCK.match(tensor.name):
            blocks.setdefault(tensor.name[match.end() :], set()).add(int(match[1]))
    whole = set().union(*blocks.values()) if blocks else set()
    for kind, present in blocks.items():
        missing = sorted(whole - present)
        if missing and len(missing) == 1 and len(present) >= 4:
            evidence = f"{len(present)} blocks have `{kind}`, and block {missing[0]} does not"
            tensor_name = f"blk.{missing[0]}.{kind}"
            yield finding("tensor-missing", f"`{tensor_name}` is absent", evidence, tensor_name)
    width, inner = keys.get(f"{name}.embedding_length"), keys.get(f"{name}.feed_forward_length")
    rows = {tensor.name: tensor.shape for tensor in tensors}
    wanted: dict[str, tuple[object, object]] = {
        "token_embd.weight": (None, width),
        "output.weight": (rows.get("token_embd.weight", (None,))[0], width),
    }
    for tensor in tensors:
        if re.fullmatch(r"blk\.\d+\.ffn_(gate|up)\.weight", tensor.name):
            wanted[tensor.name] = (inner, width)
        elif re.fullmatch(r"blk\.\d+\.ffn_down\.weight", tensor.name):
            wanted[tensor.name] = (width, inner)
    for tensor_name, sizes in wanted.items():
        shape = rows.get(tensor_name)
        if shape is None or len(shape) != 2:
            continue
        if any(type(size) is int and size != own for size, own in zip(sizes, shape, strict=True)):
            evidence = f"stored {_shape(shape)}, and the keys imply {sizes[0] or 'any'} x {sizes[1] or 'any'}"
            what = f"`{tensor_name}` has another shape than the keys imply"
            yield finding("shape-contradicts-config", what, evidence, tensor_name)
            return


def _tokens(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    keys = checkpoint.contents.metadata
    tokens = keys.get("tokenizer.ggml.tokens")
    count = (
        tokens.length if isinstance(tokens, ArrayInfo) else len(tokens) if isinstance(tokens, tuple) else None
    )
    table = next((tensor for tensor in checkpoint.tensors() if tensor.name == "token_embd.weight"), None)
    if count is None:
        yield finding("tokenizer-missing", "there is no tokenizer", "no key tokenizer.ggml.tokens")
    elif table is not None and table.shape and count > table.shape[0]:
        evidence = f"{count:,} tokens, and the table has {table.shape[0]:,} rows"
        what = "the tokenizer has tokens that the embedding table lacks"
        yield finding("tokenizer-beyond-embeddings", what, evidence, table.name)
    end = keys.get("tokenizer.ggml.eos_token_id")
    if count is not None and type(end) is int and end >= count:
        evidence = f"eos_token_id {end:,}, and there are {count:,} tokens"
        yield finding("eos-beyond-vocabulary", "the end of an answer is no token of the model", evidence)
    if "tokenizer.chat_template" not in keys:
        yield finding("template-missing", "there is no chat template", "no key tokenizer.chat_template")
