"""`repair` on made checkpoints: what it mends, what the error is afterwards, and that nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import firesteel
from firesteel.errors import FiresteelError, UsageError
from firesteel.rules.checkpoint.checks import Mend
from firesteel.workshop.audit import audit
from firesteel.workshop.kernels.reference import e4m3_to_f32, f32_to_e4m3
from firesteel.workshop.repair import RepairOptions, repair, undo_repair
from firesteel.workshop.repair.repair import WrittenLayout
from firesteel.workshop.repair.scales import scale_table
from tests.cli.inside import inside
from tests.conftest import Firesteel
from tests.workshop.audit_checkpoints import GOOD, MadeCheckpoint, good, weights
from tests.workshop.damaged_checkpoints import DAMAGED, EXPERT
from tests.workshop.reference_formats import Floats, Stored, dequantize_nvfp4, factor_of, nvfp4

MENDED = {name: damaged for name, damaged in DAMAGED.items() if damaged.mended_by}
OPTIONS: dict[str, frozenset[Mend]] = {
    "--scales": frozenset({"scales", "invert"}),
    "--index": frozenset({"index"}),
    "--config": frozenset({"config"}),
}


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "FIRESTEEL_HOME": str(tmp_path / "home/firesteel")}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def read_tensors(folder: Path) -> dict[str, Stored]:
    """Read by hand, not with the package."""
    tensors = {}
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, info in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = (8 + length + offset for offset in info["data_offsets"])
                tensors[name] = Stored(info["dtype"], tuple(info["shape"]), data[start:end])
    return tensors


@pytest.mark.parametrize("name", MENDED)
def test_what_is_damaged_is_mended(name: str, tmp_path: Path, environ: dict[str, str]) -> None:
    damaged = MENDED[name]
    sound = GOOD[damaged.start]().write(tmp_path / "good")
    folder = damaged.make().write(tmp_path / name)
    before = contents(folder)
    assert damaged.mended_by
    options = RepairOptions(
        OPTIONS.get(damaged.mended_by, frozenset()),
        graft=str(sound) if damaged.mended_by.startswith("--graft") else None,
        out=tmp_path / "out",
    )
    report = repair(str(folder), options, environ=environ)
    assert damaged.check in report.mended
    assert report.left == ()
    assert audit(str(tmp_path / "out"), deep=True, environ=environ).is_clean
    assert contents(folder) == before


def test_ten_of_thirty_and_more_are_mended() -> None:
    assert len(MENDED) >= 10


# --- scales ---


def unshared(ratio: float, layout: str = "compressed-tensors") -> tuple[MadeCheckpoint, dict[str, Floats]]:
    """Experts whose up has a range smaller than its gate, each quantized with a scale of its own."""
    made = good("modelopt" if layout == "modelopt" else "ct-nvfp4")
    plain: dict[str, Floats] = {}
    for name, values in weights(made.config).items():
        module = name.removesuffix(".weight")
        if ".experts." in name and name.endswith(("gate_proj.weight", "up_proj.weight")):
            random = np.random.default_rng(len(plain))
            values = random.standard_normal(values.shape).astype(np.float32) * 0.05
            values *= np.float32(1 / ratio if "up_proj" in name else 1)
            plain[module] = values
            made.tensors |= nvfp4(module, values, float(np.abs(values).max()), layout, layout == "modelopt")
    return made, plain


def engine_error(tensors: dict[str, Stored], plain: dict[str, Floats]) -> tuple[float, float]:
    """Relative errors, mean and largest, where an engine uses the gate's global scale for both."""
    errors = []
    for module, values in plain.items():
        factor = factor_of(tensors, module.replace("up_proj", "gate_proj"))
        errors.append(
            np.linalg.norm(dequantize_nvfp4(tensors, module, factor) - values) / np.linalg.norm(values)
        )
    return float(np.mean(errors)), float(np.max(errors))


