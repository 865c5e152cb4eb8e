"""The checks of the API, as tables: what each passes and what it names."""

from __future__ import annotations

import pytest
from tests.run.test_checks import answer

from firesteel.edge.http.answer import Answer, TokenLogprob
from firesteel.run.verify import api_checks
from firesteel.values import replace

TEXT = "A computer is a machine that follows a list of steps."


def tokens(*words: str, logprob: float = -0.5, best: float | None = -0.5) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(word.encode(), logprob, best) for word in words)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (answer("4.", model="org/smollm2"), None),
        (answer("4.", model="/models/smollm2.gguf"), None),
        (answer("4.", model="smollm2-2026-05-01", role="assistant"), None),
        (answer("4.", model="tinyllama"), 'from the model "tinyllama", not smollm2'),
        (answer("4.", role="user"), 'the role "user"'),
        (answer("4.", has_done=False), "without [DONE]"),
        (answer("4.", finish="length", tokens=2), "finish_reason length after 2 of 64 tokens"),
        (answer("4.", finish="length", tokens=64), None),
    ],
)
def test_protocol(given: Answer, says: str | None) -> None:
    result = api_checks.protocol([(answer("fine"), 64), (given, 64)], {"smollm2"}, "gate")
    assert result.passed is (says is None) and (says or "well-formed") in result.observed


def test_another_name_is_a_note_where_the_server_is_unknown() -> None:
    result = api_checks.protocol([(answer("4.", model="tinyllama"), 64)], {"alias"}, "note")
    assert not result.passed and not result.fails_launch


@pytest.mark.parametrize(
    ("texts", "passes"),
    [
        (("4.", "A machine."), True),
        (("<think>Sum.</think>4.", "A machine."), False),
        (("Sum.\n</think>\n4.", "A machine."), False),
        (("The user wants a sum. It is 4.", "Okay, the user asks what a computer is."), False),
        (("The user wants a sum, you say? 4.", "A machine."), True),
    ],
)
def test_thoughts_apart(texts: tuple[str, str], passes: bool) -> None:
    answers = {f"question {index}": answer(text) for index, text in enumerate(texts)}
    assert api_checks.thoughts_apart(answers).passed is passes


def test_thoughts_in_both_places_are_named() -> None:
    thought = "The sum of two and two is asked for here."
    assert not api_checks.thoughts_apart({"q": answer(f"{thought} 4.", reasoning=thought)}).passed


def test_one_answer_to_all_questions_is_named() -> None:
    same = {f"question {index}": answer(f"{TEXT} And {index}.") for index in range(3)}
    assert "3 questions" in api_checks.answers_differ(same).observed
    assert not api_checks.answers_differ(same).passed
    two = {**same, "question 2": answer("Something else.")}
    assert api_checks.answers_differ(two).passed  # two facts may begin alike


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("qwen3-8b", True),
        ("Qwen/Qwen3-8B", True),
        ("/models/Qwen3-8B-Q4_K_M.gguf", True),
        ("Qwen3-8B-2026-05-01", True),
        ("Qwen3-8B-FP8", True),
        ("Qwen/Qwen3-8B-Base", False),
        ("Qwen3-8B-Instruct-2507", False),
        ("Qwen3-80B", False),
        ("Qwen3-8", False),
        ("", False),
    ],
)
def test_names_of_one_model(other: str, same: bool) -> None:
    assert api_checks.is_same_model("Qwen/Qwen3-8B", other) is same
    assert api_checks.is_same_model(other, "Qwen/Qwen3-8B") is same


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        (answer("4.", tokens=2, total_tokens=32), True),
        (answer("4.", tokens=2, total_tokens=37, reasoning_tokens=5), True),
        (answer("4.", tokens=2, total_tokens=39), False),
        (answer("4.", tokens=None), True),
        (answer("4.", tokens=None, is_stream=False), False),
    ],
)
def test_counts(given: Answer, passes: bool) -> None:
    assert (api_checks.counts([given]) is None) is passes


