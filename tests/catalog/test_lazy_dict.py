from firesteel.catalog.lazy_dict import LazyDict


def test_each_thing_is_read_once_and_only_when_asked_for() -> None:
    read: list[str] = []

    def reader(name: str) -> str:
        read.append(name)
        return name.upper()

    shelf = LazyDict({"a": lambda: reader("a"), "b": lambda: reader("b")})
    assert ("a" in shelf, "c" in shelf, list(shelf), len(shelf), read) == (True, False, ["a", "b"], 2, [])
    assert (shelf["a"], shelf["a"], shelf.get("c"), read) == ("A", "A", None, ["a"])
    assert shelf.opened == {"a"}
    assert dict(shelf) == {"a": "A", "b": "B"}
