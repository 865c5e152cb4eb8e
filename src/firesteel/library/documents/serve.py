"""`firesteel serve --json`"""

from __future__ import annotations

from typing import Literal

from firesteel.library.documents.document import Document


class ServeJson(Document, kw_only=True):
    """`firesteel serve --json`, on one line, as soon as the gateway listens"""

    document: Literal["firesteel.serve/1"] = "firesteel.serve/1"
    url: str
    models: tuple[str, ...]
