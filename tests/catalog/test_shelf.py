from firesteel.catalog.shelf import Shelf


def test_each_thing_is_read_once_and_only_when_asked_for() -> None:
    read: list[str] = []

    def reader(name: str) -> str:
        read.append(name)
        return name.upper()

    shelf = Shelf({"a": lambda: reader("a"), "b": lambda: reader("b")})
    assert ("a" in shelf, "c" in shelf, list(shelf), len(shelf), read) == (True, False, ["a", "b"], 2, [])
    assert (shelf["a"], shelf["a"], shelf.get("c"), read) == ("A", "A", None, ["a"])
    assert shelf.opened == {"a"}
    assert dict(shelf) == {"a": "A", "b": "B"}
