"""The judgements behind `verify`, on answers as real and broken engines give them.

Later answers to a prompt against the first ones: what is the same, what differs, what is broken.
"""

from __future__ import annotations

from typing import Any

import pytest

from firesteel.edge.http.answer import Answer, ToolCall
from firesteel.engines.metrics import PrometheusSample, parse
from firesteel.planner.plan import PlanSummary
from firesteel.run.verify import checks, engine_checks
from firesteel.run.verify.checks import CheckResult
from firesteel.run.verify.expected import Expected, Size
from firesteel.units import Band
from firesteel.values import replace


def answer(text: str, finish: str | None = "stop", tokens: int | None = 12, **more: Any) -> Answer:
    return Answer(text, finish, 30, tokens, 0.1, 0.5, **more)


def call(arguments: str, name: str = "get_weather", finish: str = "tool_calls") -> Answer:
    return answer("", finish, tool_calls=(ToolCall(name, arguments, id="call_1"),))


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        (answer("The answer to this classic math problem is 4."), True),
        (answer("", finish="length", reasoning="Two and two"), True),
        (answer("", reasoning="Two and two"), False),
        (answer("4", finish="eos_token"), True),
        (answer("4", finish="end_turn"), True),
        (answer("4", finish="max_tokens"), True),
        (answer("2+2 = **4**", finish="length"), True),
        (call('{"city": "Paris"}'), True),
        (answer(""), False),
        (answer("  \n"), False),
        (answer("4", finish=None), False),
        (answer("4", finish="abort"), False),
        (answer("4", tokens=None), True),
        (answer("4", is_whole=False), False),
    ],
)
def test_answered(given: Answer, passes: bool) -> None:
    assert checks.answered([answer("fine"), given]).passed is passes


@pytest.mark.parametrize(
    ("text", "size", "fails"),
    [
        ("It is 4.", "tiny", False),
        ("Four, of course.", "able", False),
        ("The answer is 42.", "tiny", False),
        ("The answer is 42.", "unknown", True),
        ("The answer is 42.", "able", True),
    ],
)
def test_arithmetic(text: str, size: Size, fails: bool) -> None:
    assert checks.arithmetic(answer(text), size).fails_launch is fails


def test_the_answer_counts_rather_than_the_thoughts() -> None:
    wrong_answer = answer("It is 5.", reasoning="Two and two are 4.")
    wrong = checks.arithmetic(wrong_answer, "able")
    assert wrong.fails_launch and wrong.observed == '"It is 5."'
    assert (
        checks.arithmetic(answer("It is 4.", reasoning="Let me add them."), "able").observed == '"It is 4."'
    )
    only = checks.arithmetic(answer("", "length", reasoning="Two and two are 4."), "able")
    assert only.passed and only.observed == 'in its thoughts: "Two and two are 4."'
    cut = checks.arithmetic(answer("The sum of", "length", reasoning="Two and two are 4."), "able")
    assert cut.passed and cut.observed == 'in its thoughts: "Two and two are 4."'
    facts = checks.facts({"a": (answer("warm", reasoning="Hm, cold?"), "cold")}, "able")
    assert facts.fails_launch and '"warm"' in facts.observed
    needle = checks.long_prompt(answer("mango-7", reasoning="I look for it."), "mango-7", "able")
    assert needle.passed and needle.observed.endswith('tokens: "mango-7"')


def test_an_incomplete_stream_is_not_a_wrong_answer() -> None:
    assert checks.answered([answer("A comp", None, is_whole=False)]).cause == "silent"
    assert checks.answered([answer("", None, is_whole=False)]).cause == "wrong"
    assert checks.answered([answer("")]).cause == "wrong"


def test_one_wrong_fact_is_allowed() -> None:
    right, wrong = (answer("cold"), "cold"), (answer("warm"), "cold")
    assert checks.facts({"a": right, "b": right, "c": wrong}, "able").passed
    two = checks.facts({"a": right, "b": wrong, "c": wrong}, "able")
    assert two.fails_launch and "1 of 3 right" in two.observed and '"warm"' in two.observed
    assert not checks.facts({"a": wrong, "b": wrong}, "tiny").fails_launch
    assert checks.facts({"a": wrong}, "able").fails_launch