@pytest.mark.parametrize("layout", ["compressed-tensors", "modelopt"])
@pytest.mark.parametrize("ratio", [1.24, 2.0, 3.3, 10.0])
def test_reconciled_scales_cost_next_to_nothing(
    ratio: float, layout: str, tmp_path: Path, environ: dict[str, str]
) -> None:
    """The ideal: quantized from the weights with one scale for both."""
    made, plain = unshared(ratio, layout)
    ideal: dict[str, Stored] = {}
    for module, values in plain.items():
        gate = plain[module.replace("up_proj", "gate_proj")]
        amax = max(float(np.abs(values).max()), float(np.abs(gate).max()))
        ideal |= nvfp4(module, values, amax, layout)
    best_mean, best_max = engine_error(ideal, plain)
    folder = made.write(tmp_path / "model")
    bad_mean, _ = engine_error(read_tensors(folder), plain)
    report = repair(str(folder), RepairOptions(out=tmp_path / "out"), environ=environ)
    mean, worst = engine_error(read_tensors(tmp_path / "out"), plain)
    assert bad_mean > 1.1 * best_mean
    assert mean <= 1.05 * best_mean
    assert worst <= 1.08 * best_max  # one small matrix
    assert {group.modules[0].rpartition(".")[2] for group in report.groups} == {"gate_proj"}
    assert all(group.error_after < group.error_before for group in report.groups)


def test_the_told_error_is_the_measured_one(tmp_path: Path, environ: dict[str, str]) -> None:
    made, _ = unshared(3.3)
    folder = made.write(tmp_path / "model")
    report = repair(str(folder), RepairOptions(out=tmp_path / "out"), environ=environ)
    old, new = read_tensors(folder), read_tensors(tmp_path / "out")
    for group in report.groups:
        meant = np.concatenate([dequantize_nvfp4(old, module) for module in group.modules])
        first = factor_of(old, group.modules[0])
        before = np.concatenate([dequantize_nvfp4(old, module, first) for module in group.modules])
        after = np.concatenate([dequantize_nvfp4(new, module) for module in group.modules])
        scale = np.linalg.norm(meant)
        assert group.error_before == pytest.approx(np.linalg.norm(before - meant) / scale, rel=0.1)
        assert group.error_after == pytest.approx(np.linalg.norm(after - meant) / scale, rel=0.25)


def test_the_payload_stays(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = DAMAGED["gate-up-scales-differ"].make().write(tmp_path / "model")
    repair(str(folder), RepairOptions(out=tmp_path / "out"), environ=environ)
    old, new = read_tensors(folder), read_tensors(tmp_path / "out")
    changed = {name.rpartition(".")[2] for name in old if old[name] != new[name]}
    assert old.keys() == new.keys()
    assert changed == {"weight_scale", "weight_global_scale"}


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.77, 0.11, 0.013])
def test_the_table_of_scales_rounds_as_the_kernels_do(factor: float) -> None:
    codes = np.arange(127, dtype=np.uint8)
    expected = f32_to_e4m3(e4m3_to_f32(codes) * np.float32(factor))
    table = np.frombuffer(scale_table(float(np.float32(factor))), np.uint8)
    assert np.array_equal(table[:127], expected)
    assert np.array_equal(table[128:255], expected | 0x80)


# --- layout and shards ---


@pytest.mark.parametrize(
    "start", ["nvfp4-w4a4", "nvfp4-modelopt", "nvfp4-compressed-tensors", "mla-modelopt"]
)
def test_layouts_are_converted_and_back(start: str, tmp_path: Path, environ: dict[str, str]) -> None:
    folder = GOOD[start]().write(tmp_path / "model")
    there: WrittenLayout = "compressed-tensors" if "modelopt" in start else "modelopt"
    back: WrittenLayout = "modelopt" if "modelopt" in start else "compressed-tensors"
    repair(str(folder), RepairOptions(to=there, out=tmp_path / "there"), environ=environ)
    repair(str(tmp_path / "there"), RepairOptions(to=back, out=tmp_path / "back"), environ=environ)
    for made in (tmp_path / "there", tmp_path / "back"):
        assert audit(str(made), deep=True, environ=environ).is_clean
    old, middle, new = (read_tensors(each) for each in (folder, tmp_path / "there", tmp_path / "back"))
    assert old.keys() == new.keys() != middle.keys()
    for name, stored in old.items():
        if stored.dtype == "F32":
            np.testing.assert_allclose(stored.floats(), new[name].floats(), rtol=1e-6)
        else:
            assert stored == new[name]
    module = f"{EXPERT}.up_proj" if f"{EXPERT}.up_proj.weight_scale" in old else "model.layers.0.mlp.up_proj"
    np.testing.assert_allclose(dequantize_nvfp4(old, module), dequantize_nvfp4(middle, module), rtol=1e-5)


