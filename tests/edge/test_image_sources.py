"""Reading engines out of images, with a real docker: a daemon of our own, and images made here.

The vLLM in them is the demo release of the learner's own tests, padded to the size below which a release is
rejected; the llama-server is a script that prints what the real one would.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import ImageFlags, identify, with_learned
from firesteel.cli.engine import learn as learn_command
from firesteel.edge import learned_engines
from firesteel.edge.docker import image_sources
from firesteel.edge.docker.image_sources import (
    ContainerRuntime,
    LlamaServerInfo,
    PackageSources,
    find_container_runtime,
    inspect,
    read_engine,
)
from firesteel.edge.home import Home
from firesteel.engines.schema.releases import find_schema
from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue
from firesteel.errors import FiresteelError, HostNotReady, UsageError
from firesteel.launch import EngineName
from firesteel.reads.launches import read
from firesteel.rules.checker import check
from firesteel.values import replace
from tests.engines.test_vllm_learn import FILES

PACKAGES = "usr/local/lib/python3.12/dist-packages"
LLAMA = find_schema("llamacpp", "11549")


def vllm_tree(version: str = "0.99.0") -> dict[str, str]:
    """The demo release, padded to the size of a real vLLM."""
    names = ["max-model-len", "host", "dtype", "quantization", *(f"own-{number}" for number in range(200))]
    flags = "\n".join(f'    parser.add_argument("--{name}", type=str)' for name in names)
    variables = "\n".join(f'    "VLLM_OWN_{number}": lambda: 1,' for number in range(120))
    files = {path.replace("demo/", "vllm/"): text.replace("demo.", "vllm.") for path, text in FILES.items()}
    parser = "vllm/anywhere/cli_args.py"
    files[parser] = files[parser].replace("    return parser\n", f"{flags}\n    return parser\n")
    files["vllm/envs.py"] = files["vllm/envs.py"].replace("}\n", f"{variables}\n}}\n")
    return {**files, "vllm/_version.py": f"__version__ = version = '{version}'\n"}


def under(root: str, files: Mapping[str, str]) -> dict[str, bytes]:
    return {f"{root}/{path}": text.encode() for path, text in files.items()}


def llama_image(help_text: str) -> dict[str, bytes]:
    """A shell with the few libraries that it needs, and a server that prints."""
    shell = Path("/bin/sh").resolve()
    listed = subprocess.run(["ldd", str(shell)], check=True, capture_output=True, text=True).stdout
    libraries = [path for path in listed.split() if path.startswith("/")]
    server = (
        "#!/bin/sh\ncase $1 in\n--version) echo 'version: 0.6.0-dev (build 11549, commit 1a2b3c4)' >&2;;\n"
        "--help) while IFS= read -r line; do printf '%s\\n' \"$line\"; done < /app/help;;\nesac\n"
    )
    parts = {library.lstrip("/"): Path(library).read_bytes() for library in libraries}
    return {
        **parts,
        "bin/sh": shell.read_bytes(),
        "app/llama-server": server.encode(),
        "app/help": help_text.encode(),
    }


def printed(known: Schema) -> str:
    """A schema in the columns of llama.cpp's help."""
    lines = ["----- common params -----", ""]
    for flag in known.flags.values():
        names = ", ".join((*flag.spellings[1:], flag.spellings[0], *flag.negatives))
        hint = {"nothing": "", "many": " FROM TO"}.get(flag.takes, " N")
        lines += [names + hint, *(" " * 40 + f"(env: {name})" for name in flag.variables)]
        if flag.value.values:
            lines.append(" " * 40 + "allowed values: " + ", ".join(flag.value.values))
    return "\n".join(lines) + "\n"


@pytest.fixture
def daemon(docker_daemon: str) -> str:
    return docker_daemon


MakeImage = Callable[..., str]


