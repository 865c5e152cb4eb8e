"""Tell text from what a broken engine produces instead. Pure: text in, faults out.

A wrong kernel, a bad quantization or a corrupt cache raises no error: the engine answers with HTTP 200. The
garbage is of a few kinds, each with a feature that good answers do not have:

    empty       nothing at all
    bytes       U+FFFD, control characters, lone surrogates: tokens that make no text
    special     `<|im_end|>`, `<0x0A>`, `Ġ`: the tokenizer's own symbols in the text
    loop        the same text repeated to the end, or one character or word that is most of the text
    script      letters of a writing system other than the question's, unless all of it is in one language
    soup        letters without words, words of no language, English without order; also only at the end

A model may answer in its users' language, so a text in another language is text (`languages`). A fluent wrong
answer is found by questions with known answers instead (`checks`). The thresholds were set on the samples in
`tests/run/samples`: all good ones pass, code, JSON, tables and Chinese among them.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter
from itertools import pairwise
from typing import Literal

from firesteel.errors import escape_unprintable
from firesteel.run.verify.languages import WORD, is_foreign_language, script_of
from firesteel.values import Value

Kind = Literal["empty", "bytes", "special", "loop", "script", "soup"]
Script = Literal["latin", "cjk", "cyrillic", "arabic", "any"]

MAX_CHARS = 20_000
"""Enough of any answer. The end is examined, because that is where loops are."""
LOOP_REPEATS = 4
LOOP_MIN_CHARS = 24
MAX_CHARACTER_SHARE = 0.5
"""One character may be at most half of all but spaces. `e` is an eighth of English; a table reaches 0.4."""
MAX_WORD_SHARE = 0.35
"""One word may be at most this share of all words."""
MAX_REPEATED_LINE_SHARE = 0.6
"""At most this share of the lines may repeat earlier lines."""
MIN_COMPRESSED_SHARE = 0.15
"""zlib compresses an English answer to about 0.5, a table or a list to 0.3, and a loop to less than this."""
MAX_FOREIGN_SHARE = 0.15
"""At most this share of the letters may be of another script: a Greek letter in a formula, a name."""
MIN_FOREIGN_WORDS = 4
"""In an answer in English prose."""
MAX_SCRIPTS = 3
"""Scripts with two letters or more in one answer. A question about alphabets passes the script `any`."""
MIN_COMMON_SHARE = 0.2
"""At least this share of the words of prose is among the most common ones: 0.4 to 0.6 in good answers."""
MIN_LETTER_SHARE = 0.7
"""At least this share of prose without spaces is letters: 0.9 and more in good answers."""
MAX_ODD_SHARE = 0.1
"""At most this share of the words of prose may look unlike English."""
MAX_GLUED_SHARE = 0.1
"""At most this share of the words of prose may run into the next one, as in `end.Next`."""
MIN_WRONG_PAIRS, MAX_WRONG_SHARE = 3, 0.015
"""Pairs of words that no sentence has, `the of`: that many, and that share of the words, are word salad."""
MAX_NO_START_SHARE = 0.04
"""At most this share of the words of prose, or four, may begin as no English word does: `vllm`, `npm`."""
_TAIL_WORDS = 30
MAX_BLANK_LINES = 8
"""In a row; prose and code have three at most."""

_LEAKED = re.compile(
    r"<[|\uff5c][^<>\n]{1,40}[|\uff5c]>|<0x[0-9A-Fa-f]{2}>|\A\s*<s>|</s>\s*\Z|<unk>|<pad>|<(?:bos|eos)>|\[/?INST\]"
    r"|<(?:start|end)_of_turn>|<unused\d+>|<tool_call\|>|▁\w|[ĠĊ]\w"
)
_ALLOWED_CONTROLS = frozenset("\t\n\r")
_ADDRESS = re.compile(r"https?://\S+")
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """a about after all also an and any are as at be because been but by can could do does for from
        had has have he her his how i if in into is it its like made make many may more most my new no
        not of on one only or other our out over people she so some such than that the their them then
        there these they this time to two up us use used using was way we what when where which who will
        with would you your""",
    )
)
_ODD = re.compile(
    r"[a-z]{2,}[A-Z]{2,}[a-z]|[b-df-hj-np-tv-xzB-DF-HJ-NP-TV-XZ]{6,}|[aeiouAEIOU]{5,}|(\w{2,5})\1\1"
)
_NO_START = re.compile(
    r"(?!bl|br|ch|cl|cr|cz|dr|dw|fj|fl|fr|gh|gl|gn|gr|kh|kl|kn|kr|ll|mn|ph|pl|pn|pr|ps|pt|rh|sc|sh|sk|sl|sm|sn"
    r"|sp|sq|sr|st|sv|sw|th|tr|ts|tw|vr|wh|wr|zh)[b-df-hj-np-tvwxz]{2}[a-z]"
)
"""Lower-case words of three letters or more that begin with two consonants as English words never do."""
_GLUED = re.compile(r"[a-z][.,;:!?\"“”()]+[a-zA-Z]")
_REPEATED = re.compile(r"([^\W\d_]{2,8}?)\1{5,}")
_BLANKS = re.compile(rf"(?:\n[ \t]*){{{MAX_BLANK_LINES + 1}}}")
_RULE = re.compile(r"[\s|:=_*#~+.-]{3,}")
"""A line drawn under a title or between the rows of a table."""
_NEVER_NEXT = {
    first: frozenset(re.findall(r"\w+", following))
    for firsts, following in (
        (("a", "an", "the"), "a an and are as at be but by can for from has have he if in is it its of on "
         "or she that the they this to was we were which will with you"),
        (("of", "with", "for", "from"), "and are be has have is of or to was with"),
        (("and", "or"), "and or of"),
    )
    for first in firsts
}  # fmt: skip
"""Words that do not follow the word in an English sentence."""
_FUNCTION_WORDS = frozenset(("the", "a", "an", "of", "to", "is"))
"""Thirty words of English prose contain at least three of these."""


class TextFault(Value):
    kind: Kind
    observed: str


def find_faults(
    text: str, *, script: Script = "latin", is_prose: bool = False, was_cut: bool = False
) -> tuple[TextFault, ...]:
    """What is wrong with a text; empty if nothing is.

    `script`: the script of the question. `is_prose`: the question asks for English sentences, not for code or
    a table. `was_cut`: `max_tokens` ended the text, perhaps within its last character.
    """
    text = text[-MAX_CHARS:]
    if not text.strip():
        return (TextFault("empty", "no text at all"),)
    faults = [_bytes(text, was_cut), _special(text), _loop(text)]
    others = [_script(text, script), *([_foreign_words(text, script), _soup(text)] if is_prose else [])]
    if any(others) and not is_foreign_language(_ADDRESS.sub(" ", text)):
        faults += others
    return tuple(fault for fault in faults if fault)


def _bytes(text: str, was_cut: bool) -> TextFault | None:
    whole = text.rstrip("\ufffd") if was_cut else text
    for index, character in enumerate(whole):
        if character == "\ufffd":
            context = quote(whole[max(0, index - 20) : index + 20])
            return TextFault("bytes", f"invalid UTF-8 at character {index}: {context}")
        if unicodedata.category(character) in ("Cc", "Cs", "Co", "Cn") and character not in _ALLOWED_CONTROLS:
            return TextFault(
                "bytes", f"U+{ord(character):04X}, which text never contains, at character {index}"
            )
    return None


def _special(text: str) -> TextFault | None:
    leaked = _LEAKED.search(text)
    return TextFault("special", f"a special token: {quote(leaked[0])}") if leaked else None


def _loop(text: str) -> TextFault | None:
    unit = find_loop(text)
    if unit is not None:
        return TextFault("loop", f"repeats {quote(unit)} to the end")
    if match := _REPEATED.search(text):
        return TextFault("loop", f"repeats {quote(match[1])} {len(match[0]) // len(match[1])} times")
    if _BLANKS.search(text):
        return TextFault("loop", f"more than {MAX_BLANK_LINES} empty lines in a row")
    return _one_character(text) or _one_word(text) or _same_lines(text) or _compressible(text)


def find_loop(text: str) -> str | None:
    """The unit that the end of the text repeats at least four times, or None.

    Short units need more repeats, so that "..." or "====" at the end of a list is not a loop. All numbers
    count as equal, so a list with the same sentence under 1., 2., 3. is a loop; so do all runs of spaces. A
    list of nothing but numbers is not a loop.
    """
    flat = re.sub(r"\s+", " ", re.sub(r"[0-9]+", "0", text[-MAX_CHARS:])).rstrip()
    longest = min(len(flat) // LOOP_REPEATS, 600)
    for size in range(1, longest + 1):
        repeats = max(LOOP_REPEATS, -(-LOOP_MIN_CHARS // size))
        unit = flat[-size:]
        if flat.endswith(unit * repeats) and (re.search(r"[^0\W]", unit) or size == 1):
            return unit
    return None


def _one_character(text: str) -> TextFault | None:
    lines = [line for line in text.splitlines() if not _RULE.fullmatch(line)]
    characters = Counter(character for line in lines for character in line if not character.isspace())
    if not characters:
        return None
    character, times = characters.most_common(1)[0]
    if characters.total() >= LOOP_MIN_CHARS and times > MAX_CHARACTER_SHARE * characters.total():
        return TextFault("loop", f"{times} of its {characters.total()} characters are {quote(character)}")
    return None


def _one_word(text: str) -> TextFault | None:
    words = Counter(word.lower() for word in WORD.findall(text))
    if words.total() < 20:
        return None
    word, times = words.most_common(1)[0]
    if times > MAX_WORD_SHARE * words.total():
        return TextFault("loop", f"{times} of its {words.total()} words are {quote(word)}")
    return None


def _same_lines(text: str) -> TextFault | None:
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    repeated = len(lines) - len(set(lines))
    if len(lines) >= 10 and repeated > MAX_REPEATED_LINE_SHARE * len(lines):
        return TextFault("loop", f"{repeated} of its {len(lines)} lines repeat an earlier one")
    return None


def _compressible(text: str) -> TextFault | None:
    data = text.encode("utf-8", "replace")
    if len(data) < 300:
        return None
    share = len(zlib.compress(data, 9)) / len(data)
    if share >= MIN_COMPRESSED_SHARE:
        return None
    return TextFault("loop", f"so repetitive that it compresses to {share:.0%}")


def _script(text: str, asked: Script) -> TextFault | None:
    if asked == "any":
        return None
    scripts = Counter(script_of(character) for character in text if character.isalpha())
    total = scripts.total()
    foreign = {name: count for name, count in scripts.items() if name not in (asked, "latin")}
    if asked != "latin" and total >= 20 and not scripts[asked]:
        return TextFault("script", f"no letter of the question's script, {asked}")
    several = [name for name, count in scripts.items() if count >= 2]
    if len(several) > MAX_SCRIPTS:
        return TextFault("script", f"letters of {len(several)} scripts: {', '.join(sorted(several))}")
    name, count = max(foreign.items(), key=lambda item: item[1], default=("", 0))
    if count > MAX_FOREIGN_SHARE * total and total >= 10:
        return TextFault("script", f"{count} of its {total} letters are {name}, asked in {asked}")
    return None


def _foreign_words(text: str, asked: Script) -> TextFault | None:
    """English prose may have a foreign name; words of another script here and there are another model's."""
    words = [word for word in WORD.findall(text) if script_of(word[0]) not in ("latin", "greek", asked)]
    if asked != "latin" or len(words) < MIN_FOREIGN_WORDS:
        return None
    return TextFault(
        "script", f"{len(words)} words of another script, asked in latin: {quote(' '.join(words))}"
    )


