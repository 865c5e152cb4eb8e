"""What a release says of a line, where no rule of ours knows more."""

from __future__ import annotations

from pathlib import Path

import pytest

import firesteel
from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import ImageFlags, Images, with_learned
from firesteel.edge import learned_engines
from firesteel.edge.home import Home
from firesteel.engines.schema.releases import find_schema, known_versions
from firesteel.engines.schema.symbols import Flag, SymbolValue
from firesteel.reads.launches import read
from firesteel.rules.checker import check
from firesteel.values import replace

RUN = "docker run --gpus all {env} {image} openai/gpt-oss-20b --gpu-memory-utilization 0.8 {arguments}"
V24 = "vllm/vllm-openai:v0.24.0"


def rules(arguments: str, image: str = V24, env: str = "") -> dict[str, str]:
    line = RUN.format(image=image, arguments=arguments, env=env)
    return {finding.rule: finding.says for finding in firesteel.check(line)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--max-num-queued-reqs 9", "first in 0.29.0"),
        ("--moe-bakend marlin", "did you mean `--moe-backend`?"),
        ("--zzz 1", "no release since 0.10.1 had it"),
    ],
)
def test_an_unknown_flag_of_a_known_release(arguments: str, says: str) -> None:
    assert says in rules(arguments)["flag-unknown"]


def test_values_and_keys_that_the_release_refuses() -> None:
    assert "it takes auto," in rules("--kv-cache-dtype fp9")["value-refused"]
    assert "first in 0.29" in rules("--moe-backend b12x")["value-refused"]
    spec = '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2, "nonsense": 1}\''
    assert '"nonsense" in --speculative-config' in rules(spec)["value-refused"]


def test_variables_that_the_release_does_not_read() -> None:
    assert "no release read it" in rules("", env="-e VLLM_NONSENSE=1")["variable-unread"]
    assert "variable-unread" not in rules("", env="-e VLLM_API_KEY=x -e NCCL_DEBUG=INFO")


def test_a_rule_that_knows_more_is_shown_instead() -> None:
    found = rules("--swap-space 4")
    assert "vllm-swap-space-gone" in found and "flag-unknown" not in found


@pytest.mark.parametrize("image", ["nvcr.io/nvidia/vllm:26.04-py3 vllm serve", "me/mine:1 vllm serve"])
def test_forks_and_unknown_releases_are_not_judged(image: str) -> None:
    assert "flag-unknown" not in rules("--zzz 1", image=image)


def test_a_tag_that_moves_is_judged_as_the_newest_and_warns() -> None:
    line = "docker run --gpus all vllm/vllm-openai:nightly org/m --gpu-memory-utilization 0.8 --zzz 1"
    (found,) = [each for each in firesteel.check(line) if each.rule == "flag-unknown"]
    assert found.level == "warn" and "0.32.0" in found.scope


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("--max-num-seqs abc", "it takes a whole number"),
        ("--max-num-seqs 1e3", "it takes a whole number"),
        ("--port", "it takes a value, and none follows"),
        ("--cpu-offload-gb lots", "it takes a number"),
        ("""--speculative-config '{"method":"mtp","num_speculative_tokens":1'""", "this is not JSON"),
        ("--speculative-config '{method:mtp}'", "this is not JSON"),
    ],
)
def test_values_of_another_kind(arguments: str, why: str) -> None:
    assert why in rules(arguments)["value-refused"]


@pytest.mark.parametrize(
    "arguments",
    ["--max-num-seqs $N", "--max-num-seqs {n}", "--port 8000", "--max-model-len 32k", "--max-model-len auto",
     "--speculative-config $SPEC", "--speculative-config {spec}", "--seed -1"],
)  # fmt: skip
def test_values_that_may_be_valid(arguments: str) -> None:
    assert "value-refused" not in rules(arguments)


@pytest.mark.parametrize("arguments", ["--gpu-memory-util 0.8", "-tp 1", "--no-enable-prefix-caching", "-O3"])
def test_spellings_that_the_parser_accepts(arguments: str) -> None:
    assert "flag-unknown" not in rules(arguments)


def own_build(version: str, *without: str) -> Images:
    """An image of one's own that was read here: a release's flags and one more, less some."""
    known = find_schema("vllm", "0.24.0")
    assert known is not None
    flags = {name: flag for name, flag in known.flags.items() if name not in without}
    mine = replace(known, version=version, flags={**flags, "my-own": Flag("my-own", SymbolValue())})
    seen = ImageFlags("me/mine:1", (), "vllm", version, (), ("arm64",), "2026-11-15", mine)
    return with_learned(shipped().images, [seen])


def own_findings(images: Images, arguments: str) -> dict[str, str]:
    line = RUN.format(image="me/mine:1 vllm serve", arguments=arguments, env="")
    launch = read(line, "line", images)[0].launch
    assert launch.container is not None and launch.version is not None
    return {each.rule: each.says for each in check(launch, hardware="gb10", images=images)}


def test_an_image_that_was_read_is_judged_by_itself() -> None:
    images = own_build("0.24.0", "max-num-seqs")
    assert "flag-unknown" not in own_findings(images, "--my-own 1")
    assert "no release since 0.10.1 had it" in own_findings(images, "--zzz 1")["flag-unknown"]
    assert "not in this build" in own_findings(images, "--max-num-seqs 4")["flag-unknown"]
    assert "first in 0.29.0" in own_findings(images, "--max-num-queued-reqs 9")["flag-unknown"]


def test_a_flag_that_went_after_all_that_ship() -> None:
    newest = known_versions("vllm")[-1]
    says = own_findings(own_build("9.9.0", "max-num-seqs"), "--max-num-seqs 4")["flag-unknown"]
    assert f"last in {newest}" in says


@pytest.fixture
def learned_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home in which a release newer than all that ship was learned."""
    known = find_schema("vllm", known_versions("vllm")[-1])
    assert known is not None
    home = Home(tmp_path)
    learned_engines.save_schema(
        home, replace(known, version="9.9.0", flags={"my-own": Flag("my-own", SymbolValue())})
    )
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path))
    return home


def test_a_release_that_was_learned_is_judged(learned_home: Home) -> None:
    found = rules("--my-own 1", image="vllm/vllm-openai:v9.9.0")
    assert "--gpu-memory-utilization" in found["flag-unknown"] and "--my-own" not in found["flag-unknown"]


def test_an_image_that_was_learned_is_judged(learned_home: Home) -> None:
    seen = own_build("0.24.0").inspected["me/mine:1"]
    assert seen.schema is not None
    told = ImageFlags("me/mine:1", (), "vllm", "0.24.0", (), (), "2026-11-15", seen.schema)
    learned_engines.save_image(learned_home, told)
    assert "no release since 0.10.1 had it" in rules("--zzz 1", image="me/mine:1 vllm serve")["flag-unknown"]
