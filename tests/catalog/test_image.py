import pytest

from firesteel.catalog.catalog import shipped
from firesteel.catalog.image import (
    Images,
    identify,
    is_upstream,
    other_image,
    read_images,
    split_reference,
    with_learned,
)
from firesteel.engines.schema.history import build_history
from firesteel.engines.schema.symbols import Flag, Schema, SymbolValue
from firesteel.errors import InvalidFile
from firesteel.values import YamlFile

IMAGES = shipped().images
SERVE = ("vllm", "serve")
MODULE = ("python3", "-m", "vllm.entrypoints.openai.api_server")
LLAMA = ("/app/llama-server",)
BOTH = ("12.0", "12.1")
SHA = "a" * 40
DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("reference", "engine", "version", "entrypoint", "sm", "floating"),
    [
        ("vllm/vllm-openai:v0.9.2", "vllm", "0.9.2", MODULE, None, False),
        ("vllm/vllm-openai:v0.11.0", "vllm", "0.11.0", MODULE, None, False),
        ("vllm/vllm-openai:v0.11.1", "vllm", "0.11.1", SERVE, ("12.0",), False),
        ("vllm/vllm-openai:v0.19.1", "vllm", "0.19.1", SERVE, ("12.0",), False),
        ("vllm/vllm-openai:v0.19.1-cu130", "vllm", "0.19.1", SERVE, BOTH, False),
        ("vllm/vllm-openai:v0.20.0", "vllm", "0.20.0", SERVE, BOTH, False),
        ("vllm/vllm-openai:v0.20.0-cu130", "vllm", "0.20.0", SERVE, BOTH, False),
        ("vllm/vllm-openai:v0.24.0-ubuntu2404", "vllm", "0.24.0", SERVE, BOTH, False),
        ("vllm/vllm-openai:v0.25.1-aarch64", "vllm", "0.25.1", SERVE, BOTH, False),
        ("vllm/vllm-openai:v0.25.0-cu129", "vllm", "0.25.0", SERVE, ("12.0",), False),
        ("vllm/vllm-openai:v0.28.0", "vllm", "0.28.0", SERVE, BOTH, False),
        ("docker.io/vllm/vllm-openai:v0.30.0", "vllm", "0.30.0", SERVE, BOTH, False),
        ("vllm/vllm-openai:cu130-nightly", "vllm", None, SERVE, BOTH, False),
        ("vllm/vllm-openai:nightly", "vllm", None, SERVE, BOTH, True),
        (f"vllm/vllm-openai:nightly-{SHA}", "vllm", None, SERVE, None, False),
        ("vllm/vllm-openai:latest", "vllm", None, SERVE, BOTH, True),
        ("vllm/vllm-openai", "vllm", None, SERVE, BOTH, True),
        (f"vllm/vllm-openai:latest@{DIGEST}", "vllm", None, SERVE, BOTH, False),
        (f"vllm/vllm-openai:v0.30.0@{DIGEST}", "vllm", "0.30.0", SERVE, BOTH, False),
        ("vllm/vllm-openai:gemma4-cu130", "vllm", None, SERVE, None, False),
        ("nvcr.io/nvidia/vllm:25.10-py3", "vllm", "0.10.2", (), BOTH, False),
        ("nvcr.io/nvidia/vllm:26.04-py3", "vllm", "0.19.0", (), BOTH, False),
        ("nvcr.io/nvidia/vllm:26.10-py3", "vllm", "0.31.0", (), BOTH, False),
        ("nvcr.io/nvidia/vllm:25.12-py3", "vllm", "0.11.1", (), BOTH, False),
        ("nvcr.io/nvidia/vllm:25.12.post1-py3", "vllm", "0.12.0", (), BOTH, False),
        ("nvcr.io/nvidia/vllm:26.01-py3", "vllm", "0.13.0", (), BOTH, False),
        ("nvcr.io/nvidia/vllm:26.03.post1-py3", "vllm", None, (), BOTH, False),
        ("nvcr.io/nvidia/vllm:26.11-py3", "vllm", None, (), BOTH, False),
        ("vllm/vllm-openai:v0.31.0-aarch64-cu129", "vllm", "0.31.0", SERVE, ("12.0",), False),
        ("vllm-node", "vllm", None, (), ("12.1",), True),
        ("eugr/spark-vllm:latest", "vllm", None, (), ("12.1",), True),
        ("ghcr.io/spark-arena/dgx-vllm-eugr-nightly-tf5:latest", "vllm", None, (), ("12.1",), True),
        ("ghcr.io/spark-arena/dgx-vllm-eugr-nightly:2026082102", "vllm", None, (), ("12.1",), False),
        ("scitrera/dgx-spark-vllm:0.17.0-t5", "vllm", "0.17.0", (), None, False),
        ("scitrera/dgx-spark-vllm:0.14.0rc2-t4", "vllm", "0.14.0rc2", (), None, False),
        ("scitrera/dgx-spark-vllm:latest", "vllm", None, (), None, False),
        ("ghcr.io/aeon-7/aeon-vllm-ultimate:2026-07-01-v0.24.0", "vllm", "0.24.0", None, ("12.1",), False),
        ("ghcr.io/aeon-7/aeon-vllm-ultimate:latest", "vllm", None, None, ("12.1",), True),
        ("ghcr.io/aeon-7/vllm-dflash:latest", "vllm", None, None, ("12.1",), False),
        ("avarok/dgx-vllm-nvfp4-kernel:v22", "vllm", None, None, ("12.1",), False),
        ("hellohal2064/vllm-dgx-spark-gb10:v0.17.1", "vllm", None, None, None, False),
        ("ghcr.io/ggml-org/llama.cpp:server", "llamacpp", None, LLAMA, None, True),
        ("ghcr.io/ggml-org/llama.cpp:server-vulkan-b9000", "llamacpp", "9000", LLAMA, (), False),
        ("scitrera/dgx-spark-llama-cpp:b8076-cu131", "llamacpp", "8076", (), ("12.1",), False),
        ("lmsysorg/sglang:spark", "sglang", None, (), None, False),
        ("lmsysorg/sglang:qwen38-27b", "sglang", None, (), None, False),
        ("nvcr.io/nvidia/sglang:26.09-py3", "sglang", "0.5.19", (), None, False),
        ("nvcr.io/nvidia/sglang:26.01-py3", "sglang", None, (), None, False),
        ("scitrera/dgx-spark-sglang:0.5.10-20260429-dev1", "sglang", None, (), None, False),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13", "llamacpp", None, LLAMA, BOTH, True),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13-b10586", "llamacpp", "10586", LLAMA, BOTH, False),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda", "llamacpp", None, LLAMA, (), True),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b9000", "llamacpp", "9000", LLAMA, (), False),
        ("lmsysorg/sglang:v0.5.9", "sglang", "0.5.9", (), None, False),
        ("lmsysorg/sglang:v0.5.10.post1-cu130", "sglang", "0.5.10.post1", (), None, False),
        ("lmsysorg/sglang:latest-cu130", "sglang", None, (), None, True),
        ("index.docker.io/vllm/vllm-openai:v0.19.1", "vllm", "0.19.1", SERVE, ("12.0",), False),
        ("registry-1.docker.io/vllm/vllm-openai:v0.28.0", "vllm", "0.28.0", SERVE, ("12.0", "12.1"), False),
        ("vllm/vllm-openai:v0.28.0rc1", "vllm", "0.28.0rc1", SERVE, ("12.0", "12.1"), False),
    ],
)
def test_references(
    reference: str,
    engine: str,
    version: str | None,
    entrypoint: tuple[str, ...] | None,
    sm: tuple[str, ...] | None,
    floating: bool,
) -> None:
    image = identify(reference, IMAGES)
    assert image is not None
    found = (image.engine, image.version, image.entrypoint, image.sm, image.floating)
    assert found == (engine, version, entrypoint, sm, floating)
    assert image.sources


