"""Which release of its engine does a text speak of, where the command does not say?

A recipe has `min_vllm_version`, a guide a line with `pip install "vllm>=0.12"`, an image's tag or a sentence
("needs vLLM 0.12 or newer"). What says "at least" allows every later release, so such a launch must work with
both ends of the range. The nearest statement counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import takewhile

from firesteel.engines.schema.history import version_key
from firesteel.engines.schema.releases import known_versions
from firesteel.launch import EngineName, Spot
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.surroundings import Line, Surroundings
from firesteel.values import Value

_NUMBER = r"v?(?P<{0}>\d{{1,3}}\.\d{{1,3}}(?:\.\d{{1,3}})?(?:\.?post\d+)?)(?![\w.]*\d)"
_HEADING = re.compile(r"\s*#{2,6}\s")
_NAMES: dict[EngineName, str] = {"vllm": "vllm", "sglang": "sglang"}


class StatedRelease(Value):
    """The known releases at the ends of what the text allows; equal: it names one."""

    low: str
    high: str
    spot: Spot
    is_minimum_of_recipe: bool = False


def find_release(reading: ReadLaunch, path: str, around: Surroundings) -> StatedRelease | None:
    """The nearest statement about the engine of a launch."""
    engine = reading.launch.engine
    if engine not in _NAMES:
        return None
    if (minimum := reading.minimum) is not None:
        version = re.fullmatch(_NUMBER.format("low"), minimum.text)  # `nightly` is none
        ends = _known_ends(engine, version["low"], None) if version else None
        place = Spot(path, minimum.line, minimum.text, minimum.column)
        return StatedRelease(*ends, place, is_minimum_of_recipe=True) if ends else None
    for number, text, low, high, is_key in _statements(engine, reading.line, around):
        ends = _known_ends(engine, low, high)
        if ends:
            return StatedRelease(*ends, Spot(path, number, text.strip()[:200], 1), is_key)
    return None


def _statements(
    engine: EngineName, line: int, around: Surroundings
) -> Iterator[tuple[int, str, str, str | None, bool]]:
    """(line, text, lowest, highest or None, whether a key of a recipe says so), the nearest first."""
    first, end = 1, len(around.lines)
    if around.is_in_value(line):  # a guide in a recipe installs what its own section says
        is_heading = (_HEADING.match(around.lines[number - 1]) for number in range(line, 0, -1))
        first = line + 1 - sum(1 for _ in takewhile(lambda heading: heading is None, is_heading))
        end = line
    keys, pins = _stated(engine, around)
    for number, text, match in _nearest(keys, first, line, end):
        is_minimum = bool(match["min"] or match["least"])
        high = None if is_minimum or match["sign"] else match["low"]
        yield number, text, match["low"], high, is_minimum
    near = (found for found in around.above(line) if found[0] >= first)
    yield from ((*found, False) for found in _in_sentences(_patterns(engine)[2], near))
    for number, text, match in _nearest(pins, first, line, end):
        low, high = _pinned(match)
        # In a guide an image is another way to start it, and a sentence may be about anything.
        if low and not (around.prose and (match["tag"] or number in around.prose)):
            yield number, text, low, high, False


_Found = tuple[int, str, re.Match[str]]


@lru_cache(maxsize=2)  # for all launches of a text
def _stated(engine: EngineName, around: Surroundings) -> tuple[list[_Found], list[_Found]]:
    """The lines with a version of the engine: as a key, and as a requirement or tag."""
    named = around.lines_with(_NAMES[engine])
    keys, pins, _ = _patterns(engine)
    keyed = (found for found in named if ":" in found[1] and "version" in found[1].lower())
    signed = (found for found in named if any(sign in found[1] for sign in ("=", ">", "/")))
    return (
        [(number, text, match) for number, text in keyed if (match := keys.search(text))],
        [(number, text, match) for number, text in signed if (match := pins.search(text))],
    )


def _nearest(found: list[_Found], first: int, line: int, end: int) -> Iterator[_Found]:
    """Upwards from the line, then downwards, between the first and the last line."""
    yield from (each for each in reversed(found) if first <= each[0] <= line)
    yield from (each for each in found if line < each[0] <= end)


def _in_sentences(
    pattern: re.Pattern[str], lines: Iterable[Line]
) -> Iterator[tuple[int, str, str, str | None]]:
    for number, text in lines:
        if match := pattern.search(text):
            yield number, text, match["after"] or match["before"] or match["plus"], None


def _pinned(match: re.Match[str]) -> tuple[str | None, str | None]:
    if match["tag"]:
        return match["tag"], match["tag"]
    if match["sign"] in ("==", "==="):
        return match["low"], match["low"]
    if match["sign"] in (">=", "~=", ">"):
        return match["low"], None
    return None, None


@cache
def _patterns(engine: EngineName) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    name, low = _NAMES[engine], _NUMBER.format("low")
    image = {"vllm": r"vllm/vllm-openai", "sglang": r"lmsysorg/sglang"}[name]
    keys = rf"""(?<!\w)(?P<min>min(?:imum)?[_-]?)?{name}[_-]?(?P<least>min[_-]?)?version["']?\s*:\s*["']?
        (?P<sign>>=|~=)?\s*{low}"""
    pins = rf"""(?<![\w/.-]){name}(?:\[[\w,-]*\])?\s?(?P<sign>===?|>=|~=|>)\s?{low}
        | {image}:{_NUMBER.format("tag")}"""
    sentences = rf"""(?<![\w/.-]){name}\s*(?:version\s*)?(?:>=|\u2265)\s*{_NUMBER.format("after")}
        | (?:requires?|needs?|at\ least|use)\s+(?:at\ least\s+)?{name}\s+(?:version\s+)?
          {_NUMBER.format("before")}
        | (?<![\w/.-]){name}\s+(?:version\s+)?{_NUMBER.format("plus")}\s*
          (?:\+|or\ (?:newer|later|higher|above)|and\ (?:newer|later|higher|above))"""
    flags = re.VERBOSE | re.IGNORECASE
    return re.compile(keys, flags), re.compile(pins, flags), re.compile(sentences, flags)


def _known_ends(engine: EngineName, low: str, high: str | None) -> tuple[str, str] | None:
    """The oldest and the newest known release in the range; None: there is none."""
    inside = [
        version
        for version in known_versions(engine)
        if version_key(version) >= version_key(low)
        and (high is None or version_key(version)[: high.count(".") + 1] <= version_key(high))
    ]
    return (inside[0], inside[-1]) if inside else None