@pytest.fixture
def make(daemon: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeImage]:
    """Imports files as an image; no container may be left afterwards."""
    monkeypatch.setenv("DOCKER_HOST", daemon)

    def make(name: str, files: Mapping[str, bytes], *changes: str) -> str:
        packed = BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path, content in files.items():
                member = tarfile.TarInfo(path)
                member.size, member.mode = len(content), 0o755
                tar.addfile(member, BytesIO(content))
        options = [option for change in changes for option in ("-c", change)]
        argv = ["docker", "import", *options, "-", name]
        subprocess.run(argv, input=packed.getvalue(), check=True, capture_output=True)
        return name

    yield make
    left = subprocess.run(["docker", "ps", "-aq"], check=True, capture_output=True, text=True).stdout
    assert left == ""


def learn(tmp_path: Path, *arguments: str) -> Result:
    return CliRunner().invoke(learn_command, list(arguments), env={"FIRESTEEL_HOME": str(tmp_path)})


def everything(path: str) -> bool:
    return path.endswith(".py")


def get(image: str) -> PackageSources | LlamaServerInfo:
    runtime = find_container_runtime()
    return read_engine(runtime, inspect(runtime, image), {"vllm": everything, "sglang": everything})


@pytest.mark.real
def test_a_launch_is_checked_against_the_learned_image(make: MakeImage, tmp_path: Path) -> None:
    files = under(PACKAGES, vllm_tree("0.99.0+mine.sm121"))
    image = make("me/vllm:1", files, 'ENTRYPOINT ["/opt/nvidia/nvidia_entrypoint.sh"]')
    printed = json.loads(learn(tmp_path, "--image", image, "--json").stdout)
    assert (printed["engine"], printed["version"], printed["entrypoint"]) == ("vllm", "0.99.0", [])
    assert printed["flags"] > 200 and printed["variables"] > 100 and not printed["was_known"]
    assert all(digest.startswith("sha256:") for digest in printed["digests"])
    again = learn(tmp_path, "--image", image)
    assert again.stdout.startswith("me/vllm:1: vllm 0.99.0, ") and again.stdout.endswith("known already\n")
    images = with_learned(shipped().images, learned_engines.learned_images(Home(tmp_path)))
    line = "docker run --gpus all me/vllm:1 vllm serve m/x --own-7 1 --nonsense 2 --moe-backend marlin"
    launch = read(line, "line", images)[0].launch
    assert launch.version == "0.99.0"
    findings = {finding.saw for finding in check(launch, hardware="gb10", images=images)}
    assert {"--nonsense", "--moe-backend marlin"} <= findings and "--own-7" not in findings
    assert not list((tmp_path / "engines-data").glob("vllm/*.json")), "a fork is no release"


@pytest.mark.real
def test_an_upstream_image_is_learned_as_a_release(make: MakeImage, tmp_path: Path) -> None:
    files = under(PACKAGES, vllm_tree())
    image = make("vllm/vllm-openai:v0.99.0", files, 'ENTRYPOINT ["vllm", "serve"]')
    result = learn(tmp_path, "vllm", "v0.99.0", "--image", image)
    assert result.exit_code == 0 and (tmp_path / "engines-data/vllm/0.99.0.json").is_file()
    learned = learned_engines.learned_images(Home(tmp_path))[0]
    assert learned.entrypoint == ("vllm", "serve")
    wrong = learn(tmp_path, "sglang", "--image", image)
    assert isinstance(wrong.exception, UsageError) and "holds vllm 0.99.0, not sglang" in str(wrong.exception)


@pytest.mark.real
def test_a_tag_that_was_pulled_again_is_read_again(make: MakeImage, tmp_path: Path) -> None:
    image = make("me/moves:latest", under(PACKAGES, vllm_tree("0.98.0")))
    assert "vllm 0.98.0" in learn(tmp_path, "--image", image).stdout
    make("me/moves:latest", under(PACKAGES, vllm_tree("0.99.0")))
    assert "vllm 0.99.0" in learn(tmp_path, "--image", image).stdout
    assert [image.version for image in learned_engines.learned_images(Home(tmp_path))] == ["0.99.0"]