def _soup(text: str) -> TextFault | None:
    """English prose only: code has other words, and other languages have other common ones."""
    words = WORD.findall(_ADDRESS.sub(" ", text))
    characters = [character for character in text if not character.isspace()]
    letters = sum(character.isalpha() for character in characters)
    if len(characters) >= LOOP_MIN_CHARS and letters < MIN_LETTER_SHARE * len(characters):
        return TextFault("soup", f"{letters} of its {len(characters)} characters are letters: {quote(text)}")
    if len(words) < 12:
        return None
    # An engine may begin well and get worse, so the end counts by itself as well.
    for some, share in ((words, MIN_COMMON_SHARE), (words[-_TAIL_WORDS:], MIN_COMMON_SHARE / 2)):
        common = sum(word.lower() in _COMMON for word in some)
        if common < share * len(some):
            part = f"{common} of its {'last ' if some != words else ''}{len(some)} words"
            shown = quote(text if some == words else text[-120:])
            return TextFault("soup", f"{part} are common English ones: {shown}")
    if fault := _no_grammar(text, words):
        return fault
    if len(words) >= 30 and sum(word.lower() in _FUNCTION_WORDS for word in words) < 3:
        return TextFault("soup", f"no English sentence: {quote(text)}")
    glued = _GLUED.findall(text)
    if len(glued) > max(2, MAX_GLUED_SHARE * len(words)):
        return TextFault("soup", f"words run together: {quote(text)}")
    odd = [word for word in words if len(word) > 24 or _ODD.search(word)]
    if len(odd) > max(2, MAX_ODD_SHARE * len(words)):
        return TextFault("soup", f"no English words: {quote(' '.join(odd))}")
    starts = {word for word in words if _NO_START.match(word)}
    if len(starts) > max(4, MAX_NO_START_SHARE * len(words)):
        return TextFault("soup", f"no English word begins so: {quote(' '.join(sorted(starts)))}")
    return None