def test_deterministic() -> None:
    assert checks.deterministic(answer("A computer is"), answer("A computer is")).passed
    differing = checks.deterministic(answer("A computer is"), answer("A compiler is"))
    assert not differing.passed and "character 6" in differing.observed
    assert not checks.deterministic(answer(""), answer("")).passed
    assert not checks.deterministic(answer("A computer"), answer("A computer is")).passed
    long = "A computer is a device. " * 9
    late = checks.deterministic(answer(long + "It hums."), answer(long + "It sings."))
    assert late.passed and "equal for 219 characters, then not" in late.observed
    thoughts = checks.deterministic(answer("x", reasoning="one"), answer("x", reasoning="two"))
    assert not thoughts.passed
    begins = "A computer is a device that "
    new, cached, other = answer(begins + "counts"), answer(begins + "adds"), answer("A cat is")
    assert checks.deterministic(new, cached, (cached, cached)).passed, "the first alone, of a new prompt"
    assert not checks.deterministic(new, cached, (cached, other)).passed
    assert not checks.deterministic(new, cached, (new, cached)).passed
    elsewhere = answer("Volcanoes erupt when magma rises.")
    assert not checks.deterministic(new, elsewhere, (elsewhere, elsewhere)).passed, (
        "another text in the cache"
    )
    assert checks.deterministic(new, answer(""), (answer(""), answer(""))).fails_launch


def test_a_broken_stream_is_distinguished_from_a_nondeterministic_engine() -> None:
    one, other = answer("A computer is"), answer("A compiler is")
    assert checks.stream_matches_plain(one, one, None).passed
    assert checks.stream_matches_plain(one, other, (one, other)).fails_launch
    restless = checks.stream_matches_plain(one, other, (answer("A cat is"), other))
    assert restless.passed and restless.level == "note"


def test_a_chunk_lost_late_in_a_stream_is_found() -> None:
    long = "A computer is a device. " * 20
    plain, streamed = answer(f"{long}It hums and sings."), answer(f"{long}It hums sings.")
    lost = checks.stream_matches_plain(streamed, plain, (streamed, plain))
    assert lost.fails_launch and "differs at character 488, twice" in lost.observed
    wavering = checks.stream_matches_plain(streamed, plain, (plain, streamed))
    assert wavering.passed and "equal for 488 characters, then it wavers" in wavering.observed


def test_space_around_an_answer_is_no_difference() -> None:
    assert checks.has_same_text(answer("\n\nA computer"), answer("A computer\n"))
    assert checks.has_same_text(answer("A caf\ufffd"), answer("A caf"))
    assert not checks.has_same_text(answer("A computer"), answer("A  computer"))


@pytest.mark.parametrize(
    ("given", "fails"),
    [
        (answer("A computer is a ", "stop"), False),
        (answer("A computer is a machine that", "stop"), True),
        (answer("A cat sat there", "length"), False),
        (answer("A computer is a ", "stop", reasoning="They mean a machine."), False),
    ],
)
def test_stop(given: Answer, fails: bool) -> None:
    assert checks.stop_sequence(given, "machine").fails_launch is fails


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        (answer("A computer is a", "length", 4), True),
        (answer("Hi.", "stop", 2), True),
        (answer("A computer is a machine", "length", 5), False),
        (answer("A computer is a", "stop", 4), False),
        (answer("word " * 60, "length", 4), False),
        (answer("A computer", "length", None), True),
        (answer("A computer is a", "max_tokens", 4), True),
        (answer("Hi.", "end_turn", 2), True),
    ],
)
def test_max_tokens(given: Answer, passes: bool) -> None:
    assert checks.max_tokens(given, 4).passed is passes


@pytest.mark.parametrize(
    ("reported", "counted", "passes"),
    [(100, 100, True), (101, 100, True), (110, 100, True), (60, 100, False), (129, 100, False),
     (30, None, True), (1, None, False), (128, None, True)],
)  # fmt: skip
def test_usage(reported: int, counted: int | None, passes: bool) -> None:
    assert checks.usage(answer("word " * 40, "length", reported), counted, 128).passed is passes


@pytest.mark.parametrize(
    ("given", "passes", "fails"),
    [
        (call('{"city": "Paris"}'), True, False),
        (call('{"city": "Paris, France"}'), True, False),
        (call('{"city": "Paris"'), False, True),
        (call('{"town": "Paris"}'), False, True),
        (call('["Paris"]'), False, True),
        (call('{"city": "Rome"}'), False, True),
        (call('{"city": "Paris"}', name="weather"), False, True),
        (call('{"city": "Paris"}', finish="stop"), False, False),
        (answer("", "tool_calls", tool_calls=(ToolCall("get_weather", '{"city": "Paris"}'),)), False, False),
        (answer("", "tool_calls", tool_calls=2 * call('{"city": "Paris"}').tool_calls), False, False),
        (answer('<tool_call>{"name": "get_weather"}</tool_call>'), False, True),
        (answer("<|python_start|>get_weather"), False, True),
        (answer("It is sunny in Paris."), False, True),
    ],
)
def test_tool_call(given: Answer, passes: bool, fails: bool) -> None:
    check = checks.tool_call(given, "able")
    assert (check.passed, check.fails_launch) == (passes, fails)