@pytest.mark.parametrize(
    "reference",
    [
        "vllm/vllm-openai:my-build",
        f"vllm/vllm-openai@{DIGEST}",
        "ghcr.io/someone/vllm-openai:v0.24.0",
        "vllm/vllm-openai-xpu:latest",
        "lmsysorg/sglang:v0.5",
        "debian:bookworm",
    ],
)
def test_what_is_not_known_is_none(reference: str) -> None:
    assert identify(reference, IMAGES) is None


AEON = "sha256:c15e2c4b767c611fc739046129d550d0c347c906a3c9020888acc981f55f137d"


@pytest.mark.parametrize("named", ["ghcr.io/aeon-7/aeon-vllm-ultimate:latest", "mirror.example:5000/any"])
def test_a_known_digest_overrides_the_tag(named: str) -> None:
    image = identify(f"{named}@{AEON}", IMAGES)
    assert image is not None
    assert (image.version, image.floating, image.reference) == ("0.25.1", False, f"{named}@{AEON}")


def test_of_an_unknown_digest_the_tag_is_all_there_is() -> None:
    image = identify(f"vllm/vllm-openai:v0.30.0@{DIGEST}", IMAGES)
    assert image is not None and image.note is not None
    assert image.note.startswith("the digest decides what runs; this describes the tag; ")
    plain = identify("vllm/vllm-openai:v0.30.0", IMAGES)
    assert plain is not None and plain.note == "the family target 12.0f covers 12.1"


