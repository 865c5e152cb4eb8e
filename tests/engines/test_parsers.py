"""Tool-call and reasoning parsers: what vLLM's and SGLang's own code reads (`scripts/record-parsers`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.rules.model_flags import CALL_FORMATS, PARSER_FORMATS, THOUGHT_PARSERS

FOLDER = Path(__file__).with_name("parsers")
RECORDS: dict[str, dict[str, Any]] = {
    path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))
}
KNOWN_FAULTS = {
    ("sglang", "gemma4", "parallel", 1): "streamed in small pieces, the two calls run together",
    ("vllm", "gemma4", "nested", 0): "numbers in an object without a schema become text",
    ("vllm", "gemma4", "nested", 1): "the same, streamed",
    ("sglang", "llama3", "text before", 0): "a call must begin the answer",
    ("sglang", "llama3", "text before", 1): "the same, streamed",
    ("vllm", "llama3_json", "text before", 1): "a call must begin the answer",
}
OWN = {
    "glm47": "glm", "gemma4": "gemma4", "llama3": "llama3-json", "llama3_json": "llama3-json",
    "mistral": "mistral", "poolside_v1": "poolside", **PARSER_FORMATS,
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_every_parser_reads_the_calls_of_its_format(name: str) -> None:
    record = RECORDS[name]
    for parser, formats in record["parsers"].items():
        for case, results in formats[OWN[parser]].items():
            for at, result in enumerate(results):
                # vLLM's server completes a streamed Mistral call at its end, which is not replayed.
                is_open = (record["engine"], parser, at) == ("vllm", "mistral", 1)
                known = (record["engine"], parser, case, at) in KNOWN_FAULTS or is_open
                assert (result == "ok") != known, (parser, case, at, result)


@pytest.mark.parametrize("name", RECORDS)
def test_parsers_of_the_rule_read_one_of_its_formats_alone(name: str) -> None:
    for parser, formats in RECORDS[name]["parsers"].items():
        if parser in PARSER_FORMATS:
            # Whole and streamed: `llama3_json` finds a call of Qwen's in a whole answer only.
            reads = {form for form in CALL_FORMATS if set(formats[form]["one"]) == {"ok"}}
            assert reads == {PARSER_FORMATS[parser]} & CALL_FORMATS.keys(), parser


def test_every_tool_parser_of_a_recipe_was_run() -> None:
    run = {parser for record in RECORDS.values() for parser in record["parsers"]}
    named = {
        str(recipe.flags["tool-call-parser"].value)
        for recipe in shipped().recipes.values()
        if "tool-call-parser" in recipe.flags
    }
    assert named - run == {"openai", "gpt-oss"}  # Harmony, the protocol of gpt-oss alone


@pytest.mark.parametrize("name", RECORDS)
def test_every_reasoning_parser_reads_its_notation_alone(name: str) -> None:
    """Thoughts and answers are kept apart, whole and streamed, but for an answer without thoughts that
    DeepSeek-R1's parser takes for one: that model always thinks."""
    for parser, notations in RECORDS[name]["reasoning"].items():
        for notation, cases in notations.items():
            is_own = notation.startswith(THOUGHT_PARSERS[parser])
            read = {case for case, results in cases.items() if results == ["ok", "ok"]}
            if not is_own:
                assert read <= {"answer alone", "cut off"}, (parser, notation)
            elif parser in ("deepseek_r1", "deepseek-r1"):
                assert cases.keys() - read == {"answer alone"}
            else:
                assert cases.keys() == read, (parser, notation)


def test_every_reasoning_parser_of_a_recipe_was_run() -> None:
    run = {parser for record in RECORDS.values() for parser in record["reasoning"]}
    named = {
        str(recipe.flags["reasoning-parser"].value)
        for recipe in shipped().recipes.values()
        if "reasoning-parser" in recipe.flags
    }
    assert named - run == {"nano_v3", "gpt-oss"}  # a plugin of the model's repository, and Harmony
