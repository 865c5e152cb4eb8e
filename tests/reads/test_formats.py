"""Files of many formats that start the same engine, and files that they name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from firesteel.catalog.image import Images
from firesteel.reads.launches import scan
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.source_text import parse_env_file, source_file

IMAGE = "vllm/vllm-openai:v0.24.0"
CONFIG = "./conf/a.yaml"
NOTHING: Mapping[str, str] = MappingProxyType({})


def readings(
    path: str, text: str, images: Images, beside: Mapping[str, str] = NOTHING
) -> tuple[ReadLaunch, ...]:
    return scan(source_file(text, path, beside.get), images).launches


FOLDER = Path(__file__).parent / "files" / "formats"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_formats(name: str, images: Images) -> None:
    text = (FOLDER / name).read_text()
    (reading,) = readings(name, text, images)
    launch = reading.launch
    assert (launch.engine, launch.version, launch.model) == ("vllm", "0.24.0", "org/m")
    assert launch.flags == {"max-num-seqs": "3"}
    line = text.split("\n")[reading.spots["flag:max-num-seqs"].line - 1]
    assert "max-num-seqs" in line or "maxNumSeqs" in line


def test_a_template_with_the_values_of_its_chart(images: Images) -> None:
    template = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec:\n  {{- if .Values.gpu }}\n  hostIPC: true\n"
        "  {{- end }}\n  containers:\n  - name: a\n"
        '    image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default "v0.1.0" }}"\n'
        '    args: [org/m, --max-num-seqs, {{ .Values.users | default "3" | quote }}]\n'
    )
    values = "image: {repository: vllm/vllm-openai, tag: v0.24.0}\n"
    (reading,) = readings("templates/pod.yaml", template, images, {"../values.yaml": values})
    assert reading.launch.container and reading.launch.container.image == IMAGE
    assert reading.launch.flags == {"max-num-seqs": "3"}


def test_compose_with_files_beside_it(images: Images) -> None:
    text = (
        "services:\n  a:\n    image: vllm/vllm-openai:${TAG}\n    env_file: [vllm.env]\n"
        "    environment: [C=mine]\n    command: ${MODEL:-no} --max-num-seqs $USERS --api-key ${API_KEY}\n"
    )
    beside = {
        ".env": "TAG=v0.24.0\nMODEL='org/m'\nUSERS=3 # few\nAPI_KEY=secret\n",
        "vllm.env": 'export A=1\nB="two words"\nC=theirs\n',
    }
    (reading,) = readings("compose.yaml", text, images, beside)
    launch = reading.launch
    assert (launch.version, launch.model, launch.flags["max-num-seqs"]) == ("0.24.0", "org/m", "3")
    assert launch.flags["api-key"] == "${API_KEY}"
    assert launch.env == {"A": "1", "B": "two words", "C": "mine"}
    assert reading.spots["env:A"].line == 4


def test_compose_extends_a_service_of_another_file(images: Images) -> None:
    text = (
        "services:\n  a:\n    extends: {file: base.yaml, service: b}\n    command: org/m --max-num-seqs 3\n"
    )
    base = f"services:\n  b:\n    image: {IMAGE}\n    gpus: all\n    command: x\n"
    (reading,) = readings("compose.yaml", text, images, {"base.yaml": base})
    assert reading.launch.container and reading.launch.container.gpus == "all"
    assert reading.spots["image"].line == 3 and reading.spots["flag:max-num-seqs"].line == 4
    loop = {"base.yaml": "services:\n  b:\n    extends: {file: base.yaml, service: b}\n"}
    (reading,) = readings("compose.yaml", text, images, loop)
    assert reading.launch.container and reading.launch.container.image == ""


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("vllm serve org/m --max-num-seqs 3 --config cfg.yaml", "cfg.yaml"),
        (f"docker run -v ./conf/a.yaml:/c.yaml {IMAGE} org/m --max-num-seqs 3 --config /c.yaml", CONFIG),
        (f"docker run -v ./conf:/conf {IMAGE} org/m --max-num-seqs=3 --config /conf/a.yaml", CONFIG),
    ],
)  # fmt: skip
def test_a_file_of_flags(line: str, name: str, images: Images) -> None:
    config = "max_num_seqs: 99\ngpu-memory-utilization: 0.9\ntrust-remote-code: true\n"
    config += "speculative-config: {method: mtp, num_speculative_tokens: 1}\n"
    (reading,) = readings("run.sh", line, images, {name: config})
    flags = {key: value for key, value in reading.launch.flags.items() if key != "config"}
    assert flags == {
        "max-num-seqs": "3",
        "gpu-memory-utilization": "0.9",
        "trust-remote-code": True,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": "1"},
    }


def test_env_files() -> None:
    text = '# c\nA=1\nexport B = two \nC=\'a # b\' # c\nD="x \\" y"\nE=a#b #c\nF=\nnot a line\nA=2\n'
    assert parse_env_file(text) == {"A": "2", "B": "two", "C": "a # b", "D": 'x " y', "E": "a#b", "F": ""}


def test_guides_and_scripts_in_values_of_yaml(images: Images) -> None:
    text = (
        "meta: {title: x}\nguide: |\n  # Serve\n\n  Don't.\n\n  ```bash\n  vllm serve org/m \\\n"
        "    --max-num-seqs 3\n  ```\nrun: vllm serve org/n --max-num-seqs 4\n"
    )
    one, two = readings("recipe.yaml", text, images)
    assert [reading.launch.model for reading in (one, two)] == ["org/n", "org/m"]
    assert two.spots["flag:max-num-seqs"].line == 9
