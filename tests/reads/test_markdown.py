from __future__ import annotations

from firesteel.reads import markdown
from firesteel.reads.source_text import SourceFile


def blocks(text: str) -> list[tuple[str, int, str]] | None:
    file = SourceFile("guide.md", text)
    found = markdown.blocks(file.whole)
    if found is None:
        return None
    return [(language, file.place(block.at(0))[0], block.text) for language, block in found]


def test_blocks_keep_their_lines() -> None:
    text = "it's\n```bash\na\nb\n```\n```yaml\nc: d\n```\n> ```\n> e\n> ```\n~~~sh\nopen"
    assert blocks(text) == [("bash", 3, "a\nb"), ("yaml", 7, "c: d"), ("", 10, "e"), ("sh", 13, "open")]


def test_text_without_a_fence_is_not_markdown() -> None:
    assert blocks("vllm serve m") is None
    assert blocks("```python\n```") == []


def test_prose_is_outside_of_fences() -> None:
    file = SourceFile("guide.md", "a\n```\nb\n```\nc\n```sh\nd")
    assert list(markdown.prose(file)) == [(1, "a"), (5, "c")]
