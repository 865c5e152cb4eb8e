"""`firesteel recipe`: a recipe of one's own, and a stranger's that is refused until it is adopted."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Firesteel


def test_new_test_share_and_adopt(firesteel: Firesteel, tmp_path: Path) -> None:
    words = ("recipe", "new", "mine", "--from", "gpt-oss-20b", "--context", "8k", "--write", "--json")
    ran = firesteel(*words)
    assert ran.code == 0, ran.err
    assert ran.json["path"].endswith("catalog/recipes/mine.yaml") and "context: 8192" in ran.json["text"]
    ran = firesteel("recipe", "test", "mine", "--json")
    assert ran.code == 0 and ran.json["passed"] and ran.json["more_than_flags"] == []
    ran = firesteel("recipe", "share", "mine", "--to", str(tmp_path / "out"), "--patch", "--json")
    assert [Path(path).name for path in ran.json["files"]] == ["mine.yaml", "mine.patch"]

    others = tmp_path / "home" / "others"
    others.mkdir(parents=True)
    text = (tmp_path / "out" / "mine.yaml").read_text()
    (others / "theirs.yaml").write_text(text)
    (others / "greedy.yaml").write_text(f"{text}env: {{LD_PRELOAD: {{value: /x.so, why: x}}}}\n")
    listed = firesteel("recipe", "list", "--json").json
    assert listed["own"] == ["mine"] and listed["others"] == ["theirs"]
    assert [(row["name"], row["why"]) for row in listed["refused"]] == [
        ("greedy", "it sets the environment variable LD_PRELOAD")
    ]
    assert firesteel("plan", "greedy", "--host", "gb10").code == 2
    assert firesteel("recipe", "adopt", "greedy", "--json").code == 2
    assert firesteel("recipe", "adopt", "greedy", "--yes", "--json").code == 0
    assert firesteel("recipe", "list", "--json").json["own"] == ["greedy", "mine"]