def _no_grammar(text: str, words: list[str]) -> TextFault | None:
    """Words that come twice in a row, or in an order that English never has: `the of`, `a is`. A number
    parts two words: `of 256 or of 32`."""
    pieces = (WORD.findall(piece) for piece in re.split(r"\w*\d\w*", _ADDRESS.sub(" 0 ", text)))
    pairs = [pair for piece in pieces for pair in pairwise(piece)]
    doubled = [one for one, other in pairs if one.lower() == other.lower()]
    if len(doubled) > max(2, MAX_ODD_SHARE * len(words)):
        return TextFault(
            "soup", f"{len(doubled)} of its {len(words)} words come twice in a row: {quote(doubled[0])}"
        )
    # `A` may be a name, as in `option A is`.
    wrong = [f"{one} {other}" for one, other in pairs if other.lower() in _NEVER_NEXT.get(one, ())]
    if len(wrong) >= MIN_WRONG_PAIRS and len(wrong) > MAX_WRONG_SHARE * len(words):
        return TextFault("soup", f"words in disorder: {quote(', '.join(wrong))}")
    return None


def quote(text: str, limit: int = 60) -> str:
    """The text as one short line that is safe to print: unprintable characters are escaped."""
    return f'"{escape_unprintable(" ".join(text[: 4 * limit].split()), limit)}"'