@pytest.mark.real
@pytest.mark.parametrize(
    ("root", "changes", "engine"),
    [
        (PACKAGES, (), "vllm"),
        ("opt/mine/lib/python3.13/site-packages", ("ENV PATH=/opt/mine/bin:/usr/bin",), "vllm"),
        ("workspace/vllm", (), "vllm"),
        ("sgl-workspace/sglang/python", (), "sglang"),
        ("root/.local/share/uv/tools/odd/lib/python3.12/site-packages", (), "sglang"),
    ],
)
def test_find_package(make: MakeImage, root: str, changes: tuple[str, ...], engine: EngineName) -> None:
    markers = {"vllm": "vllm/engine/arg_utils.py", "sglang": "sglang/srt/server_args.py"}
    other = f"{root}/{markers[engine].partition('/')[0]}/_C.so"
    image = make("me/place:1", {f"{root}/{markers[engine]}": b"x = 1\n", other: b"\0" * 100}, *changes)
    assert get(image) == PackageSources(engine, f"/{root}", {markers[engine]: "x = 1\n"})


@pytest.mark.real
def test_two_packages_in_unusual_folders_are_refused(make: MakeImage) -> None:
    roots = ("a/site-packages", "b/site-packages")
    image = make("me/two:1", {f"{root}/vllm/engine/arg_utils.py": b"" for root in roots})
    with pytest.raises(FiresteelError, match="vllm in /a/site-packages, vllm in /b/site-packages"):
        get(image)


@pytest.mark.real
def test_sources_that_moved_are_an_error_and_nothing_is_saved(make: MakeImage, tmp_path: Path) -> None:
    files = {path: text for path, text in vllm_tree().items() if path != "vllm/envs.py"}
    result = learn(tmp_path, "--image", make("me/moved:1", under(PACKAGES, files)))
    assert "`environment_variables` was not found in the sources of vLLM" in str(result.exception)
    assert list(tmp_path.rglob("*.json")) == []


@pytest.mark.real
def test_a_package_without_a_version(make: MakeImage, tmp_path: Path) -> None:
    files = {path: text for path, text in vllm_tree().items() if path != "vllm/_version.py"}
    image = make("me/dev:1", under(PACKAGES, files))
    refused = learn(tmp_path, "--image", image).exception
    assert (
        isinstance(refused, UsageError)
        and refused.next == "firesteel engine learn vllm VERSION --image me/dev:1"
    )
    assert "vllm 0.99.0" in learn(tmp_path, "vllm", "0.99.0", "--image", image).stdout


@pytest.mark.real
def test_llama_server_is_run(make: MakeImage, tmp_path: Path) -> None:
    assert LLAMA is not None
    image = make("me/llama:1", llama_image(printed(LLAMA)), 'ENTRYPOINT ["/app/llama-server"]')
    assert "llamacpp 11549, 252 flags" in learn(tmp_path, "--image", image).stdout
    learned = learned_engines.learned_images(Home(tmp_path))[0]
    assert learned.schema == LLAMA and learned.entrypoint == ("/app/llama-server",)


@pytest.mark.real
def test_a_fork_of_llama_cpp_is_learned_from_its_help(make: MakeImage, tmp_path: Path) -> None:
    assert LLAMA is not None
    forked = replace(LLAMA, flags={**LLAMA.flags, "my-own": Flag("my-own", SymbolValue("bool"), "nothing")})
    image = make("me/fork:1", llama_image(printed(forked)))
    assert "253 flags" in learn(tmp_path, "--image", image).stdout
    assert "my-own" in learned_engines.learned_images(Home(tmp_path))[0].schema.flags