def test_fp8_is_not_converted(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = GOOD["spark"]().write(tmp_path / "model")
    with pytest.raises(FiresteelError, match="fp8"):
        repair(str(folder), RepairOptions(to="modelopt", out=tmp_path / "out"), environ=environ)
    assert not (tmp_path / "out").exists()


def test_files_are_split_and_merged(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = GOOD["nvfp4-compressed-tensors"]().write(tmp_path / "model")
    repair(str(folder), RepairOptions(shard_bytes=50_000, out=tmp_path / "many"), environ=environ)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 3
    repair(str(tmp_path / "many"), RepairOptions(shard_bytes=10**9, out=tmp_path / "one"), environ=environ)
    assert [path.name for path in (tmp_path / "one").glob("*.safetensors")] == ["model.safetensors"]
    assert not (tmp_path / "one" / "model.safetensors.index.json").exists()
    assert read_tensors(folder) == read_tensors(tmp_path / "many") == read_tensors(tmp_path / "one")
    for made in ("many", "one"):
        assert audit(str(tmp_path / made), environ=environ).findings == ()


# --- in place ---


@pytest.mark.parametrize(
    "name", ["gate-up-scales-differ", "index-missing", "config-of-modelopt", "mtp-missing"]
)
def test_in_place_and_undone(name: str, tmp_path: Path, environ: dict[str, str]) -> None:
    damaged = MENDED[name]
    sound = GOOD[damaged.start]().write(tmp_path / "good")
    folder = damaged.make().write(tmp_path / "model")
    before = contents(folder)
    other = str(sound) if "graft" in str(damaged.mended_by) else None
    repair(str(folder), RepairOptions(graft=other, in_place=True), environ=environ)
    assert audit(str(folder), environ=environ).is_clean
    with pytest.raises(UsageError, match="repaired before"):
        repair(str(folder), RepairOptions(shard_bytes=10**9, in_place=True), environ=environ)
    undo_repair(str(folder))
    assert contents(folder) == before
    assert {path.name for path in folder.iterdir()} == before.keys()
    with pytest.raises(UsageError, match="no repair to undo"):
        undo_repair(str(folder))


def test_files_that_were_right_keep_their_bytes(tmp_path: Path, environ: dict[str, str]) -> None:
    made = DAMAGED["gate-up-scales-differ"].make()
    folder = made.write(tmp_path / "model")
    (folder / "LICENSE").write_text("free")
    before = contents(folder)
    repair(str(folder), RepairOptions(out=tmp_path / "out"), environ=environ)
    repair(str(folder), RepairOptions(in_place=True), environ=environ)
    for after in (contents(folder), contents(tmp_path / "out")):
        same = {name for name in before if before[name] == after.get(name)}
        assert before.keys() == after.keys()
        assert same >= {"config.json", "tokenizer.json", "LICENSE"}


def test_a_repair_that_is_killed_can_be_undone(tmp_path: Path, environ: dict[str, str]) -> None:
    """Killed between the journal and the end: some bytes are new, some are old."""
    folder = DAMAGED["gate-up-scales-differ"].make().write(tmp_path / "model")
    before = contents(folder)
    script = """
import os, signal, sys
from firesteel.workshop.repair import RepairOptions, repair
count = 0
real = os.pwrite
def pwrite(*arguments):
    global count
    count += 1
    if count == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
os.pwrite = pwrite
repair(sys.argv[1], RepairOptions(in_place=True))
"""
    killed = subprocess.run(
        [sys.executable, "-c", script, str(folder)], env={**os.environ, **environ}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert contents(folder) != before
    undo_repair(str(folder))
    assert contents(folder) == before


def test_links_are_not_repaired_in_place(tmp_path: Path, environ: dict[str, str]) -> None:
    """In the Hub's cache the files belong to everybody."""
    real = DAMAGED["index-missing"].make().write(tmp_path / "blobs")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    for path in real.iterdir():
        (folder / path.name).symlink_to(path)
    with pytest.raises(UsageError, match="links"):
        repair(str(folder), RepairOptions(in_place=True), environ=environ)
    repair(str(folder), RepairOptions(out=tmp_path / "out"), environ=environ)
    assert audit(str(tmp_path / "out"), environ=environ).is_clean


# --- refusals ---


def test_what_is_not_better_is_not_written(tmp_path: Path, environ: dict[str, str]) -> None:
    """A graft from a checkpoint with damaged tensors."""
    folder = DAMAGED["experts-missing"].make().write(tmp_path / "model")
    donor = good("ct-nvfp4")
    donor.tensors[f"{EXPERT}.up_proj.weight_global_scale"] = Stored.f32([np.nan])
    donor.write(tmp_path / "donor")
    options = RepairOptions(graft=str(tmp_path / "donor"), out=tmp_path / "out")
    with pytest.raises(FiresteelError, match="not written"):
        repair(str(folder), options, environ=environ)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["donor", "model"]


@pytest.mark.parametrize("name", ["shard-truncated", "shard-damaged", "shard-missing"])
def test_absent_bytes_are_not_repaired(name: str, tmp_path: Path, environ: dict[str, str]) -> None:
    folder = DAMAGED[name].make().write(tmp_path / "model")
    with pytest.raises(FiresteelError, match="cannot restore"):
        repair(str(folder), RepairOptions(out=tmp_path / "out"), environ=environ)


def test_a_sound_checkpoint_is_left_alone(tmp_path: Path, run: Firesteel) -> None:
    folder = GOOD["nvfp4-modelopt"]().write(tmp_path / "model")
    ran = run("audit", str(folder), "--fix", "--out", str(tmp_path / "out"))
    assert ran.code == 0 and "nothing to repair" in ran.out
    assert not (tmp_path / "out").exists()


def test_the_command_shows_first_and_then_writes(tmp_path: Path, run: Firesteel) -> None:
    folder = DAMAGED["gate-up-scales-differ"].make().write(tmp_path / "model")
    shown = run("audit", str(folder), "--fix")
    assert shown.code == 0 and "nothing was written" in shown.out and "error" in shown.out
    assert not (tmp_path / "out").exists()
    document = run("audit", str(folder), "--fix", "--out", str(tmp_path / "out"), "--json").json
    assert document["document"] == "firesteel.repair/1"
    assert document["mended"] == ["shared-scales-differ"]
    assert document["written"] == str(tmp_path / "out")
    assert run("audit", str(tmp_path / "out")).code == 0
    again = run("audit", str(folder), "--fix", "--out", str(tmp_path / "out"))
    assert again.code == 2 and "exists" in again.err
    assert run("audit", str(folder), "--fix", "--in-place").code == 0
    assert run("audit", str(folder), "--undo").code == 0
    assert run("audit", str(folder), "--fix", "--out", "x", "--in-place").code == 2
    assert run("audit", str(folder), "--fix", "--shard-size", "many").code == 2


def test_the_library_does_what_the_commands_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    folder = DAMAGED["gate-up-scales-differ"].make().write(tmp_path / "model")
    assert not firesteel.audit(str(folder)).is_clean
    firesteel.repair(str(folder), RepairOptions(in_place=True))
    assert firesteel.audit(str(folder)).is_clean
    assert firesteel.undo_repair(str(folder))
    assert not firesteel.audit(str(folder)).is_clean