def test_a_small_model_need_not_call_but_must_not_call_in_text() -> None:
    assert not checks.tool_call(answer("It is sunny."), "tiny").fails_launch
    assert checks.tool_call(answer("<tool_call>..."), "tiny").fails_launch


def test_reasoning_split() -> None:
    good = answer("It is 204.", reasoning="Ten times 17 is 170.")
    assert checks.reasoning_split(good, False).passed
    assert checks.reasoning_split(answer("<think>Hm.</think>204"), False).fails_launch
    endless = answer("", "length", 2048, reasoning="So I must think about the number 17 and what it is.")
    assert checks.reasoning_split(endless, False).fails_launch
    assert not checks.reasoning_split(endless, True).fails_launch
    assert checks.reasoning_split(answer("", "length", 400, reasoning="Wait. " * 60), True).fails_launch
    without = checks.reasoning_split(answer("204"), False)
    assert not without.passed and without.level == "note"


def test_a_missed_needle_is_a_note_and_garbage_is_not() -> None:
    assert checks.long_prompt(answer("It is Mango-7."), "mango-7", "able").passed
    assert checks.long_prompt(answer("I do not know."), "mango-7", "able").fails_launch
    assert not checks.long_prompt(answer("I do not know."), "mango-7", "tiny").fails_launch
    assert checks.long_prompt(answer("!" * 60), "mango-7", "tiny").fails_launch


def samples(drafts: int, drafted: int, accepted: int) -> tuple[PrometheusSample, ...]:
    names = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
    return tuple(parse("".join(f"vllm:spec_decode_num_{name}_total {n}.0\n" for name, n in names.items())))


def speculated(before: tuple[int, int, int], after: tuple[int, int, int]) -> CheckResult:
    check = engine_checks.speculation(Expected(drafts="mtp"), samples(*before), samples(*after), ())
    assert check is not None
    return check


def test_speculation_counts_only_the_requests_of_the_checks() -> None:
    assert speculated((0, 0, 0), (100, 300, 150)).passed
    assert speculated((0, 0, 0), (100, 300, 3)).fails_launch
    assert speculated((9000, 27000, 20000), (9100, 27300, 20003)).fails_launch  # a good past is no excuse
    assert speculated((0, 0, 0), (10, 30, 0)).passed  # too few to tell
    none = engine_checks.speculation(Expected(drafts="mtp"), (), (), ())
    assert none is not None and not none.passed and not none.fails_launch
    assert engine_checks.speculation(Expected(), (), (), ()) is None
    answers = [answer("x", draft_tokens=90, accepted_tokens=2), answer("y")]
    llama = engine_checks.speculation(Expected(drafts="draft model"), (), (), answers)
    assert llama is not None and llama.fails_launch and "2 of 90" in llama.observed


def test_sglang_tells_what_its_latest_batch_accepted() -> None:
    gauges = tuple(parse("sglang:spec_accept_rate 0.62\nsglang:spec_accept_length 2.86\n"))
    found = engine_checks.speculation(Expected(drafts="mtp"), (), gauges, ())
    assert (
        found is not None and found.passed and "62% of drafted tokens accepted lately, 2.86" in found.observed
    )
    idle = tuple(parse("sglang:spec_accept_rate 0.0\nsglang:spec_accept_length 0.0\n"))
    missed = engine_checks.speculation(Expected(drafts="mtp"), (), idle, ())
    assert missed is not None and not missed.passed and "drafted no token" in missed.observed
    assert engine_checks.speculation(Expected(), (), idle, ()) is None


@pytest.mark.parametrize(
    ("seconds", "passes", "fails"), [(2.0, True, False), (8.0, False, False), (60.0, False, True)]
)
def test_speed(seconds: float, passes: bool, fails: bool) -> None:
    planned = Expected(plan=PlanSummary(decode_tokens_per_s=Band(40, 50, 70)))
    given = replace(answer("text", tokens=101), decode_s=seconds)
    check = engine_checks.speed(planned, [given])
    assert check is not None and (check.passed, check.fails_launch) == (passes, fails)
    shared = engine_checks.speed(replace(planned, is_cpu=True), [given])
    assert shared is not None and not shared.fails_launch


