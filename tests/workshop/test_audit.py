"""`audit` on made checkpoints: sound ones are clean, each damaged one is called by its name."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from firesteel.edge.home import Home, find_home
from firesteel.edge.hub.cache import find_store, link, save_listing
from firesteel.edge.hub.files import HubFile, Listing
from firesteel.errors import Stopped, UsageError
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import Ask
from firesteel.library.documents.all import schemas
from firesteel.rules.checkpoint.checks import CHECKS
from firesteel.run.damage import audit_pulled
from firesteel.run.events import PhaseDone
from firesteel.values import replace
from firesteel.workshop.audit import AuditReport, audit
from firesteel.workspace import Workspace
from tests.cli.inside import inside
from tests.conftest import Firesteel
from tests.edge.hub_server import COMMIT, serving
from tests.workshop.audit_checkpoints import GOOD, good
from tests.workshop.damaged_checkpoints import DAMAGED, EXPERT
from tests.workshop.published import read_config, write_published
from tests.workshop.reference_formats import Stored


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "FIRESTEEL_HOME": str(tmp_path / "home/firesteel")}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


def checks(report: AuditReport) -> set[str]:
    return {found.check for found in report.findings if found.level != "note"}


@pytest.mark.parametrize("name", GOOD)
def test_a_sound_checkpoint_is_clean(name: str, tmp_path: Path, environ: dict[str, str]) -> None:
    folder = GOOD[name]().write(tmp_path / name)
    for deep in (False, True):
        report = audit(str(folder), deep=deep, environ=environ)
        assert report.findings == (), report.findings
        assert report.unread == ()
    assert report.read_bytes == sum(path.stat().st_size for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_named(name: str, tmp_path: Path, environ: dict[str, str]) -> None:
    damaged = DAMAGED[name]
    report = audit(str(damaged.make().write(tmp_path / name)), environ=environ)
    found = {each.check: each for each in report.findings}[damaged.check]
    assert found.level in ("stop", "warn")
    assert found.effect and found.evidence and found.source.startswith("https://")
    if damaged.mended_by:
        assert found.mend is not None


def test_there_are_thirty_and_more() -> None:
    assert len(DAMAGED) >= 30
    assert len({damaged.check for damaged in DAMAGED.values()}) >= 25
    assert {damaged.check for damaged in DAMAGED.values()} <= CHECKS.keys()


def test_levels_follow_the_size_of_the_mistake(tmp_path: Path, environ: dict[str, str]) -> None:
    """A ratio of 1.1 makes answers worse, one of 8 makes them garbage."""
    levels = {}
    for name in ("one-pair-differs", "gate-up-scales-differ"):
        report = audit(str(DAMAGED[name].make().write(tmp_path / name)), environ=environ)
        levels[name] = next(found.level for found in report.findings if found.check == "shared-scales-differ")
    assert levels == {"one-pair-differs": "warn", "gate-up-scales-differ": "stop"}


def test_scales_that_differ_by_rounding_are_equal(tmp_path: Path, environ: dict[str, str]) -> None:
    made = good("ct-nvfp4")
    name = f"{EXPERT}.up_proj.weight_global_scale"
    made.tensors[name] = Stored.f32(made.tensors[name].floats() * np.float32(1.0001))
    assert audit(str(made.write(tmp_path / "model")), environ=environ).is_clean


def test_deep_finds_what_only_the_bytes_show(tmp_path: Path, environ: dict[str, str]) -> None:
    made = good("ct-nvfp4")
    values = made.tensors["lm_head.weight"].floats().copy()
    values[7, 7] = math.nan
    made.tensors["lm_head.weight"] = Stored.bf16(values)
    scale = f"{EXPERT}.down_proj.weight_scale"
    codes = np.frombuffer(made.tensors[scale].data, np.uint8).copy()
    codes[-1] = 0x7F  # NaN
    made.tensors[scale] = Stored("F8_E4M3", made.tensors[scale].shape, codes.tobytes())
    folder = str(made.write(tmp_path / "model"))
    deep = audit(folder, deep=True, environ=environ)
    assert checks(deep) == {"weights-not-finite", "scale-not-positive"}
    assert "lm_head.weight" in {found.tensor for found in deep.findings}


def test_sixty_gigabytes_take_seconds(tmp_path: Path, environ: dict[str, str]) -> None:
    """Few bytes are read, whatever the files claim."""
    size = write_published(read_config("nvidia--Qwen3.6-27B-NVFP4"), tmp_path / "model")
    assert size > 20 * 10**9
    report = audit(str(tmp_path / "model"), environ=environ)
    assert checks(report) == set()
    assert report.read_bytes < 16 * 2**20
    assert report.summary.quantization == "modelopt_mixed"
    assert report.summary.vllm == "0.17.0 and later"


@pytest.mark.parametrize(
    "name",
    ["nvidia--Gemma-4-26B-A4B-NVFP4", "Qwen--Qwen3-32B-FP8", "nvidia--Llama-3.1-70B-Instruct-FP8"],
)
def test_published_layouts_are_clean(name: str, tmp_path: Path, environ: dict[str, str]) -> None:
    write_published(read_config(name), tmp_path / "model")
    assert checks(audit(str(tmp_path / "model"), environ=environ)) == set()


def test_a_hub_id_is_audited_by_ranges(tmp_path: Path, environ: dict[str, str]) -> None:
    made = DAMAGED["gate-up-scales-differ"].make()
    folder = made.write(tmp_path / "model")
    padding = {"big.bin": bytes(4 * 2**20)}
    with serving() as hub:
        hub.add("org/model", {path.name: path.read_bytes() for path in folder.iterdir()} | padding)
        report = audit("org/model", environ=environ | {"HF_ENDPOINT": hub.url})
    assert checks(report) == {"shared-scales-differ"}
    assert report.model == "org/model"
    assert "big.bin" not in hub.sent


def test_what_is_no_checkpoint_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("x")
    for model in ("empty", "note.txt", "absent"):
        with pytest.raises(UsageError):
            audit(str(tmp_path / model), environ=environ)


def test_the_command_prints_shows_and_exits(
    tmp_path: Path, run: Firesteel, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = DAMAGED["gate-up-scales-differ"].make().write(tmp_path / ("bad-" * 40))
    text = run("audit", str(folder))
    assert text.code == 3
    assert "shared-scales-differ" in text.out and "--scales" in text.out
    monkeypatch.setenv("FIRESTEEL_COMMAND", "./firesteel")
    typed = run("audit", str(folder)).out.splitlines()
    assert f"      fix    ./firesteel audit {folder} --fix --scales" in typed, "a line to copy is not wrapped"
    assert f"next: ./firesteel audit {folder} --fix, which shows what it would do" in typed
    document = json.loads(run("audit", str(folder), "--json").out)
    assert document["document"] == "firesteel.audit/1"
    assert document["findings"][0]["check"] == "shared-scales-differ"
    assert document["findings"][0]["mend"] == "scales"
    sarif = json.loads(run("audit", str(folder), "--sarif").out)
    result = sarif["runs"][0]["results"][0]
    assert result["ruleId"] == "shared-scales-differ" and result["level"] == "error"
    sound = run("audit", str(GOOD["plain-dense"]().write(tmp_path / "good")))
    assert sound.code == 0 and "clean" in sound.out
    warned = run("audit", str(DAMAGED["one-pair-differs"].make().write(tmp_path / "warned")))
    assert warned.code == 1


def test_the_document_matches_its_schema(tmp_path: Path, run: Firesteel) -> None:
    folder = DAMAGED["mtp-missing"].make().write(tmp_path / "bad")
    document = json.loads(run("audit", str(folder), "--json").out)
    jsonschema.validate(document, schemas()["firesteel.audit/1"])


def test_a_pulled_snapshot_is_compared_with_the_listing(tmp_path: Path, environ: dict[str, str]) -> None:
    """Other bytes of the same size show only in the digest, so only --deep finds them."""
    made = good("ct-nvfp4").write(tmp_path / "made")
    store, commit = find_store(find_home(environ), environ), "0" * 40
    files = []
    for path in sorted(made.iterdir()):
        file = HubFile(path.name, path.stat().st_size, "a" * 64)
        hasher = file.new_hash()
        hasher.update(path.read_bytes())
        files.append(HubFile(path.name, path.stat().st_size, hasher.hexdigest()))
    listing = Listing("org/model", commit, tuple(files))
    for file in files:
        blob = store.blob("org/model", file)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes((made / file.path).read_bytes())
        link(store, listing, file)
    save_listing(store, listing, "main")
    assert audit("org/model", deep=True, environ=environ).is_clean
    blob = store.blob("org/model", next(file for file in files if file.path.startswith("model-00001")))
    with blob.open("r+b") as damaged:
        damaged.seek(-3, os.SEEK_END)
        damaged.write(b"\x11")
    assert audit("org/model", environ=environ).is_clean
    assert checks(audit("org/model", deep=True, environ=environ)) == {"digest-differs"}


# --- plan and up ---


def test_plan_audits_a_folder_and_says_so(tmp_path: Path, run: Firesteel) -> None:
    sound = run("plan", str(GOOD["nvfp4-compressed-tensors"]().write(tmp_path / "good")), "--host", "gb10")
    assert sound.code == 0
    assert "audited from its headers and scales: nothing is wrong" in sound.out
    folder = DAMAGED["gate-up-scales-differ"].make().write(tmp_path / "bad")
    stopped = run("plan", str(folder), "--host", "gb10")
    assert stopped.code == 3
    assert "audit-shared-scales-differ" in stopped.out
    assert f"next: firesteel audit {folder} --fix" in stopped.out
    warned = run("plan", str(DAMAGED["one-pair-differs"].make().write(tmp_path / "warned")), "--host", "gb10")
    assert warned.code == 0 and "audit-shared-scales-differ" in warned.out
    document = run("plan", str(folder), "--host", "gb10", "--json").json
    assert document["findings"][0]["rule"] == "audit-shared-scales-differ"


def test_up_refuses_what_the_audit_stops(tmp_path: Path, run: Firesteel) -> None:
    folder = DAMAGED["gate-up-scales-differ"].make().write(tmp_path / "bad")
    ran = run("--sim", "idle", "up", str(folder), "--dry-run", env={"FIRESTEEL_SIM": str(tmp_path / "sim")})
    assert ran.code == 3
    assert "audit-shared-scales-differ" in ran.err
    assert "--despite shared-scales-differ, if the audit is wrong" in ran.err


def test_what_the_audit_stops_can_be_overruled(tmp_path: Path, run: Firesteel) -> None:
    folder = DAMAGED["gate-up-scales-differ"].make().write(tmp_path / "bad")
    env = {"FIRESTEEL_SIM": str(tmp_path / "sim")}
    words = ("--sim", "idle", "up", str(folder), "--dry-run")
    assert run(*words, "--despite", "shared-scales-differ", env=env).code == 0
    assert run(*words, "--despite", "router-quantized", env=env).code == 3
    unknown = run(*words, "--despite", "no-such-check", env=env)
    assert unknown.code == 2 and f"audit {folder}" in unknown.err
    plan = run("plan", str(folder), "--host", "gb10", "--despite", "shared-scales-differ")
    assert (
        "warn  audit-shared-scales-differ" in plan.out
        and "--despite shared-scales-differ" in plan.err + plan.out
    )


def test_a_plan_of_a_hub_id_says_that_it_was_not_audited(
    tmp_path: Path, run: Firesteel, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = GOOD["plain-dense"]().write(tmp_path / "model")
    with serving() as hub:
        hub.add("org/model", {path.name: path.read_bytes() for path in folder.iterdir()})
        ran = run("plan", "org/model", "--host", "gb10", env={"HF_ENDPOINT": hub.url})
    assert ran.code == 0
    assert "firesteel audit org/model" in ran.out


async def test_pulled_weights_are_audited_before_an_engine_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped without a recipe; told where a recipe says that somebody has run it."""
    home = Home(tmp_path / "home")
    monkeypatch.setenv("FIRESTEEL_HOME", str(home.root))
    store = find_store(home)
    for name, kind in (("org/good", "good"), ("org/bad", "bad")):
        made = GOOD["plain-moe"]() if kind == "good" else DAMAGED["experts-missing"].make()
        snapshot = store.snapshot(name, COMMIT)
        made.write(snapshot)
        reference = store.folder(name) / "refs" / "main"
        reference.parent.mkdir()
        reference.write_text(COMMIT)
    host = idle_host(hardware("gb10"))
    workspace = Workspace(home)
    good_one = workspace.propose(Ask("org/good"), host)[0]
    (told,) = [event async for event in audit_pulled(good_one, home)]
    assert isinstance(told, PhaseDone) and "nothing is wrong" in told.text
    bad_one = workspace.propose(Ask("org/bad"), host)[0]
    with pytest.raises(Stopped, match="audit-experts-missing"):
        [event async for event in audit_pulled(bad_one, home)]
    recipe = next(iter(workspace.catalog.recipes.values()))
    (told,) = [event async for event in audit_pulled(replace(bad_one, recipe=recipe), home)]
    assert isinstance(told, PhaseDone) and "experts are absent" in told.text
