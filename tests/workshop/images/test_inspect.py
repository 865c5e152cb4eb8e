"""`image inspect` on images that the tests make: every source says the same, and each trap is found."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.edge.home import Home
from firesteel.edge.records import read_inspections
from firesteel.errors import FiresteelError, UsageError
from firesteel.workshop.images import contents as contents_module
from firesteel.workshop.images.inspect import inspect_image, judge_recipes, save_inspection
from firesteel.workshop.images.layers import DamagedImage
from firesteel.workshop.images.report import ImageReport, compare_reports
from firesteel.workshop.images.sources import open_image
from tests.conftest import Firesteel
from tests.workshop.images.made_images import (
    SITE,
    VLLM_CONFIG,
    Entries,
    gpu_library,
    layer,
    package,
    vllm_files,
    write_docker_archive,
    write_layout,
    write_oci_archive,
)


def report_of(folder: Path, entries: Entries, *, architecture: str = "arm64", **config: Any) -> ImageReport:
    made = write_layout(folder / "layout", [layer(entries)], architecture=architecture, **config)
    return inspect_image(open_image(str(made)), folder)


def checks(report: ImageReport) -> dict[str, str]:
    return {problem.check: problem.level for problem in report.problems}


def test_layout_oci_archive_and_docker_archive_say_the_same(tmp_path: Path) -> None:
    layers = [layer(vllm_files()), layer(package("ray", "2.50.0"))]
    layout = write_layout(tmp_path / "layout", layers, **VLLM_CONFIG)
    archives = (
        write_oci_archive(tmp_path / "oci.tar", layout),
        write_docker_archive(tmp_path / "docker.tar", layers, **VLLM_CONFIG),
    )
    report = inspect_image(open_image(str(layout)), tmp_path)
    for archive in archives:
        other = inspect_image(open_image(str(archive)), tmp_path)
        assert compare_reports(report, other).differences == ()
        assert other.digests[-1] == report.digests[-1], "the config's digest identifies the image everywhere"
    assert (report.engine, report.version, report.architecture) == ("vllm", "0.28.0", "arm64")
    assert {found.name: found.version for found in report.components} == {
        "python": "3.12", "ray": "2.50.0", "torch": "2.11.0", "triton": "3.6.0", "vllm": "0.28.0",
    }  # fmt: skip
    assert report.base and report.base.version == "Ubuntu 24.04.3 LTS"
    assert report.cuda and (report.cuda.version, report.cuda.how) == ("13.0.2", "env CUDA_VERSION")
    assert report.driver and report.driver.version == ">=580"
    assert report.start.style == "starts the engine" and report.start.ports == ("8000/tcp",)
    assert report.start.env["HF_TOKEN"] == "...", "a secret in an image is not printed again"
    assert report.problems == () and report.is_complete


@pytest.mark.parametrize("name", ["sm121a", "family", "many", "ptx", "compressed", "sm90"])
def test_gpu_code_is_what_cuobjdump_lists(name: str, tmp_path: Path) -> None:
    """tests/facts/test_gpu_code.py holds the reader against cuobjdump; here it reads out of a layer."""
    from firesteel.facts.gpu_code import gpu_code

    report = report_of(tmp_path, {"usr/lib/libkernel.so.1.2": gpu_library(name)})
    code = gpu_code(gpu_library(name))
    (library,) = report.gpu_libraries
    assert (library.machine, library.ptx, library.on_gb10) == (code.machine, code.ptx, code.runs_on("12.1"))


def test_a_library_larger_than_memory_allows_is_read_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents_module, "_IN_MEMORY_BYTES", 1000)
    scratch = tmp_path / "scratch"
    made = write_layout(tmp_path / "layout", [layer({"lib/a.so": gpu_library("many")})])
    report = inspect_image(open_image(str(made)), scratch)
    assert report.gpu_libraries[0].machine[-1] == "sm_121a"
    assert list(scratch.iterdir()) == [], "the copy has no name and is gone"


SM90 = gpu_library("sm90")
CUDART_12_USER = (Path(__file__).parent / "cudart12_user.so").read_bytes()
"""A function that calls cudaFree, linked by gcc with a library whose soname is libcudart.so.12."""


@pytest.mark.parametrize(
    ("entries", "env", "expected"),
    [
        (vllm_files(), [], {}),
        (vllm_files("ptx"), [], {"engine-needs-jit": "warn"}),
        (vllm_files("sm90"), [], {"engine-lacks-gb10": "stop"}),
        (vllm_files("compressed"), [], {"engine-needs-jit": "warn"}),
        ({**vllm_files(), f"{SITE}/vllm/_mla_C.so": SM90}, [], {"library-lacks-gb10": "note"}),
        ({**vllm_files(), f"{SITE}/flash_attn_2.so": SM90}, [], {"attention-lacks-gb10": "warn"}),
        ({**vllm_files(), f"{SITE}/flashinfer/x.so": gpu_library("sm121a")}, [], {}),
        (vllm_files("none"), [], {"engine-without-kernels": "stop"}),
        ({**vllm_files(), f"{SITE}/flash_attn.so": CUDART_12_USER}, [], {"cuda12-library-in-cuda13": "stop"}),
        (
            {**vllm_files(), f"{SITE}/flash_attn.so": CUDART_12_USER, "usr/lib/libcudart.so.12": b"x"},
            [],
            {"cuda12-library-in-cuda13": "note"},
        ),
        (
            {**vllm_files(), f"{SITE}/flash_attn.so": CUDART_12_USER},
            ["CUDA_VERSION=12.9.1"],
            {},
        ),
        (vllm_files(triton="3.5.1"), [], {"triton-ptxas-too-old": "warn"}),
        (
            {**vllm_files(triton="3.5.1"), "usr/local/cuda-13.0/bin/ptxas": b"x"},
            ["TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"],
            {},
        ),
        (
            vllm_files(triton="3.5.1"),
            ["TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"],
            {"triton-ptxas-absent": "stop"},
        ),
        (vllm_files(), ["TRITON_PTXAS_PATH=/x/ptxas"], {"triton-ptxas-ignored": "note"}),
        (vllm_files(nvidia_cutlass_dsl="4.4.2"), [], {"cutlass-dsl-without-sm121": "warn"}),
        (vllm_files(nvidia_cutlass_dsl="4.5.0"), [], {}),
        (
            {
                **vllm_files(),
                **package("nvidia_cutlass_dsl", "4.4.2"),
                f"{SITE}/nvidia_cutlass_dsl/python_packages/cutlass/cute/nvgpu/warp/mma.py": (
                    b"class BlockScaledMmaOp:\n    admissible_archs = [Arch.sm_120a, Arch.sm_121a]\n"
                ),
            },
            [],
            {},
        ),
        (
            {**vllm_files(), "opt/venv/lib/python3.12/site-packages/vllm-0.27.0.dist-info/METADATA": b""},
            [],
            {"two-versions": "warn"},
        ),
        ({**vllm_files(), "../x": b""}, [], {"paths-outside-root": "stop"}),
    ],
)  # fmt: skip
def test_traps(entries: Entries, env: list[str], expected: dict[str, str], tmp_path: Path) -> None:
    config = {**VLLM_CONFIG, "Env": [*VLLM_CONFIG["Env"], *env]}
    assert checks(report_of(tmp_path, entries, **config)) == expected


def test_an_image_for_another_processor_is_told(tmp_path: Path) -> None:
    assert checks(report_of(tmp_path, vllm_files(), architecture="amd64", **VLLM_CONFIG)) == {
        "wrong-processor": "stop"
    }


def test_recipes_that_the_image_can_run(tmp_path: Path) -> None:
    new = judge_recipes(report_of(tmp_path / "new", vllm_files(), **VLLM_CONFIG), shipped())
    assert {verdict.recipe for verdict in new if verdict.can_run} >= {"gpt-oss-20b"}
    old = judge_recipes(
        report_of(tmp_path / "old", vllm_files("sm90", vllm="0.9.0"), **VLLM_CONFIG), shipped()
    )
    assert len(old) == len(new)
    assert not any(verdict.can_run for verdict in old), "no code for a GB10"
    without = report_of(tmp_path / "none", {"bin/sh": b"#!"})
    assert judge_recipes(without, shipped()) == ()


def test_a_comparison_names_what_differs(tmp_path: Path) -> None:
    first = report_of(tmp_path / "a", vllm_files("family"), **VLLM_CONFIG)
    second = report_of(
        tmp_path / "b", {**vllm_files("sm90", vllm="0.29.0"), "opt/big": bytes(5000)}, **VLLM_CONFIG
    )
    comparison = compare_reports(first, second)
    rows = {row.what: (row.first, row.second) for row in comparison.differences}
    assert rows["vllm"] == ("0.28.0", "0.29.0")
    assert f"GPU code of {SITE}/vllm/_C.abi3.so" in rows
    assert ("/opt", 5000) in comparison.parts
    assert [text.partition(":")[0] for text in comparison.new_problems] == ["engine-lacks-gb10"]
    assert compare_reports(first, first).differences == ()


# --- damage ---


def test_folders_and_archives_that_are_no_image(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.tar").write_text("not a tar")
    (tmp_path / "other.tar").write_bytes(layer({"a": b"b"}))
    (tmp_path / "packed.tar").write_bytes(b"\x1f\x8b" + bytes(100))
    for name in ("empty", "text.tar", "other.tar", "packed.tar", "absent.tar"):
        with pytest.raises(FiresteelError) as caught:
            open_image(str(tmp_path / name))
        assert caught.value.next, name


def test_damaged_blobs_are_found_by_their_digests(tmp_path: Path) -> None:
    for blob in range(3):
        made = write_layout(tmp_path / str(blob), [layer(vllm_files())], **VLLM_CONFIG)
        path = sorted((made / "blobs" / "sha256").iterdir())[blob]
        path.write_bytes(path.read_bytes()[:-9] + b"123456789")
        with pytest.raises(DamagedImage):
            inspect_image(open_image(str(made)), tmp_path)


def test_a_blob_that_links_out_of_the_folder_is_not_read(tmp_path: Path) -> None:
    made = write_layout(tmp_path / "layout", [layer({"a": b"b"})])
    for path in (made / "blobs" / "sha256").iterdir():
        outside = tmp_path / path.name
        path.rename(outside)
        path.symlink_to(outside)
    with pytest.raises(DamagedImage, match="out of the folder"):
        open_image(str(made))


def test_an_archive_whose_blobs_are_links_or_missing(tmp_path: Path) -> None:
    path = write_docker_archive(tmp_path / "a.tar", [layer({"a": b"b"})])
    with tarfile.open(path) as archive:
        names = archive.getnames()
        kept = {name: archive.extractfile(name) for name in names}
        data = {name: file.read() for name, file in kept.items() if file}
    shared: dict[str, bytes | str | None] = {
        **data,
        "other/layer.tar": data[names[0]],
        names[0]: "../other/layer.tar",
    }
    path.write_bytes(layer(shared))
    assert inspect_image(open_image(str(path)), tmp_path).files == 1, "older dockers link equal layers"
    for target in ("../../../etc/passwd", "../" + names[0], "../nowhere"):
        path.write_bytes(layer({**data, names[0]: target}))
        with pytest.raises(DamagedImage):
            inspect_image(open_image(str(path)), tmp_path)


@pytest.mark.parametrize(
    "document", [b"[]", b"{", b"{}", b'{"manifests": [{}]}', b'{"manifests": null}', b"[" * 100_000]
)
def test_documents_that_are_no_manifest(document: bytes, tmp_path: Path) -> None:
    made = write_layout(tmp_path / "layout", [layer({"a": b"b"})])
    (made / "index.json").write_bytes(document)
    with pytest.raises(DamagedImage):
        open_image(str(made))


def test_a_platform_that_is_not_there(tmp_path: Path) -> None:
    made = write_layout(tmp_path / "layout", [layer({"a": b"b"})], architecture="amd64")
    assert open_image(str(made)).config["architecture"] == "amd64", "the only one there is"
    with pytest.raises(UsageError, match="linux/amd64, not for linux/arm64"):
        open_image(str(made), platform="linux/arm64")


# --- what was learnt ---


def test_check_and_plan_use_what_was_learnt(firesteel: Firesteel, tmp_path: Path) -> None:
    """A catalog's image by its digest: the catalog says that it has code for a GB10, its files that not."""
    home = Home(tmp_path / "home")
    report = report_of(tmp_path, vllm_files("sm90"), **VLLM_CONFIG)
    save_inspection(home, report)
    (saved,) = read_inspections(home)
    assert saved.sm == () and saved.version == "0.28.0"
    command = f"docker run --gpus all vllm/vllm-openai@{report.digests[0]} openai/gpt-oss-20b"
    ran = firesteel("check", "--json", command)
    assert ran.code == 3
    assert "image-engine-lacks-gb10" in {found["rule"] for found in ran.json["findings"]}
    assert (
        "image-engine-lacks-gb10"
        not in firesteel("check", command.replace(report.digests[0][-5:], "00000")).out
    )


