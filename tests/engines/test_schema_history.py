from __future__ import annotations

import pytest

from firesteel.engines.schema.history import (
    EngineHistory,
    build_history,
    dump_history,
    load_history,
    merge_ranges,
    schema_at,
    version_key,
)
from firesteel.engines.schema.releases import find_schema, known_versions
from firesteel.engines.schema.symbols import Config, Flag, Schema, SymbolValue
from firesteel.errors import FiresteelError


def release(
    version: str, *, dtypes: tuple[str, ...] = ("auto",), old: bool = True, strict: bool = True
) -> Schema:
    flags = [
        Flag("dtype", SymbolValue("str", dtypes, open=False, default="auto")),
        Flag("tp", SymbolValue("int", default=1), aliases=("-t",), variables=("TP",)),
        Flag("lora", SymbolValue("bool"), "nothing", negatives=("--no-lora",), deprecated=True),
        *([Flag("old")] if old else []),
    ]
    configs = {
        "Spec": Config("Spec", {"method": SymbolValue("str", ("mtp",)), "n": SymbolValue("int")}, strict)
    }
    return Schema("vllm", version, {flag.name: flag for flag in flags}, configs, {"VLLM_X": SymbolValue()})


RELEASES = [
    release("0.9.0"),
    release("0.10.0", dtypes=("auto", "fp8"), strict=False),
    release("0.11.0", dtypes=("auto", "fp8"), old=False),
    release("0.12.0", dtypes=("auto", "fp8")),
]


def history() -> EngineHistory:
    return build_history(reversed(RELEASES))


@pytest.mark.parametrize("one", RELEASES, ids=lambda one: one.version)
def test_a_release_survives_a_round_trip(one: Schema) -> None:
    assert schema_at(load_history(dump_history(history())), one.version) == one


def test_merged_ranges() -> None:
    read = history()
    assert merge_ranges(read, read.flags["--old"].ranges) == (("0.9.0", "0.10.0"), ("0.12.0", None))
    assert merge_ranges(read, read.flags["--dtype"].values["fp8"]) == (("0.10.0", None),)
    assert merge_ranges(read, read.keys["Spec"].ranges) == (("0.9.0", None),)
    assert len(read.keys["Spec"].ranges) == 3


def test_one_line_per_symbol() -> None:
    lines = dump_history(history()).splitlines()
    assert sum(line.startswith('"--') for line in lines) == 4
    assert '"--old":{"is":[["0.9.0","0.10.0"],["0.12.0"]]},' in lines


def test_a_new_release_that_changes_nothing_changes_only_the_list_of_releases() -> None:
    before = dump_history(history()).splitlines()
    after = dump_history(build_history([*RELEASES, release("0.13.0", dtypes=("auto", "fp8"))])).splitlines()
    assert [line for line in after if line not in before] == [
        '"versions":["0.9.0","0.10.0","0.11.0","0.12.0","0.13.0"],'
    ]


def test_order() -> None:
    assert version_key("0.5.15") < version_key("0.5.15.post1") < version_key("0.5.16") < version_key("0.10.0")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"engine":"vllm","versions":[],"flags":{"--x":1}}'])
def test_a_damaged_file_has_a_readable_error(text: str) -> None:
    with pytest.raises(FiresteelError, match=r"mine\.json is not what firesteel wrote"):
        load_history(text, "mine.json")


def test_learned_releases_join_the_shipped() -> None:
    mine = build_history([release("0.99.0")])
    assert known_versions("vllm", [mine])[-1] == "0.99.0"
    assert find_schema("vllm", "0.99.0", [mine]) == release("0.99.0")
    near = find_schema("vllm", "0.99.1", [mine])
    assert near and near.asked == "0.99.1"