@pytest.mark.parametrize(
    ("reference", "by"),
    [
        ("ghcr.io/aeon-7/vllm-dflash:latest", "env"),
        ("avarok/dgx-vllm-nvfp4-kernel:v22", "env"),
        ("vllm/vllm-openai:v0.30.0", "argv"),
    ],
)
def test_where_settings_come_from(reference: str, by: str) -> None:
    image = identify(reference, IMAGES)
    assert image is not None and image.configured_by == by


@pytest.mark.parametrize(
    ("reference", "what"),
    [
        ("ghcr.io/mostlygeek/llama-swap:cuda", "llama-swap"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0rc6", "TensorRT-LLM"),
        ("nvcr.io/nvidia/tritonserver:25.06-vllm-python-py3", "Triton"),
        ("docker.io/ollama/ollama", "Ollama"),
    ],
)
def test_images_that_hold_no_engine_of_ours(reference: str, what: str) -> None:
    found = other_image(reference, IMAGES)
    assert found is not None and found.what.startswith(what) and found.sources
    assert identify(reference, IMAGES) is None


@pytest.mark.parametrize("reference", ["vllm/vllm-openai:v0.30.0", "ghcr.io/mostlygeek/llama-swapper:1", "x"])
def test_what_may_be_an_engine_is_no_other(reference: str) -> None:
    assert other_image(reference, IMAGES) is None


def test_who_made_it() -> None:
    assert is_upstream("docker.io/vllm/vllm-openai:v0.30.0")
    assert not is_upstream("nvcr.io/nvidia/vllm:26.04-py3")


def test_every_row_can_be_reached() -> None:
    """The first row that matches wins, so a row after one that takes all of its repository is dead."""
    taken: set[str] = set()
    for row in IMAGES.tags:
        assert row.repository not in taken
        taken |= {row.repository} if row.tag == ".+" else set()


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("a/b:c", ("a/b", "c")),
        ("a/b", ("a/b", "latest")),
        ("host:5000/b", ("host:5000/b", "latest")),
        (f"host:5000/b:c@{DIGEST}", ("host:5000/b", "c")),
        (f"b@{DIGEST}", ("b", "")),
    ],
)
def test_split(reference: str, parts: tuple[str, str]) -> None:
    assert split_reference(reference) == parts


def test_named_images_take_what_their_tag_says() -> None:
    image = IMAGES.named["vllm-openai-0.28"]
    assert (image.version, image.cuda, image.entrypoint) == ("0.28.0", "13.0", SERVE)
    assert image.note == "the family target 12.0f covers 12.1"
    assert len(image.sources) > 2
    assert identify("vllm/vllm-openai:v0.28.0", IMAGES) == image