def test_slow_speculation_is_a_note() -> None:
    planned = Expected(drafts="mtp", plan=PlanSummary(decode_tokens_per_s=Band(10, 12, 14)))
    loses = engine_checks.speculation_speedup(planned, 9.0)
    assert loses is not None and not loses.passed and loses.level == "note"
    assert (
        engine_checks.speculation_speedup(planned, 20.0)
        is None
        is engine_checks.speculation_speedup(Expected(), 1.0)
    )


def test_the_kv_cache_size_of_the_engine_is_reported() -> None:
    planned = Expected(context=8192, kv_tokens=(40_000, 41_000))
    good, off, small = (engine_checks.kv_cache(planned, (), tokens) for tokens in (40_500, 30_000, 4_096))
    assert good and good.passed
    assert (
        off
        and not off.passed
        and not off.fails_launch
        and "30,000 tokens, planned 40,000 to 41,000" in off.observed
    )
    assert small and small.fails_launch
    assert engine_checks.kv_cache(planned, (), None) is None


SUM, TEXT = "What is 2+2?", "What is a computer?"
FIRSTS = {
    SUM: [answer("The answer to this classic math problem is 4.")],
    TEXT: [
        answer(
            "A computer is a device that uses electronic systems to process information, manage data, and "
            "perform tasks. It has a processor, some memory and a screen.",
            "length",
        )
    ],
}
START = "A computer is a device that uses"


@pytest.mark.parametrize(
    ("prompt", "again"),
    [
        (TEXT, answer("A computer is a", "length")),
        (TEXT, answer("A computer is a device that uses electronic systems to process", "length")),
        (TEXT, answer(f"{START} algorithms and software to process information.", "stop")),  # a close choice
        (TEXT, answer(f"{START} ", "stop")),  # a stop string ended it
        (SUM, answer("The answer to this classic problem is 4.")),
        (SUM, answer("The answer to this classic math problem is 4. In mathematics, 2 and 2 make 4.")),
    ],
)
def test_the_same_answer(prompt: str, again: Answer) -> None:
    found = checks.differences([(prompt, again)], FIRSTS)
    assert all(one.is_late for one in found.values())


@pytest.mark.parametrize(
    ("prompt", "text", "is_broken"),
    [
        (TEXT, "", True),
        (TEXT, "!!!!!!!!!!!!!!!!", True),
        (TEXT, "edvc a utrpmoec si hatt eusst secr a ytenm ic pso ofn irta mn daa gtae ttksas perf ro", True),
        (TEXT, "The answer to this classic math problem is 4.", True),
        (SUM, f"{START} electronic systems", True),
        (TEXT, f"{START} this classic math problem is 4. electronic systems to process information", True),
        (TEXT, f"{START} and lava from the crater flows electronic systems to process information", False),
        (TEXT, "Computers are machines that follow a list of steps.", False),
        (SUM, "Seven, I think.", False),
    ],
)
def test_another_answer(prompt: str, text: str, is_broken: bool) -> None:
    found = checks.differences([(prompt, answer(text, "length"))], FIRSTS)
    assert found[0].is_broken is is_broken, found[0].observed
    twice = checks.same_again("parallel requests", [prompt], found, found)
    assert twice.fails_launch is is_broken and not twice.passed


def test_what_does_not_differ_again_is_reported_and_fails_nothing() -> None:
    found = checks.differences([(TEXT, answer(""))], FIRSTS)
    once = checks.same_again("same twice", [TEXT], found, {})
    assert once.passed and "differed once" in once.observed
    fluent = {0: checks.Difference("other words", False)}
    assert not checks.same_again("same twice", [TEXT], found, fluent).fails_launch


def test_few_tokens_of_a_model_that_thinks_may_make_no_text() -> None:
    thinking = {TEXT: [answer("A machine.", reasoning="I am asked for a machine.")]}
    assert checks.differences([(TEXT, answer("", "length"))], thinking) == {}
    assert checks.differences([(TEXT, answer("", "stop"))], thinking)[0].is_broken


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"{START} ", None),
        (f"{START} electronic systems to process informa", None),  # the word itself did not come
        (f"{START} electronic systems to ", None),
        (f"{START} electronic systems to pro", "a part of"),
        (f"{START} electr", "ended 15 characters before"),
        ("A machine", None),
    ],
)
def test_stop_to_the_character(text: str, says: str | None) -> None:
    result = checks.stop_sequence(answer(text, "stop"), "process" if says else "screen", FIRSTS[TEXT])
    if says is None:
        result = checks.stop_sequence(answer(text, "stop"), "nowhere", FIRSTS[TEXT])
    assert result.passed is (says is None) and (says or "") in result.observed


ABOUT = "A computer is a machine that follows a list of steps. It has a processor and a memory for its data."