@pytest.mark.real
def test_images_that_cannot_be_learned(make: MakeImage, tmp_path: Path) -> None:
    empty = learn(tmp_path, "--image", make("me/empty:1", {"etc/x": b""}))
    assert "contains neither vLLM nor SGLang nor llama-server" in str(empty.exception)
    absent = learn(tmp_path, "--image", "127.0.0.1:1/none:1").exception
    assert isinstance(absent, HostNotReady) and absent.next == "docker pull 127.0.0.1:1/none:1"
    invalid = learn(tmp_path, "--image", "--privileged").exception
    assert isinstance(invalid, UsageError) and "is not the name of an image" in str(invalid)


@pytest.mark.real
def test_a_package_that_is_too_large(make: MakeImage, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make("me/big:1", under(PACKAGES, vllm_tree()))
    monkeypatch.setattr("firesteel.edge.programs.wheels._MAX_TEXT_BYTES", 1000)
    with pytest.raises(FiresteelError, match="larger than an engine's"):
        get(image)


def test_no_output_and_too_much_of_it() -> None:
    with pytest.raises(FiresteelError, match=r"`sleep 30` did not answer in 0 s"):
        ContainerRuntime("sleep").run("30", timeout_s=0.2)
    code, output = ContainerRuntime("yes").run("x")
    assert code and len(output) == image_sources._MAX_OUTPUT_BYTES


def test_neither_docker_nor_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostNotReady, match="neither docker nor podman is installed"):
        find_container_runtime()


LEARNED = ImageFlags(
    reference="vllm/vllm-openai:nightly",
    digests=("sha256:" + "a" * 64,),
    engine="vllm",
    version="0.99.0",
    entrypoint=None,
    arch=("arm64",),
    on="2026-11-15",
    schema=Schema("vllm", "0.99.0", {"port": Flag("port", SymbolValue("int"))}),
)


def test_learned_images_are_saved_and_read_back(tmp_path: Path) -> None:
    path = learned_engines.save_image(Home(tmp_path), LEARNED)
    assert path.parent == tmp_path / "engines-data/images"
    assert learned_engines.learned_images(Home(tmp_path)) == (LEARNED,)
    path.write_text('{"book": 1}')
    with pytest.raises(FiresteelError, match="is damaged"):
        learned_engines.learned_images(Home(tmp_path))


def test_a_learned_image_overrides_what_its_tag_says() -> None:
    images = with_learned(shipped().images, [LEARNED])
    by_tag = identify("docker.io/vllm/vllm-openai:nightly", images)
    assert by_tag is not None and by_tag.schema == LEARNED.schema
    assert (by_tag.version, by_tag.floating, by_tag.entrypoint) == ("0.99.0", True, ("vllm", "serve"))
    assert by_tag.note is not None and "inspected here on 2026-11-15; its tag moves" in by_tag.note
    by_digest = identify("mirror.example/any@" + LEARNED.digests[0], images)
    assert by_digest is not None and (by_digest.version, by_digest.floating) == ("0.99.0", False)
    other_digest = identify("vllm/vllm-openai:nightly@sha256:" + "b" * 64, images)
    assert other_digest is not None and other_digest.version is None


def test_an_image_without_a_tag_is_latest() -> None:
    images = with_learned(shipped().images, [replace(LEARNED, reference="my-node")])
    image = identify("my-node:latest", images)
    assert image is not None and image.version == "0.99.0"


@pytest.mark.parametrize(
    ("entrypoint", "engine", "expected"),
    [
        ((), "vllm", ()),
        (("/opt/nvidia/nvidia_entrypoint.sh",), "vllm", ()),
        (("vllm", "serve"), "vllm", ("vllm", "serve")),
        (
            ("python3", "-m", "sglang.launch_server"),
            "sglang",
            ("python3", "-m", "sglang.launch_server"),
        ),
        (("/app/llama-server",), "llamacpp", ("/app/llama-server",)),
        (("/entrypoint.sh",), "vllm", None),
        (("/bin/bash",), "vllm", None),
    ],
)
def test_what_an_entrypoint_starts(
    entrypoint: tuple[str, ...], engine: EngineName, expected: tuple[str, ...] | None
) -> None:
    assert learned_engines._entrypoint(entrypoint, engine) == expected
