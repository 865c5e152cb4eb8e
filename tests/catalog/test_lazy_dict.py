from firesteel.catalog.lazy_dict import LazyDict


def test_values_are_read_once_and_at_first_use() -> None:
    read: list[str] = []

    def reader(name: str) -> str:
        read.append(name)
        return name.upper()

    lazy = LazyDict({"a": lambda: reader("a"), "b": lambda: reader("b")})
    assert ("a" in lazy, "c" in lazy, list(lazy), len(lazy), read) == (True, False, ["a", "b"], 2, [])
    assert (lazy["a"], lazy["a"], lazy.get("c"), read) == ("A", "A", None, ["a"])
    assert lazy.opened == {"a"}
    assert dict(lazy) == {"a": "A", "b": "B"}
