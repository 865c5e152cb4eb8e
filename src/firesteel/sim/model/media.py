"""What a simulated model sees and hears: the colour of a picture's first pixel, and words that it knows."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from firesteel.shipped_data import DATA

TOKENS_OF_ONE = 64
"""How much longer a prompt is for a picture or a sound."""
_CHANNELS = ("red", "green", "blue")


def seen(part: Mapping[str, Any]) -> str | None:
    """The answer to a question about this part of a message; None: it is text."""
    image, sound = part.get("image_url"), part.get("input_audio")
    try:
        if isinstance(image, Mapping):
            return f"It is {_colour(base64.b64decode(str(image['url']).partition(',')[2]))}."
        if isinstance(sound, Mapping):
            return _word(base64.b64decode(str(sound["data"])))
    except (ValueError, KeyError, zlib.error, struct.error):
        return "I cannot make out what this is."
    return None


def _colour(png: bytes) -> str:
    at = png.index(b"IDAT")
    (length,) = struct.unpack(">I", png[at - 4 : at])
    pixel = zlib.decompressobj().decompress(png[at + 4 : at + 4 + length], 4)[1:4]
    return _CHANNELS[max(range(3), key=lambda index: pixel[index])]


def _word(sound: bytes) -> str:
    known = (path.stem for path in (DATA / "verify").glob("*.wav") if path.read_bytes() == sound)
    return next(known, "I cannot make out a word.")