def test_the_embedded_engine_is_a_package() -> None:
    image = IMAGES.named["xllamacpp"]
    assert (image.package, image.version, image.reference, image.gpu) == (
        "xllamacpp==2026.10.11549",
        "11549",
        None,
        False,
    )


def test_two_lines_name_an_image_that_a_tag_row_knows() -> None:
    text = "images:\n  mine: {reference: 'vllm/vllm-openai:v0.30.0'}\n"
    mine = read_images(YamlFile.parse("images.yaml", text), IMAGES)
    assert (mine.named["mine"].version, mine.named["mine"].entrypoint) == ("0.30.0", SERVE)
    assert mine.named.keys() == {*IMAGES.named, "mine"}


def test_a_digest_pins_and_the_file_overrides() -> None:
    text = f"""\
images:
  mine:
    reference: vllm/vllm-openai:nightly
    digest: {DIGEST}
    version: 0.33.0
    floating: false
    sources: [{{url: https://example.org/mine, seen: 2026-11-15}}]
"""
    image = read_images(YamlFile.parse("images.yaml", text), IMAGES).named["mine"]
    assert (image.reference, image.version, image.floating) == (
        f"vllm/vllm-openai:nightly@{DIGEST}",
        "0.33.0",
        False,
    )
    assert image.sources[0].url == "https://example.org/mine"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("images:\n  a: {reference: acme/x:1}\n", "i.yaml:2: `images.a`: needs its `engine`: no tag row"),
        ("images:\n  a: {package: x==1}\n", "i.yaml:2: `images.a`: needs its `engine`"),
        ("images:\n  a: {engine: vllm}\n", "i.yaml:2: `images.a`: needs a container `reference` or"),
        ("images:\n  a: {engine: vllm, reference: x, package: y}\n", "i.yaml:2: `images.a`: needs a"),
        ("images:\n  a: {engine: ollama, reference: x}\n", "i.yaml:2: `images.a.engine`"),
        ("images:\n  a: {engine: vllm, referense: x}\n", "i.yaml:2: `images.a.referense`: no such key"),
        ("images:\n  xllamacpp: {engine: vllm, package: x}\n", "i.yaml:2: `images.xllamacpp` is llamacpp in"),
        ("tags:\n  - {repository: a, tag: '(', engine: vllm}\n", "i.yaml:2: `tags.0.tag`: not a regular"),
        ("tags:\n  - {repository: a, tag: b, versions: new}\n", "i.yaml:2: `tags.0.versions`: should be"),
        ("tags:\n  - {repository: a, tag: b, engine: vllm}\n", "i.yaml:2: `tags.0.sources`: is missing"),
        ("digests:\n  - {reference: a:1, digest: sha256:12}\n", "`digests.0.digest`: should be sha256:"),
        (
            f"digests:\n  - reference: acme/x:1\n    digest: {DIGEST}\n"
            "    sources: [{url: https://example.org, seen: 2026-11-15}]\n",
            "i.yaml:2: `digests.0`: needs its `engine`: no tag row knows `acme/x:1`",
        ),
        ("others:\n  - {repository: a, what: b}\n", "i.yaml:2: `others.0.sources`: is missing"),
        ("tags:\n  - {repository: a, tag: b, configured_by: file}\n", "i.yaml:2: `tags.0.configured_by`"),
        ("images: {}\nimages: {}\n", "i.yaml:2: `images` is given twice"),
    ],
)  # fmt: skip
def test_mistakes_have_a_line(text: str, says: str) -> None:
    with pytest.raises(InvalidFile) as error:
        read_images(YamlFile.parse("i.yaml", text), IMAGES)
    assert says in str(error.value)


def test_releases_that_were_learned() -> None:
    mine = Schema("vllm", "0.99.0", {"port": Flag("port", SymbolValue("int"))})
    images = with_learned(IMAGES, (), [build_history([mine])])
    assert images.releases == {("vllm", "0.99.0"): mine}
    assert images.tags == IMAGES.tags


def test_without_rows_nothing_is_known() -> None:
    assert identify("vllm/vllm-openai:v0.28.0", Images()) is None
