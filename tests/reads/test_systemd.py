"""Units and quadlets, read as systemd reads them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.reads.launches import read
from firesteel.reads.source_text import source_file
from firesteel.reads.systemd import starts, words
from firesteel.units import GIB

FILES = Path(__file__).parent / "files"


def test_a_unit(images: Images) -> None:
    (reading,) = read((FILES / "vllm.service").read_text(), "vllm.service", images)
    assert reading.launch == Launch(
        name="the model",
        model="Qwen/Qwen3-8B",
        engine="vllm",
        flags={
            "port": "8%i",
            "max-model-len": "32768",
            "trust-remote-code": True,
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
        },
        env={
            "MODEL": "Qwen/Qwen3-8B",
            "HF_HOME": "/srv/hf",
            "EXTRA": "--max-model-len 32768 --trust-remote-code",
        },
    )
    assert (reading.locations["model"].line, reading.locations["flag:max-model-len"].line) == (12, 9)
    assert reading.locations["flag:speculative-config"].line == 17


def test_a_quadlet(images: Images) -> None:
    (reading,) = read((FILES / "chat.container").read_text(), "chat.container", images)
    model = "nvidia/Qwen3.6-35B-A3B-NVFP4"
    assert reading.launch == Launch(
        name=model,
        model=model,
        engine="vllm",
        version="0.24.0",
        flags={"max-model-len": "65536"},
        env={"HF_HOME": "/models", "VLLM_LOGGING_LEVEL": "DEBUG"},
        container=Container(
            image="docker.io/vllm/vllm-openai:v0.24.0",
            gpus="all",
            ipc="host",
            shm_bytes=16 * GIB,
            publish=("127.0.0.1:8000:8000",),
            mounts=(Mount("/srv/models", "/models"),),
            options=(("name", "chat"), ("device", "/dev/infiniband"), ("memory", "100g")),
        ),
    )
    assert reading.locations["env:VLLM_LOGGING_LEVEL"].line == 9
    assert reading.locations["option:memory"].line == 13


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ("'a b' \"c d\"", ["a b", "c d"]),
        ("--x='a b'c", ["--x=a bc"]),
        ('"it\'s" \'say "hi"\'', ["it's", 'say "hi"']),
        (r"a\x20b a\040b a\sb a\tb \u00e9", ["a b", "a b", "a b", "a\tb", "é"]),
        (r"'a\\b' \q", ["a\\b", "\\q"]),
        ("100%% %i $$A", ["100%", "%i", "$A"]),
        ('""', [""]),
        ("'never closed", ["never closed"]),
    ],
)
def test_words_as_systemd_splits_them(text: str, expected: list[str]) -> None:
    """systemd.syntax(7), quoting, and its table of escapes."""
    whole = source_file(text, "-")
    assert [word.text for word in words(whole.whole, whole)] == expected


def unit(lines: str) -> list[list[str]]:
    whole = source_file("[Service]\n" + dedent(lines), "a.service")
    found = starts(whole, whole.whole)
    assert found is not None
    return [[word.text for word in start.arguments] for start in found]


@pytest.mark.parametrize("prefix", ["", "-", "+", "!!", ":", "-:"])
def test_a_prefix_is_not_part_of_the_program(prefix: str) -> None:
    assert unit(f"ExecStart={prefix}/bin/vllm serve m") == [["/bin/vllm", "serve", "m"]]


def test_the_second_word_is_a_name_after_an_at_sign() -> None:
    assert unit("ExecStart=@/bin/vllm engine serve m") == [["/bin/vllm", "serve", "m"]]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("Environment=A='x y'\nExecStart=p $A ${A} -m${A}", ["p", "x", "y", "x y", "-mx y"]),
        ('Environment=A="x y"\nExecStart=p "$A"', ["p", "x", "y"]),
        ("Environment=A=x\nExecStart=p $$A $B", ["p", "$A", "$B"]),
        ("Environment=A=x\nEnvironment=\nExecStart=p $A", ["p", "$A"]),
        ("Environment=A=x\nExecStart=:p $A", ["p", "$A"]),
    ],
)
def test_variables(lines: str, expected: list[str]) -> None:
    """systemd.service(5), command lines: `$A` alone is split, `${A}` is not, `:` leaves both."""
    assert unit(lines) == [expected]


def test_an_empty_value_resets_and_a_semicolon_separates() -> None:
    assert unit("ExecStart=a\nExecStart=\nExecStart=b ; c \\; d\nExecStart=e") == [
        ["b"],
        ["c", ";", "d"],
        ["e"],
    ]


def test_a_blank_after_the_backslash_ends_the_line() -> None:
    assert unit("ExecStart=p a \\ \n  --lost\n") == [["p", "a", "\\"]]


def test_only_the_service_section_starts() -> None:
    assert unit("Type=simple\n[Install]\nExecStart=/bin/vllm serve m") == []


def test_a_container_and_a_shell_in_a_unit(images: Images) -> None:
    text = dedent("""\
        [Service]
        ExecStart=/usr/bin/docker run --rm --gpus all \\
            vllm/vllm-openai:v0.24.0 Qwen/Qwen3-8B
        Restart=always
    """)
    (reading,) = read(text, "a.service", images)
    assert reading.launch.container and reading.launch.container.restart is None
    assert reading.launch.version == "0.24.0"
    script = "[Service]\nExecStart=/bin/bash -lc 'source /v/bin/activate && exec vllm serve m --seed 1'\n"
    (reading,) = read(script, "a.service", images)
    assert (reading.launch.model, reading.launch.flags) == ("m", {"seed": "1"})


@pytest.mark.parametrize(
    ("lines", "entrypoint", "program"),
    [
        ("Entrypoint=/bin/bash\nExec=-c 'exec vllm serve m'", "/bin/bash", ("-c", "exec vllm serve")),
        ('Entrypoint=["vllm", "serve"]\nExec=m', "vllm", ("serve",)),
    ],
)
def test_an_entrypoint(lines: str, entrypoint: str, program: tuple[str, ...], images: Images) -> None:
    (reading,) = read(f"[Container]\nImage=vllm/vllm-openai:v0.24.0\n{lines}\n", "a.container", images)
    container = reading.launch.container
    assert container and (container.entrypoint, container.program, reading.launch.model) == (
        entrypoint,
        program,
        "m",
    )


def test_one_gpu_of_several(images: Images) -> None:
    text = "[Container]\nImage=vllm/vllm-openai:v0.24.0\nAddDevice=nvidia.com/gpu=0\nExec=m/n\n"
    container = read(text, "a.container", images)[0].launch.container
    assert container and container.gpus == "device=0"


@pytest.mark.parametrize(
    "text",
    [
        "see [Service]\n[Service]\nExecStart=vllm serve m\n",
        "[Unit]\nDescription=x\n",
        "#!/bin/sh\ncat <<EOF\n[Service]\nExecStart=vllm serve m\nEOF\n",
        "",
    ],
)
def test_other_files_are_not_units(text: str) -> None:
    whole = source_file(text, "-")
    assert starts(whole, whole.whole) is None


_LINES = st.lists(
    st.tuples(
        st.sampled_from(
            ["[Service]", "[Container]", "ExecStart=", "Environment=", "Exec=", "Image=x", "; ", ""]
        ),
        st.text("av -$%\\'\"={}[];@\n", max_size=20),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(_LINES)
def test_any_unit_is_read_or_refused(lines: list[tuple[str, str]]) -> None:
    text = "[Unit]\n" + "\n".join(key + value for key, value in lines)
    with suppress(UsageError):
        read(text, "a.service", Images())


@pytest.mark.parametrize(
    "text",
    [
        "[Service]\n" + "ExecStart=a\n" * 20_000,
        "[Service]\n" + "".join(f"Environment=A{n}=b\n" for n in range(20_000)) + "ExecStart=vllm serve m",
        "[Service]\nExecStart=vllm serve \\\n" + "a \\\n" * 10_000,
        "[Service]\nExecStart=vllm serve " + "'" * 500_001,
        "[Container]\nImage=vllm\nEntrypoint=" + "[" * 500_000,
    ],
)
def test_a_bomb_ends(text: str) -> None:
    """Each took minutes or a stack when it was read naively; the suite's own clock is the judge."""
    with suppress(UsageError):
        read(text, "a.service", Images())
