"""What the files of a tokenizer say: the highest token, the token that ends an answer, the chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping

from firesteel.facts.model.checkpoint_contents import TokenizerFacts

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "tiktoken.model", "vocab.txt",
    "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip


def read_tokenizer(files: frozenset[str], texts: Mapping[str, str]) -> TokenizerFacts:
    """`texts`: the contents of tokenizer.json, tokenizer_config.json and the chat template, where there."""
    parsed: dict[str, Mapping[str, object]] = {}
    defect = ""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.json"):
        if name not in texts:
            continue
        try:
            value = json.loads(texts[name])
        except (ValueError, RecursionError) as error:
            defect = f"{name} is not JSON: {str(error)[:120]}"
            continue
        if isinstance(value, dict):
            parsed[name] = value
    config = parsed.get("tokenizer_config.json", {})
    ids = _ids(parsed.get("tokenizer.json", {}), config)
    own = _template(config) or _template(parsed.get("chat_template.json", {}))
    beside = texts.get("chat_template.jinja")
    eos = _token_text(config.get("eos_token"))
    return TokenizerFacts(
        files,
        defect,
        highest_id=max(ids.values(), default=None),
        eos=eos,
        eos_id=ids.get(eos) if eos else None,
        has_template=bool(own or beside),
        templates_differ=bool(own and beside and own.strip() != beside.strip()),
    )


def _ids(tokenizer: Mapping[str, object], config: Mapping[str, object]) -> dict[str, int]:
    """Token -> id."""
    ids: dict[str, int] = {}
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, Mapping) else None
    if isinstance(vocabulary, Mapping):
        ids = {str(token): number for token, number in vocabulary.items() if type(number) is int}
    elif isinstance(vocabulary, list):  # a unigram model lists pairs of token and score
        ids = {f"#{number}": number for number in range(len(vocabulary))}
        ids |= {
            str(pair[0]): number for number, pair in enumerate(vocabulary) if isinstance(pair, list) and pair
        }
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, Mapping) and type(number := token.get("id")) is int:
            ids[str(token.get("content"))] = number
    decoder = config.get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, Mapping) else ():
        if str(number).isdecimal() and isinstance(token, Mapping):
            ids.setdefault(str(token.get("content")), int(str(number)[:12]))
    return ids


def _template(config: Mapping[str, object]) -> str | None:
    value = config.get("chat_template")
    if isinstance(value, str):
        return value
    if isinstance(value, list):  # several, of which `default` is used
        for entry in value:
            if isinstance(entry, Mapping) and entry.get("name") == "default":
                return str(entry.get("template"))
    return None


def _token_text(value: object) -> str | None:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