def test_plan_names_the_problem_of_the_image_that_a_recipe_uses(tmp_path: Path) -> None:
    from firesteel.launch import Ask
    from firesteel.values import replace
    from firesteel.workspace import Workspace

    home = Home(tmp_path / "home")
    workspace = Workspace(home)
    recipe = workspace.catalog.recipes["gpt-oss-20b"]
    reference = workspace.catalog.images.named[recipe.image].reference
    report = report_of(tmp_path, vllm_files("sm90"), **VLLM_CONFIG)
    save_inspection(home, replace(report, reference=str(reference)))
    best = Workspace(home).propose(Ask("gpt-oss-20b", engine="vllm"), workspace.host("gb10"))[0]
    assert "image-engine-lacks-gb10" in {finding.rule for finding in best.stops}
    assert best.image and best.image.problems


def test_a_damaged_record_names_itself(tmp_path: Path) -> None:
    home = Home(tmp_path)
    path = save_inspection(home, report_of(tmp_path, vllm_files(), **VLLM_CONFIG))
    assert path
    document = json.loads(path.read_text())
    for text in ("{", "[]", json.dumps({**document, "digests": 3})):
        path.write_text(text)
        with pytest.raises(FiresteelError, match=path.name):
            read_inspections(home)


def test_the_command(firesteel: Firesteel, tmp_path: Path) -> None:
    made = write_layout(tmp_path / "layout", [layer(vllm_files("sm90"))], **VLLM_CONFIG)
    ran = firesteel("image", "inspect", str(made), "--json")
    assert ran.code == 3, ran.err
    assert ran.json["document"] == "firesteel.image-inspect/1"
    assert ran.json["gpu_libraries"][0]["on_gb10"] == "not at all"
    assert ran.json["recipes"] and ran.json["saved"]
    shown = firesteel("image", "inspect", str(made))
    assert "stop  engine-lacks-gb10" in shown.out and "vllm          0.28.0" in shown.out
    compared = firesteel("image", "inspect", str(made), "--compare", str(made))
    assert compared.code == 0 and "no difference" in compared.out


def test_the_library_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import firesteel as package

    monkeypatch.setenv("FIRESTEEL_HOME", str(tmp_path / "home"))
    made = write_layout(tmp_path / "layout", [layer(vllm_files("sm90"))], **VLLM_CONFIG)
    assert checks(package.inspect_image(str(made))) == {"engine-lacks-gb10": "stop"}
    assert len(read_inspections(Home(tmp_path / "home"))) == 1
