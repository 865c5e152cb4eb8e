from __future__ import annotations

from firesteel.reads import fences
from firesteel.reads.passage import Page


def blocks(text: str) -> list[tuple[int, str]] | None:
    page = Page("guide.md", text)
    found = fences.blocks(page)
    return None if found is None else [(page.place(each.at(0))[0], each.text) for each in found]


def test_shell_blocks_keep_their_lines() -> None:
    text = "it's\n```bash\na\nb\n```\n```yaml\nc: d\n```\n> ```\n> e\n> ```\n~~~sh\nopen"
    assert blocks(text) == [(3, "a\nb"), (10, "e"), (13, "open")]


def test_text_without_a_fence_is_not_markdown() -> None:
    assert blocks("vllm serve m") is None
    assert blocks("```python\nvllm\n```") == []
