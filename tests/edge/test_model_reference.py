"""Which names of models mean something on disk."""

from __future__ import annotations

import pytest

from firesteel.edge import model_reference


@pytest.mark.parametrize(
    ("name", "is_path"),
    [
        ("./x", True),
        ("/x", True),
        ("~/x", True),
        ("x.gguf", True),
        ("org/name", False),
        ("smollm2", False),
        ("x" * 5000, False),
    ],
)
def test_is_path(name: str, is_path: bool) -> None:
    assert model_reference.is_path(name) is is_path