def prompted(prompt_tokens: int | None, text: str = TEXT) -> Answer:
    return Answer(text, "stop", prompt_tokens, 12, 0.1, 0.1)


@pytest.mark.parametrize(
    ("found", "grown", "fails"),
    [(320, 300, None), (300, 300, None), (120, 300, "long prompt"), (600, 300, "usage"),
     (120, None, "long prompt"), (600, None, None), (None, 300, None)],
)  # fmt: skip
def test_prompt_growth(found: int | None, grown: int | None, fails: str | None) -> None:
    long = prompted(found and found + 20)
    result = api_checks.prompt_growth("long prompt", prompted(20), long, grown, chars=1400)
    assert result.passed is (fails is None) and result.name == (fails or "long prompt")


@pytest.mark.parametrize(
    ("prompt_tokens", "text", "name", "passes"),
    [
        (160, "The answer is 4.", "conversation", True),
        (20, "The answer is 4.", "conversation", False),
        (160, TEXT, "conversation", False),
        (320, "The answer is 4.", "usage", False),
    ],
    ids=["read", "earlier turns lost", "first question answered again", "counted twice"],
)
def test_conversation(prompt_tokens: int, text: str, name: str, passes: bool) -> None:
    before, first = prompted(20, "It is 4."), prompted(22)
    result = api_checks.conversation(before, first, prompted(prompt_tokens, text), 128, "gate")
    assert (result.name, result.passed) == (name, passes), result


@pytest.mark.parametrize(
    ("counts", "passes"), [((35, 35), True), ((35, None), True), ((35, 1), False), ((35, 35, 36), False)]
)
def test_a_prompt_has_as_many_tokens_every_time(counts: tuple[int | None, ...], passes: bool) -> None:
    answers = [replace(answer("4."), prompt_tokens=count) for count in counts]
    assert (api_checks.prompt_counts({"2+2?": answers}, "gate") is None) is passes


@pytest.mark.parametrize("counted", [7, None, 9])
def test_a_template_adds_some_tokens(counted: int | None) -> None:
    given = replace(answer("4."), prompt_tokens=40)
    assert api_checks.prompt_overhead(given, "What is 2+2?", counted) is None
    odd = api_checks.prompt_overhead(replace(given, prompt_tokens=1040), "What is 2+2?", counted)
    assert odd is not None and not odd.passed and not odd.fails_launch


WORDS = ("A", " computer", " is", " a", " machine", " that")


@pytest.mark.parametrize(
    ("few", "scored", "says"),
    [
        ("A computer is a", "length", None),
        ("A computer is a machine", "length", "5 tokens where 4 were asked for"),
        ("A computer is", "length", "3 tokens where 4 were asked for"),
        ("The machine", "length", None),  # another choice, which says nothing about its length
        ("A computer is a", "stop", "finish_reason stop at the limit of 6"),
    ],
)
def test_max_tokens_to_the_token(few: str, scored: str, says: str | None) -> None:
    given = answer("".join(WORDS), scored, logprobs=tokens(*WORDS))
    found = api_checks.length(answer(few, "length"), 4, given, 6, [answer(TEXT.replace("follows", "takes"))])
    assert (found.observed if found else None) == says or (says and found and says in found.observed)


def scored(logprob: float, best: float, best_token: str = "A") -> tuple[TokenLogprob, ...]:
    return (TokenLogprob(b"A", logprob, best, ((best_token.encode(), best),)),) * 5


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (scored(-0.5, -0.5), None),
        (scored(0.0, 0.0), "all 5 tokens have the log probability 0"),
        (scored(-9999.0, -9999.0), "all 5 tokens have the log probability -9999"),
        (scored(-0.1, -3.0), "likelier than the likeliest"),
        (scored(-0.5, -0.5, "zebra"), '"A" instead of "zebra"'),
    ],
)
def test_impossible_logprobs(given: tuple[TokenLogprob, ...], says: str | None) -> None:
    result = api_checks.logprobs(answer("AAAAA", logprobs=given), "gate")
    assert result.passed is (says is None) and (says or "make the text") in result.observed


