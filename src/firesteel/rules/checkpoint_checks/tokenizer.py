"""Checks of the tokenizer and the chat template against the weights."""

from __future__ import annotations

from collections.abc import Iterator

from firesteel.facts.model.tensors import Role
from firesteel.rules.checkpoint_checks.checks import CheckpointFinding, finding
from firesteel.rules.checkpoint_checks.subject import AuditSubject


def check_tokenizer(subject: AuditSubject) -> Iterator[CheckpointFinding]:
    tokenizer = subject.contents.tokenizer
    if tokenizer is None:
        return
    if not tokenizer.files:
        evidence = "neither tokenizer.json nor tokenizer.model, vocab.json or tekken.json"
        yield finding("tokenizer-missing", "there is no tokenizer", evidence, "tokenizer.json")
        return
    if tokenizer.defect:
        yield finding("tokenizer-damaged", "the tokenizer cannot be read", tokenizer.defect, "tokenizer.json")
    rows = _rows(subject)
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
    yield from _end(subject, rows)


def _end(subject: AuditSubject, rows: int | None) -> Iterator[CheckpointFinding]:
    """The tokens that end an answer."""
    tokenizer, generation = subject.contents.tokenizer, subject.contents.generation_config or {}
    ends = _numbers(generation.get("eos_token_id")) or _numbers(subject.text_config.get("eos_token_id"))
    if rows and any(end >= rows for end in ends):
        evidence = f"eos_token_id {max(ends):,}, and the table has {rows:,} rows"
        yield finding("eos-beyond-vocabulary", "the end of an answer is no token of the model", evidence)
    if tokenizer and ends and tokenizer.eos_id is not None and tokenizer.eos_id not in ends:
        own = f"the tokenizer's `{str(tokenizer.eos)[:40]}` is {tokenizer.eos_id}"
        evidence = f"{own}, eos_token_id is {sorted(ends)}"
        yield finding("eos-differs", "the tokenizer ends answers with another token", evidence)


def _numbers(value: object) -> frozenset[int]:
    values = value if isinstance(value, list) else [value]
    return frozenset(number for number in values if type(number) is int)


def _rows(subject: AuditSubject) -> int | None:
    for module in subject.representatives:
        if module.role is Role.EMBEDDINGS and module.name.endswith(
            ("embed_tokens", "wte", "word_embeddings", "embed")
        ):
            return module.shape[0] if module.shape else None
    return subject.whole_number("vocab_size")