@pytest.mark.parametrize(
    ("later", "says", "passes"),
    [
        (ABOUT, "equal", True),
        (ABOUT.replace("follows a list", "processes data by a list"), "only the first", True),
        (
            "A computer is a machine that throws ash and lava over villages, farmers, goats, rivers, fields, "
            "gardens and harbours.",
            "only the first",
            False,
        ),
        ("Lava runs down the slope.", "only the first", False),
    ],
    ids=["same", "other words about it", "about something else", "other from the start"],
)
def test_the_second_use_of_a_prompt_stays_on_its_subject(later: str, says: str, passes: bool) -> None:
    first, second = answer(ABOUT), answer(later)
    check = checks.deterministic(first, second, (second, second) if later != ABOUT else ())
    assert (check.passed, check.fails_launch) == (passes, False) and says in check.observed


@pytest.mark.parametrize(
    ("text", "size", "passes", "fails"),
    [
        (ABOUT, "able", True, False),
        (ABOUT + " It adds numbers, compares results and stores tables." * 12, "tiny", True, False),
        (ABOUT + " It adds numbers, compares results and stores tables." * 12, "able", False, False),
        (ABOUT + "!" * 300, "tiny", False, True),
        (ABOUT + " ensis akes umni rok tlesh gsres ucks vortl plimb quasn dro ikth" * 6, "tiny", False, True),
    ],
    ids=["good", "a small model repeats itself", "an able one", "signs", "soup"],
)
def test_long_answers(text: str, size: Size, passes: bool, fails: bool) -> None:
    check = checks.long_answers({"q": answer(text, "length")}, size)
    assert (check.passed, check.fails_launch) == (passes, fails), check


THIRD = "with two goats"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ABOUT.replace("follows a list", f"follows {THIRD} at night a list"), THIRD),
        (ABOUT.replace("follows a list of", f"{THIRD} at night for"), None),
        (ABOUT.replace("follows", "obeys"), None),
        (ABOUT.replace("a list of steps. It has", "the steps of a list. It has"), None),
    ],
    ids=["put in", "put in the place of others", "another word", "the same words in another order"],
)
def test_words_of_another_answer_in_the_middle(text: str, says: str | None) -> None:
    found = checks.difference([answer(ABOUT)], answer(text), {})
    assert found is not None and not found.is_broken
    assert found.is_late is (says is None) and (says or "") in found.observed


@pytest.mark.parametrize(("count", "passes"), [(4, True), (3, False), (None, True)])
def test_an_answer_that_was_cut_has_all_its_tokens(count: int | None, passes: bool) -> None:
    assert checks.max_tokens(answer("A computer is a", "length", count), 4).passed is passes


def test_a_text_ends_alike_with_and_without_streaming() -> None:
    cut, whole = answer(ABOUT, "length"), answer(ABOUT, "stop")
    assert checks.stream_matches_plain(cut, cut).passed
    assert checks.stream_matches_plain(cut, whole).fails_launch
    assert checks.stream_matches_plain(whole, cut).fails_launch


def test_another_number_is_a_close_choice() -> None:
    first = answer("12*17 = 220 This is a multi-digit number that can be expressed in words.")
    other = answer("12*17 = 216 This is a multi-digit number that can be expressed in words.")
    found = checks.difference([first], other, {})
    assert found and found.is_late
    changed = checks.difference([first], answer("12*17 is a sum for Hearken the sailor, good people."), {})
    assert changed and not changed.is_late


VOLCANO = "Lava comes out of a crack in the ground when hot rock below is pushed up."


@pytest.mark.parametrize(
    ("first", "second", "broken"),
    [(VOLCANO, VOLCANO, 2), (VOLCANO, "4.", 0), (ABOUT, VOLCANO, 0), (VOLCANO, VOLCANO[:10] + "!", 0)],
)
def test_two_questions_with_one_answer(first: str, second: str, broken: int) -> None:
    """Neither had it before, so it is nobody's choice of words."""
    firsts = {"a computer?": [answer(ABOUT)], "2+2?": [answer("2 + 2 is 4, and so is 3 + 1.")]}
    found = checks.differences([("a computer?", answer(first)), ("2+2?", answer(second))], firsts)
    assert sum(one.is_broken for one in found.values()) == broken


def test_long_answers_that_begin_alike_are_not_one_answer() -> None:
    sure = "Sure, here is what you asked for in detail. "
    firsts = {"a ship?": [answer(f"{sure}It floats.")], "a farm?": [answer(f"{sure}It grows.")]}
    later = [("a ship?", answer(f"{sure}It sails.")), ("a farm?", answer(f"{sure}It has cows."))]
    assert not any(one.is_broken for one in checks.differences(later, firsts).values())