@pytest.mark.parametrize(
    ("text", "logprobs", "says"),
    [
        ("A lamp", tokens("A", " lamp"), None),
        ("\nA lamp", tokens("A", " lamp", "<|im_end|>"), None),
        ("A lamp lamp", tokens("A", " lamp"), "not what was generated"),
        ("A", tokens("A", " lamp"), "not what was generated"),
        ("A lamp", tokens("A", " lamp", logprob=0.9), "not a log probability"),
        ("A lamp", tokens("A", " lamp", logprob=float("nan")), "not a log probability"),
        ("A lamp", tokens("A", " lamp", logprob=-9.0), "not the most likely"),
        ("A lamp", None, "not there"),
    ],
)
def test_logprobs(text: str, logprobs: tuple[TokenLogprob, ...] | None, says: str | None) -> None:
    result = api_checks.logprobs(answer(text, logprobs=logprobs), "gate")
    assert result.passed is (says is None) and (says or "make the text") in result.observed


def test_thoughts_come_before_the_tokens_of_the_text() -> None:
    given = answer("A lamp", reasoning="Hm.", logprobs=tokens("Hm", ".", "</think>", "A", " lamp"))
    assert api_checks.logprobs(given, "gate").passed


@pytest.mark.parametrize(
    ("text", "passes"),
    [('{"text": "café 7"}', True), ('{ "text" :"café 7" }\n', True), ('{"text": "caf? 7"}', False),
     ('```json\n{"text": "café 7"}\n```', False), ('{"text": "café 7"', False), ("café 7", False)],
)  # fmt: skip
def test_exact_json(text: str, passes: bool) -> None:
    result = api_checks.exact_json(answer(text), {"text": "café 7"}, "gate")
    assert result.passed is passes and (passes or result.fails_launch)


def test_equal_samples_are_named() -> None:
    assert api_checks.samples_differ([answer("One."), answer("Two.")]).passed
    assert not api_checks.samples_differ([answer("One.")] * 3).passed
    unsure = answer("One.", logprobs=tokens("One", ".", logprob=-1.5))
    assert api_checks.samples_differ([answer("One.")] * 3 + [unsure]).fails_launch
    sure = answer("One.", logprobs=tokens("One", ".", logprob=-0.001))
    assert api_checks.samples_differ([answer("One.")] * 3 + [sure]).passed
    thoughts = [answer("", finish="length", reasoning="Hm.")] * 3
    assert api_checks.samples_differ(thoughts).level == "note"


def test_a_seed_gives_the_same_sample_again() -> None:
    one, other = answer("Once there was a lighthouse."), answer("The sea is wide.")
    assert api_checks.seed_kept(one, [one]) is None
    assert api_checks.seed_kept(one, [other, one]) is None
    found = api_checks.seed_kept(one, [other, answer("No lamp.")])
    assert found and not found.passed and not found.fails_launch


@pytest.mark.parametrize(
    ("said", "as_user", "names"),
    [
        (
            "I see. I am a sailor and tell about harbours.",
            "I see. I am a sailor and tell about harbours.",
            True,
        ),
        ("Two and two, as the wind knows.", "I see. I am a sailor and tell about harbours.", False),
        ("It is 4.", "It is 4.", False),  # as to the question alone
        ("Yes.", "Yes.", False),
    ],
)
def test_a_system_prompt_is_not_answered(said: str, as_user: str, names: bool) -> None:
    found = api_checks.system_obeyed(answer(said), answer(as_user), answer("It is 4."))
    assert (found is not None) is names


def test_what_all_answers_begin_with_is_named() -> None:
    musing = {f"question {at}": answer(f"Let me see, now. {text}") for at, text in enumerate("abcd")}
    found = api_checks.answers_differ(musing)
    assert not found.passed and not found.fails_launch and "Let me see" in found.observed
    assert api_checks.answers_differ({**musing, "question 3": answer("d")}).passed
