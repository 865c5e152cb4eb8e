"""`verify` against a server that garbles on purpose, and against the real engine, whole and broken."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.conftest import Ran, run_firesteel
from tests.run.garbler import COMPUTER, FAULTS, KEY, MODEL, MUSING, Garbler, serving

from firesteel.edge.http.engine_client import (
    chat,
    complete,
    count_tokens,
    is_healthy,
    metrics,
    offered_models,
)
from firesteel.errors import FiresteelError, UsageError
from firesteel.library import plans
from firesteel.planner.plan import PlanSummary
from firesteel.run.endpoints import base_url
from firesteel.run.service import ServiceSpec
from firesteel.run.verify.after_start import require_passed
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import Expected, expected, read_expected
from firesteel.run.verify.questions import stop_word
from firesteel.run.verify.verify import Verification, VerifyBudget, verify
from firesteel.units import Band
from firesteel.values import plain, replace

EXPECTED = Expected(
    engine="vllm",
    parameters=8_000_000_000,
    context=8192,
    tool_parser="hermes",
    reasoning_parser="qwen3",
    requests={"temperature": 0.7, "top_k": 20},
    drafts="mtp",
    plan=PlanSummary(decode_tokens_per_s=Band(30, 60, 5000), prefill_tokens_per_s=Band(1e5, 1e6, 1e7)),
    kv_tokens=(40_000, 40_000),
)
THOUGHTLESS = replace(EXPECTED, reasoning_parser=None)

CAUGHT_BY: dict[str, set[str]] = {
    "loops": {"no garbage", "recipe's settings"},
    "soup": {"no garbage", "recipe's settings"},
    "empty": {"speaks", "speaks at length", "no garbage", "same twice", "recipe's settings"},
    "broken bytes": {"no garbage", "recipe's settings"},
    "escape codes": {"no garbage", "recipe's settings"},
    "leaks tokens": {"no garbage", "recipe's settings"},
    "ignores stop": {"stop"},
    "ignores max_tokens": {"max_tokens"},
    "stream differs": {"stream equals plain"},
    "usage lies": {"usage", "protocol"},
    "no usage": {"usage"},
    "thinks forever": {"reasoning split"},
    "thoughts in the answer": {"reasoning split", "no thoughts in the answer"},
    "tool call as text": {"tool call"},
    "bad tool arguments": {"tool call"},
    "says 500": {"speaks"},
    "not JSON": {"speaks", "no garbage"},
    "stalls": {"speaks"},
    "breaks off": {"speaks at length", "stream equals plain", "reasoning split", "JSON"},
    "endless": {"speaks"},
    "loses the needle": {"long prompt"},
    "garbage after long prompts": {"long prompt"},
    "wrong facts": {"2+2", "facts"},
    "drafts nothing right": {"speculation"},
    "small cache": {"KV cache"},
    "slow": {"speed"},
    "NaN": {"no NaN"},
    "open to all": {"key"},
    "refuses settings": {"recipe's settings"},
    "no grammar": {"JSON"},
}


async def prove(garbler: Garbler, expectations: Expected, budget: VerifyBudget | None = None) -> Verification:
    async with serving(garbler) as url:
        async for item in verify(url, MODEL, expectations, key=garbler.key, budget=budget):
            if isinstance(item, Verification):
                return item
    raise AssertionError("verify ends with the proof")


def failed(verification: Verification) -> set[str]:
    return {check.name for check in verification.checks if check.fails_launch}


@pytest.mark.parametrize("key", [None, KEY])
@pytest.mark.parametrize(
    "expectations", [EXPECTED, THOUGHTLESS, Expected()], ids=["all", "no thoughts", "nothing"]
)
async def test_a_good_server_passes_all_checks(expectations: Expected, key: str | None) -> None:
    thinks = expectations.reasoning_parser is not None
    verification = await prove(Garbler(drafts=True, key=key, parses_thoughts=thinks), expectations)
    assert failed(verification) == set() and verification.is_good
    assert all(check.observed for check in verification.checks)
    if expectations.engine:  # the only figure that a fake engine cannot have
        assert {check.name for check in verification.checks if not check.passed} <= {"speed"}


NOTED_BY: dict[str, set[str]] = {
    "different each time": {"same twice"},
    "other language": set(),
    "other script": set(),
}
"""What is reported and fails no start, and what is no fault."""


def test_every_fault_is_in_the_table() -> None:
    assert set(CAUGHT_BY) | set(NOTED_BY) == set(FAULTS)


@pytest.mark.parametrize("fault", NOTED_BY)
async def test_what_may_be_sound_fails_no_start(fault: str) -> None:
    verification = await prove(Garbler(fault, drafts=True), EXPECTED)
    missed = {check.name for check in verification.checks if not check.passed} - {"speed"}
    assert verification.is_good and missed == NOTED_BY[fault], verification.checks


@pytest.mark.parametrize("fault", CAUGHT_BY)
async def test_each_fault_fails_its_check(fault: str) -> None:
    knows_nothing = fault == "wrong facts"
    expectations = THOUGHTLESS if knows_nothing else EXPECTED
    if fault == "slow":
        expectations = replace(expectations, plan=PlanSummary(decode_tokens_per_s=Band(1000, 2000, 4000)))
    garbler = Garbler(
        fault, drafts=True, key=KEY if fault == "open to all" else None, parses_thoughts=not knows_nothing
    )
    slow = fault in ("stalls", "endless")
    verification = await prove(garbler, expectations, VerifyBudget(60, 1 if slow else 30))
    assert not verification.is_good
    assert failed(verification) == CAUGHT_BY[fault], verification.checks


async def test_a_failed_note_does_not_fail_the_verification() -> None:
    small = replace(THOUGHTLESS, parameters=135_000_000)
    verification = await prove(Garbler("wrong facts", drafts=True, parses_thoughts=False), small)
    assert verification.is_good
    assert {"2+2", "facts"} <= {check.name for check in verification.checks if not check.passed}


async def test_no_more_requests_to_a_server_that_does_not_answer() -> None:
    garbler = Garbler("stalls")
    verification = await prove(garbler, EXPECTED, VerifyBudget(60, 1))
    assert [check.name for check in verification.checks] == ["speaks"]
    assert "stopped answering" in verification.checks[0].observed
    assert len(garbler.asked) == 1


async def test_checks_after_the_time_limit_are_skipped_and_named() -> None:
    garbler = Garbler(drafts=True)
    verification = await prove(garbler, EXPECTED, VerifyBudget(total_s=0))
    assert garbler.asked == [] and verification.is_good
    left_out = [check for check in verification.checks if "the time limit was reached" in check.observed]
    assert len(left_out) >= 8 and all(check.level == "note" for check in left_out)


async def test_the_recipes_settings_are_sent() -> None:
    garbler = Garbler(drafts=True)
    await prove(garbler, replace(EXPECTED, tool_requests={"temperature": 0.6}))
    assert any(body.get("top_k") == 20 and body["temperature"] == 0.7 for body in garbler.asked)
    assert [body["temperature"] for body in garbler.asked if body.get("tool_choice") == "auto"] == [0.6]
    plain = [
        body for body in garbler.asked if "top_k" not in body and "seed" not in body and not body.get("tools")
    ]
    assert all(body["temperature"] == 0 for body in plain)


async def test_the_long_prompt_is_long_and_different_each_time() -> None:
    garbler = Garbler(drafts=True)
    await prove(garbler, EXPECTED)
    await prove(garbler, EXPECTED)
    long = [body["messages"][-1]["content"] for body in garbler.asked if "What is the password" in str(body)]
    assert len(long) == 2 and long[0][:40] != long[1][:40]
    assert all(0.9 < len(text.split()) / (8192 * 3 // 4) < 1.1 for text in long)


async def test_kernels_are_compared_with_the_log() -> None:
    log = (
        "INFO [cuda.py:507] Using TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN'].\n"
        "INFO [nvfp4.py:242] Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['MARLIN'].\n"
    )
    asked = replace(EXPECTED, kernels={"moe-backend": "marlin", "attention-backend": "flashinfer"})
    async with serving(Garbler(drafts=True)) as url:
        found = {
            item.name: item
            async for item in verify(url, MODEL, asked, read_log=lambda: log)
            if isinstance(item, CheckResult)
        }
    assert found["moe-backend"].passed and "MARLIN" in found["moe-backend"].observed
    assert not found["attention-backend"].passed and found["attention-backend"].level == "note"


def named(verification: Verification, name: str) -> CheckResult:
    return next(check for check in verification.checks if check.name == name)


async def test_the_stop_word_comes_from_the_answer_not_from_the_thoughts() -> None:
    """Engines look for `stop` in the content alone (gpt-oss: "check" was in the thoughts)."""
    garbler = Garbler(drafts=True, parses_thoughts=False, thoughts=40)
    verification = await prove(garbler, THOUGHTLESS)
    stop = named(verification, "stop")
    assert verification.is_good and stop.passed and stop.level == "gate" and "ended before" in stop.observed
    (word,) = next(body["stop"] for body in garbler.asked if "stop" in body)
    assert word in COMPUTER and word not in MUSING
    ignores = await prove(Garbler("ignores stop", parses_thoughts=False, thoughts=40), THOUGHTLESS)
    assert named(ignores, "stop").fails_launch


async def test_an_answer_of_thoughts_has_no_stop_word() -> None:
    garbler = Garbler(parses_thoughts=False, thoughts=128)
    stop = named(await prove(garbler, replace(THOUGHTLESS, context=None)), "stop")
    assert stop.passed and stop.level == "note" and "thoughts" in stop.observed
    assert not any("stop" in body for body in garbler.asked)


async def test_the_answer_of_a_thinking_model_is_shown() -> None:
    verification = await prove(Garbler(drafts=True, parses_thoughts=False, thoughts=40), THOUGHTLESS)
    assert named(verification, "2+2").observed == '"The answer is 4."'
    assert named(verification, "speaks").observed == '"The answer is 4."'
    assert "mango-" in named(verification, "long prompt").observed


@pytest.mark.parametrize("answers", [0, 1, 2, 4])
async def test_a_server_that_stops_answering_is_not_called_wrong(answers: int) -> None:
    verification = await prove(Garbler(drafts=True, answers=answers), EXPECTED)
    assert not verification.is_good and verification.is_unanswered, verification.checks
    assert (
        verification.checks[-1].cause == "silent" and "stopped answering" in verification.checks[-1].observed
    )


@pytest.mark.parametrize(
    ("fault", "cause", "unanswered"),
    [
        ("stalls", "silent", True),
        ("says 500", "refused", False),
        ("refuses settings", "refused", False),
        ("not JSON", "wrong", False),
        ("soup", "wrong", False),
    ],
)
async def test_causes_of_failure(fault: str, cause: str, unanswered: bool) -> None:
    verification = await prove(Garbler(fault, drafts=True), EXPECTED, VerifyBudget(60, 1))
    assert {check.cause for check in verification.checks if check.fails_launch} == {cause}
    assert verification.is_unanswered is unanswered


@pytest.mark.parametrize(
    ("checks", "says"),
    [
        (
            [
                CheckResult("speaks", True, "4"),
                CheckResult("stop", False, "the engine stopped answering: X", cause="silent"),
            ],
            "came up, and then stopped answering: X (stop); it was stopped",
        ),
        (
            [CheckResult("speaks", False, "the engine answered HTTP 500: oops", cause="refused")],
            "came up, but answers with errors (speaks: the engine answered HTTP 500: oops); it was stopped",
        ),
        (
            [
                CheckResult("2+2", False, '"5"'),
                CheckResult("stop", False, "the engine stopped answering", cause="silent"),
            ],
            'came up, but its answers are wrong (2+2: "5"; stop: the engine stopped answering)',
        ),
    ],
)
def test_up_names_the_cause_of_failure(checks: list[CheckResult], says: str) -> None:
    spec = ServiceSpec("one", "http://127.0.0.1:9", "one", ("x",))
    with pytest.raises(FiresteelError) as caught:
        require_passed(spec, Verification(tuple(checks)))
    assert caught.value.what.startswith(f"{spec.name} {says}")
    require_passed(spec, Verification((CheckResult("facts", False, "2 of 3", "note"),)))


def test_the_stop_word_does_not_occur_earlier() -> None:
    text = "The machine runs. The machine that computes is a computer, and the machine is on."
    word = stop_word(text)
    assert word is not None and text.find(word) >= len(text) // 8
    assert stop_word("") is None is stop_word("a b c d")
    assert stop_word("Somewhere is a thing") == "thing"  # never half a word


async def test_http_errors_are_sentences() -> None:
    async with serving(Garbler(key=KEY)) as url:
        assert await is_healthy(url)
        with pytest.raises(FiresteelError, match="HTTP 401"):
            await chat(url, MODEL, "What is 2+2?", max_tokens=8)
        answer = await chat(url, MODEL, "What is 2+2?", max_tokens=8, key=KEY)
        whole = await chat(url, MODEL, "What is 2+2?", max_tokens=8, stream=False, key=KEY)
        assert answer.text == whole.text == "The answer is 4." and answer.completion_tokens == 4
        assert await count_tokens(url, MODEL, "one two three", key=KEY) == 3
        assert await count_tokens(url, MODEL, "one two three") is None is await metrics(url)
        assert [row["id"] for row in await offered_models(url, key=KEY)] == [MODEL]
        with pytest.raises(FiresteelError, match="HTTP 404"):
            await complete(url, MODEL, "Once", max_tokens=4, key=KEY)
    assert not await is_healthy(url)
    with pytest.raises(FiresteelError, match="stopped answering"):
        await chat(url, MODEL, "What is 2+2?", max_tokens=8)


async def test_a_tokenizer_that_fails_is_asked_once() -> None:
    """SGLang 0.5.16 answers 500 with a traceback in its log where a tokenizer has no limit of its own."""
    garbler = Garbler(fault="no tokenizer", parses_thoughts=False)
    assert not failed(await prove(garbler, Expected()))
    assert garbler.tokenized == 1


def test_expectations_survive_a_round_trip() -> None:
    for proposal in plans.models("gb10"):
        made = expected(proposal)
        assert read_expected(json.loads(json.dumps(plain(made)))) == made
    assert read_expected({"parameters": "many"}) == Expected()


def test_expectations_follow_the_recipe() -> None:
    made = expected(plans.plan("qwen3.6-27b-nvfp4-unsloth-mtp", host_name="gb10")[0])
    assert (made.size, made.tool_parser, made.reasoning_parser) == ("able", "qwen3_coder", "qwen3")
    assert made.drafts == "mtp" and made.plan.drafted and made.kv_tokens and not made.is_cpu
    small = expected(plans.plan("smollm2")[0])
    assert small.size == "tiny" and small.is_cpu and small.context == 4096 and small.drafts is None
    oss = expected(plans.plan("gpt-oss-120b", host_name="gb10")[0])
    assert oss.requests == {"temperature": 1.0, "top_p": 1.0} and oss.parameters and oss.parameters > 1e11


async def command(url: str, *arguments: str, env: dict[str, str] | None = None, home: Path) -> Ran:
    """The program itself, beside the server that runs in this loop."""
    none = {"FIRESTEEL_API_KEY": "", "OPENAI_API_KEY": ""}
    return await asyncio.to_thread(
        run_firesteel, home, "verify", "--url", url, *arguments, env={**none, **(env or {})}
    )


async def test_any_endpoint_can_be_verified_from_the_command_line(tmp_path: Path) -> None:
    async with serving(Garbler(key=KEY, parses_thoughts=False)) as url:
        good = await command(f"{url}/v1/", "--json", env={"FIRESTEEL_API_KEY": KEY}, home=tmp_path)
        assert good.code == 0, good.err + good.out
        rows = {check["name"]: check for check in good.json["checks"]}
        assert rows["key"]["passed"] and rows["key"]["level"] == "gate" and rows["speed"]["level"] == "note"
        without = await command(url, home=tmp_path)
        assert without.code == 5 and "asks for a key (HTTP 401)" in without.err
        wrong = await command(url, env={"OPENAI_API_KEY": "wrong"}, home=tmp_path)
        assert wrong.code == 5 and "rejects the key" in wrong.err
        assert "wrong\n" not in wrong.err
    gone = await command(url, home=tmp_path)
    assert gone.code == 5 and "does not answer" in gone.err


async def test_a_restart_is_verified_as_the_start_was(tmp_path: Path) -> None:
    """vLLM without a working grammar backend answers HTTP 500 to a request for JSON. `up` accepts it, with a
    note; a gate that only the supervisor had would end the service at its first restart."""
    async with serving(Garbler("no grammar", parses_thoughts=False)) as url:
        started = await command(url, "--as-started", "--json", home=tmp_path)
        assert started.code == 0, started.err
        (noted,) = (check for check in started.json["checks"] if check["name"] == "JSON")
        assert (noted["passed"], noted["level"]) == (False, "note") and "HTTP 500" in noted["observed"]
        assert (await command(url, home=tmp_path)).code == 1


async def test_a_deep_run_asks_for_long_answers_by_all_users_and_about_a_full_context(tmp_path: Path) -> None:
    garbler = Garbler(parses_thoughts=False)
    async with serving(garbler) as url:
        ran = await command(url, "--deep", "--json", home=tmp_path)
    assert ran.code == 0, ran.err + ran.out
    assert {"long answers", "all users", "whole context"} <= {check["name"] for check in ran.json["checks"]}
    assert sum(body["max_tokens"] == 512 for body in garbler.asked) >= 8 + 2
    asked = {str(body["messages"][-1]["content"])[-200:] for body in garbler.asked}
    assert sum("What is the password" in text for text in asked) >= 3


async def test_the_exit_code_distinguishes_silence_from_wrong_answers(tmp_path: Path) -> None:
    """Whoever restarts services must know which it was."""
    async with serving(Garbler(answers=3, parses_thoughts=False)) as url:
        killed = await command(url, home=tmp_path)
    assert killed.code == 5 and "stopped answering" in killed.err, killed.err
    assert "speaks" in killed.out and "FAILED" in killed.out
    async with serving(Garbler(answers=3, parses_thoughts=False)) as url:
        ran = await command(url, "--json", home=tmp_path)
    assert ran.code == 5 and ran.json["document"] == "firesteel.error/1" and ran.json["exit_code"] == 5
    async with serving(Garbler("loops", parses_thoughts=False)) as url:
        wrong = await command(url, home=tmp_path)
    assert wrong.code == 1 and "FAILED" in wrong.out


async def test_model_output_is_printed_safely(tmp_path: Path) -> None:
    """Neither its terminal codes nor what looks like our own marks reach the screen."""
    async with serving(Garbler("escape codes", parses_thoughts=False)) as url:
        ran = await command(url, home=tmp_path)
    assert ran.code == 1 and "FAILED" in ran.out and "U+001B" in ran.out and "\x1b" not in ran.out


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "",
        "file:///etc/passwd",
        "http://user:secret@127.0.0.1:1/v1",
        "http://127.0.0.1:99999/v1",
        "http://[::1/v1",
        "http://127.0.0.1:1/v1?model=x",
    ],
)
def test_invalid_addresses(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        base_url(url)
    assert caught.value.next and "secret" not in caught.value.what


def test_addresses() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/"):
        assert base_url(url) == "http://h:1"
    assert base_url("https://host/api/v1") == "https://host/api"


def test_invalid_arguments(tmp_path: Path) -> None:
    ran = run_firesteel(tmp_path, "verify", "name", "--url", "http://127.0.0.1:1/v1")
    assert ran.code == 2 and "next:" in ran.err
