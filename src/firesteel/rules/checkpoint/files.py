"""Checks of files: are they whole, do they hold what the index promises, and do tokenizer and chat template
fit the weights?
"""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.facts.model.tensors import Role
from firesteel.rules.checkpoint.audited import AuditedCheckpoint
from firesteel.rules.checkpoint.checks import CheckpointFinding, finding

_DEFECTS = {
    "missing": "shard-missing",
    "pointer": "shard-is-a-pointer",
    "damaged": "shard-damaged",
    "truncated": "shard-truncated",
    "too long": "shard-too-long",
    "wrong size": "size-differs-from-hub",
    "wrong digest": "digest-differs",
}


def check_files(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    contents = checkpoint.contents
    for file in contents.files:
        if file.defect:
            yield finding(_DEFECTS[file.defect], file.why, file.why, file.name)
    if contents.format == "gguf":
        return
    if contents.index_defect:
        yield finding("index-damaged", "the index of the files cannot be read", contents.index_defect)
    weights = [file for file in contents.files if file.is_listed]
    if contents.index is None and not contents.index_defect and len(weights) > 1:
        evidence = f"{len(weights)} files and no model.safetensors.index.json"
        yield finding("index-missing", "there are several files and no index of them", evidence)
    for file in contents.files:
        if not file.is_listed and not file.name.startswith("consolidated"):
            evidence = f"{file.bytes:,} bytes, {len(file.tensors):,} tensors"
            yield finding("file-not-in-index", f"{file.name} is in no index", evidence, file.name)
    yield from _placed(checkpoint)


def _placed(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    """Each tensor where the index has it, and once."""
    contents = checkpoint.contents
    holder: dict[str, str] = {}
    twice: list[tuple[str, str]] = []
    for file in contents.files:
        for tensor in file.tensors if file.is_listed else ():
            if tensor.name in holder:
                twice.append((tensor.name, file.name))
            holder.setdefault(tensor.name, file.name)
    if twice:
        name, second = twice[0]
        evidence = f"in {holder[name]} and in {second}"
        yield finding("tensor-twice", f"`{name}` is stored twice", evidence, name, len(twice))
    index = contents.index
    if index is None:
        return
    unreadable = {file.name for file in contents.files if file.defect in ("missing", "pointer", "damaged")}
    absent = [name for name, file in index.items() if name not in holder and file not in unreadable]
    if absent:
        evidence = f"the index expects it in {index[absent[0]]}"
        what = f"the index promises `{absent[0]}`, which no file holds"
        yield finding("index-promises-absent-tensor", what, evidence, absent[0], len(absent))
    moved = [
        name for name, file in index.items() if holder.get(name, file) != file and name not in dict(twice)
    ]
    if moved:
        name = moved[0]
        evidence = f"the index expects it in {index[name]}, it is in {holder[name]}"
        yield finding(
            "index-names-wrong-file",
            f"`{name}` is in another file than the index has",
            evidence,
            name,
            len(moved),
        )
    unlisted = [name for name in holder if name not in index]
    if unlisted:
        evidence = f"it is in {holder[unlisted[0]]}"
        yield finding(
            "tensor-not-in-index", f"`{unlisted[0]}` is in no index", evidence, unlisted[0], len(unlisted)
        )
    total = contents.index_bytes
    if total is not None and contents.has_all_files and not (absent or unlisted or twice):
        stored = sum(tensor.bytes for tensor in checkpoint.tensors())
        if total != stored:
            evidence = f"total_size {total:,}, and the files hold {stored:,}"
            yield finding("index-total-differs", "the index has a wrong total", evidence)


def check_tokenizer(checkpoint: AuditedCheckpoint) -> Iterator[CheckpointFinding]:
    tokenizer = checkpoint.contents.tokenizer
    if tokenizer is None:
        return
    if not tokenizer.files:
        evidence = "neither tokenizer.json nor tokenizer.model, vocab.json or tekken.json"
        yield finding("tokenizer-missing", "there is no tokenizer", evidence, "tokenizer.json")
        return
    if tokenizer.defect:
        yield finding("tokenizer-damaged", "the tokenizer cannot be read", tokenizer.defect, "tokenizer.json")
    rows = _rows(checkpoint)
    if rows and tokenizer.highest_id is not None and tokenizer.highest_id >= rows:
        evidence = f"the highest token is {tokenizer.highest_id:,}, and the table has {rows:,} rows"
        what = "the tokenizer has tokens that the embedding table lacks"
        yield finding("tokenizer-beyond-embeddings", what, evidence, "tokenizer.json")
    if not tokenizer.has_template:
        evidence = "no chat_template.jinja, and none in tokenizer_config.json"
        yield finding("template-missing", "there is no chat template", evidence, "chat_template.jinja")
    if tokenizer.templates_differ:
        evidence = "chat_template.jinja and the one in tokenizer_config.json are not the same text"
        yield finding(
            "templates-differ", "there are two different chat templates", evidence, "chat_template.jinja"
        )
    yield from _end(checkpoint, rows)


def _end(checkpoint: AuditedCheckpoint, rows: int | None) -> Iterator[CheckpointFinding]:
    """The tokens that end an answer."""
    tokenizer, generation = checkpoint.contents.tokenizer, checkpoint.contents.generation_config or {}
    ends = _numbers(generation.get("eos_token_id")) or _numbers(checkpoint.text_config.get("eos_token_id"))
    if rows and any(end >= rows for end in ends):
        evidence = f"eos_token_id {max(ends):,}, and the table has {rows:,} rows"
        yield finding("eos-beyond-vocabulary", "the end of an answer is no token of the model", evidence)
    if tokenizer and tokenizer.has_template and not ends and tokenizer.eos is None:
        evidence = "no eos_token_id in generation_config.json or config.json, no eos_token in the tokenizer"
        yield finding("eos-missing", "no file says which token ends an answer", evidence)
    if tokenizer and ends and tokenizer.eos_id is not None and tokenizer.eos_id not in ends:
        own = f"the tokenizer's `{str(tokenizer.eos)[:40]}` is {tokenizer.eos_id}"
        evidence = f"{own}, eos_token_id is {sorted(ends)}"
        yield finding("eos-differs", "the tokenizer ends answers with another token", evidence)


def _numbers(value: object) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(number for number in values if type(number) is int)


def _rows(checkpoint: AuditedCheckpoint) -> int | None:
    for module in checkpoint.representatives:
        if module.role is Role.EMBEDDINGS and module.name.endswith(
            ("embed_tokens", "wte", "word_embeddings", "embed")
        ):
            return module.shape[0] if module.shape else None
    return checkpoint.whole_number("vocab_size")
