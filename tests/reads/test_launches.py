"""Whole commands, scripts and guides, files of many formats, and what could not be read of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Location, Mount
from firesteel.reads.launches import NotRead, not_read, read, scan
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.source_text import parse_env_file, source_file

FLAGSHIP = """\
export HF_TOKEN=hf_xxx
docker run -d --name chat --ipc=host --restart unless-stopped \\
  --gpus all -p 8000:8000 \\
  -e HF_HOME=/models -v ~/vllm:/models -e HF_TOKEN="$HF_TOKEN" \\
  -e VLLM_FP8_MOE_BACKEND=flashinfer_cutlass \\
  vllm/vllm-openai:nightly \\
  vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --port 8000 \\
    --trust-remote-code --kv-cache-dtype fp8 \\
    --speculative-config '{"method":"mtp","num_speculative_tokens":3}'
"""


def test_a_guide_command(images: Images) -> None:
    (reading,) = read(FLAGSHIP, "run.sh", images)
    assert reading.launch == Launch(
        name="nvidia/Qwen3.6-35B-A3B-NVFP4",
        model="nvidia/Qwen3.6-35B-A3B-NVFP4",
        engine="vllm",
        version=None,
        flags={
            "trust-remote-code": True,
            "kv-cache-dtype": "fp8",
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
        },
        env={"HF_HOME": "/models", "HF_TOKEN": "$HF_TOKEN", "VLLM_FP8_MOE_BACKEND": "flashinfer_cutlass"},
        container=Container(
            image="vllm/vllm-openai:nightly",
            program=("vllm", "serve"),
            gpus="all",
            ipc="host",
            restart="unless-stopped",
            publish=("8000:8000",),
            mounts=(Mount("~/vllm", "/models"),),
            options=(("name", "chat"),),
        ),
    )
    locations = reading.locations
    assert locations["program"] == Location(
        "run.sh", 7, "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --port 8000", 3
    )
    lines = {name: locations[name].line for name in ("image", "model", "flag:kv-cache-dtype")}
    assert lines == {"image": 6, "model": 7, "flag:kv-cache-dtype": 8}
    assert locations["env:VLLM_FP8_MOE_BACKEND"].line == 5
    assert locations["option:restart"].line == 2


def test_the_image_that_starts_the_engine_itself(images: Images) -> None:
    line = "sudo docker run --gpus all vllm/vllm-openai:v0.24.0 --model /model --served-model-name chat"
    (reading,) = read(line, "-", images)
    launch = reading.launch
    assert (launch.version, launch.model, launch.name) == ("0.24.0", "/model", "chat")
    assert launch.container is not None and launch.container.program == ()


def test_a_script_inside_a_container(images: Images) -> None:
    text = (
        'docker run -d nvcr.io/nvidia/vllm:26.04-py3 \\\n  bash -lc "pip install --no-cache-dir scipy && \\\n'
        '    VLLM_X=1 vllm serve org/m \\\n      --max-model-len 4096"\n'
    )
    (reading,) = read(text, "run.sh", images)
    launch = reading.launch
    assert (launch.version, launch.model, launch.flags) == ("0.19.0", "org/m", {"max-model-len": "4096"})
    assert launch.env == {"VLLM_X": "1"}
    assert launch.container is not None and launch.container.program[:2] == ("bash", "-lc")
    assert launch.container.program[2].startswith("pip install")
    assert launch.container.program[2].endswith("VLLM_X=1 vllm serve")
    assert (reading.locations["model"].line, reading.locations["flag:max-model-len"].line) == (3, 4)


@pytest.mark.parametrize(
    ("line", "entrypoint", "program"),
    [
        ("--entrypoint vllm vllm/vllm-openai:v0.24.0 serve org/m", "vllm", ("serve",)),
        ("--entrypoint '' vllm/vllm-openai:v0.24.0 vllm serve org/m", "", ("vllm", "serve")),
        ("--entrypoint bash my/image -c 'vllm serve org/m'", "bash", ("-c", "vllm serve")),
        ("lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --model-path org/m", None, None),
        ("my/image /usr/bin/python3 -u -m vllm.entrypoints.openai.api_server --model org/m", None, None),
        ("my/image sglang serve --model-path org/m", None, ("sglang", "serve")),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda13-b9000 -hf org/m", None, ()),
        ("some/llama-thing:1 -m org/m", None, ()),
        ("vllm/vllm-openai:v0.28.0 serve org/m", None, ("serve",)),
        ("vllm/vllm-openai:v0.28.0 --enable-return-routed-experts org/m", None, ()),
    ],
)
def test_programs_and_entrypoints(
    images: Images, line: str, entrypoint: str | None, program: tuple[str, ...] | None
) -> None:
    (reading,) = read(f"podman run {line}", "-", images)
    container = reading.launch.container
    assert container is not None
    assert reading.launch.model == "org/m"
    assert container.entrypoint == entrypoint
    if program is not None:
        assert container.program == program


@pytest.mark.parametrize(
    "words", [("bash",), ("/bin/sh", "-c", "nvidia-smi"), ("bash", "-it"), ("zsh", "run.sh", "x")]
)
def test_a_shell_after_an_entrypoint_is_not_a_model(images: Images, words: tuple[str, ...]) -> None:
    (reading,) = read(f"docker run vllm/vllm-openai:v0.28.0 {' '.join(words)}", "-", images)
    container = reading.launch.container
    assert container is not None
    assert (reading.launch.model, container.program, reading.locations["program"].line) == ("", words, 1)


def test_plain_lines(images: Images) -> None:
    text = (
        "export VLLM_API_KEY=k; A=1 exec vllm serve org/a -tp 2 > log 2>&1 &\n"
        "nohup ./build/bin/llama-server -hf org/b:Q8_0 -c 8192 --host 0.0.0.0\n"
        "python -m sglang.launch_server --model org/c --tp 2\n"
        "bash -c 'vllm serve org/d'\n"
        "ssh -tp 22 -oUser=me spark 'A=1 vllm serve org/f'; ssh spark vllm serve org/g; ssh spark hostname\n"
        "echo vllm serve org/e; pip install vllm; docker logs vllm; docker run --rm cuda nvidia-smi\n"
        "find build -name llama-server -o -name llama-cli; cp bin/llama-server -t /opt\n"
        "python3 -m vllm.entrypoints.cli.main bench serve --model org/h --dataset-name random\n"
    )
    found = [reading.launch for reading in read(text, "run.sh", images)]
    assert [(launch.engine, launch.model) for launch in found] == [
        ("vllm", "org/a"), ("llamacpp", "org/b:Q8_0"), ("sglang", "org/c"), ("vllm", "org/d"),
        ("vllm", "org/f"), ("vllm", "org/g"),
    ]  # fmt: skip
    assert found[0].env == {"VLLM_API_KEY": "k", "A": "1"}
    assert found[1].flags == {"ctx-size": "8192", "host": "0.0.0.0"}
    assert [launch.port for launch in found] == [8000, 8080, 30000, 8000, 8000, 8000]


def test_the_first_of_several_names(images: Images) -> None:
    text = "vllm serve m --served-model-name a b\nllama-server -m m.gguf -a c,d\nvllm serve m\n"
    assert [reading.launch.name for reading in read(text, "-", images)] == ["a", "c", "m"]


def test_an_image_that_is_configured_by_its_environment(images: Images) -> None:
    (reading,) = read("docker run --name x -e MODEL_PATH=/m ghcr.io/aeon-7/vllm-dflash:latest", "-", images)
    assert (reading.launch.name, reading.launch.model, reading.launch.version) == ("x", "", None)


def test_ports(images: Images) -> None:
    """A known image listens on its engine's port, whatever is published; an unknown one may be built so."""
    base = "docker run -p 127.0.0.1:9000:8123 vllm/vllm-openai:v0.24.0 org/m"
    assert read(base, "-", images)[0].launch.port == 8000
    assert read(f"{base} --port 8124", "-", images)[0].launch.port == 8124
    assert read(base.replace("vllm/vllm-openai", "my/vllm"), "-", images)[0].launch.port == 8123


def test_sglang_listens_on_loopback_by_default(images: Images) -> None:
    line = "docker run lmsysorg/sglang:v0.5.9 python3 -m sglang.launch_server --model-path m"
    assert read(line, "-", images)[0].launch.flags == {"host": "127.0.0.1"}
    assert read(f"{line} --host 0.0.0.0", "-", images)[0].launch.flags == {}
    assert read("docker run my/sglang-frontend:1", "-", images)[0].launch.flags == {}, "may start anything"


def test_a_markdown_guide(images: Images) -> None:
    text = f"# It's a guide\n\n```bash\n{FLAGSHIP}```\n\n```\nvllm serve m\n```\n```sh\necho 'docker\n```\n"
    first, second = read(text, "guide.md", images)
    assert (first.locations["image"].line, second.locations["program"].line) == (9, 16)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no command"),
        ("hello world", "has no command"),
        ("docker run -d --gpus all", "has no command"),
        ("docker run alpine sh", "has no command"),
        ("docker run nvcr.io/nvidia/vllm:26.04-py3 bash", "has no command"),
        ("docker run my/vllm /bin/bash -c nvidia-smi", "has no command"),
        ("ssh spark", "has no command"),
        ("ssh spark 'vllm serve \"m'", "has no command"),
        ("vllm serve 'm", "never closed"),
        ("vllm serve m" + " x" * 2**20, "longer than"),
        ("vllm serve m\0", "not text"),
        ("vllm serve m\n" * 600, "more than 500 launches"),
    ],
)
def test_what_cannot_be_read(images: Images, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(text, "run.sh", images)
    assert caught.value.next


def test_thirty_thousand_words(images: Images) -> None:
    (reading,) = read("vllm serve m " + "--a 1 x " * 10_000, "-", images)
    assert len(reading.launch.extra) == 10_000
    (reading,) = read("docker run " + "-e A=1 " * 15_000 + "vllm/vllm-openai:nightly m", "-", images)
    assert reading.launch.env == {"A": "1"}


@pytest.mark.parametrize(
    ("text", "flaw", "place"),
    [
        ("vllm serve m \\ \n  --port 1\n", "flaw:blank", (1, 15)),
        ("vllm serve m\n  --port 1\n", "flaw:lost", (2, 3)),
        ("vllm serve m \\\n # why\n  --port 1\n", "flaw:lost", (3, 3)),
        ("vllm serve m \u2013\u2013port 1\n", "flaw:dash", (1, 14)),
    ],
)
def test_text_that_is_broken(images: Images, text: str, flaw: str, place: tuple[int, int]) -> None:
    (reading,) = read(text, "run.sh", images)
    location = reading.locations[flaw]
    assert (location.line, location.column) == place


def test_words_of_each_part(images: Images) -> None:
    text = (
        "docker run -e A=1 -eB=2 vllm/vllm-openai:v0.24.0 vllm serve m --x 1 --y=2 --served-model-name a b\n"
    )
    (reading,) = read(text, "run.sh", images)
    parts = {key: [text[slice(*word.span)] for word in words] for key, words in reading.words.items()}
    assert parts["env:A"] == ["-e", "A=1"] and parts["env:B"] == ["-eB=2"]
    assert parts["program"] == ["vllm", "serve"] and parts["model"] == ["m"]
    assert parts["flag:x"] == ["--x", "1"] and parts["flag:y"] == ["--y=2"]
    assert parts["flag:served-model-name"] == ["--served-model-name", "a", "b"]


def test_a_script_in_a_container_sees_its_environment(images: Images) -> None:
    line = 'docker run -e MODEL=org/m -e HF_TOKEN=hf_x my/vllm bash -c "vllm serve $MODEL --x $HF_TOKEN"'
    (reading,) = read(line.replace('"', "'"), "-", images)
    assert reading.launch.model == "org/m" and reading.launch.flags == {"x": "$HF_TOKEN"}


@pytest.mark.parametrize("image", ["ollama/ollama", "ghcr.io/open-webui/open-webui:ollama", "my/codellama"])
def test_an_image_whose_name_only_ends_like_an_engine(images: Images, image: str) -> None:
    with pytest.raises(UsageError, match="has no command"):
        read(f"docker run {image}", "-", images)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("{image} org/m", "0.24.0"),
        ("-v ./vllm:/usr/local/lib/python3.12/dist-packages/vllm {image} org/m", None),
        ("--entrypoint bash {image} -c 'pip install -U vllm==0.32.0 && vllm serve org/m'", "0.32.0"),
        ("--entrypoint bash {image} -c 'pip install vllm-omni && vllm serve org/m'", None),
        ("--entrypoint bash {image} -c 'git apply x.patch && vllm serve org/m'", None),
        ("--entrypoint bash {image} -c 'pip install scipy && vllm serve org/m'", "0.24.0"),
    ],
)
def test_a_launch_that_replaces_the_engine_of_its_image(
    images: Images, line: str, version: str | None
) -> None:
    text = f"docker run {line.format(image='vllm/vllm-openai:v0.24.0')}"
    assert read(text, "-", images)[0].launch.version == version


@pytest.mark.parametrize(
    ("text", "models"),
    [
        (": <<'END'\nvllm serve old/m\nEND\nvllm serve org/m", ["org/m"]),
        ("CID=$(docker run -d vllm/vllm-openai:v0.24.0 org/m)", ["org/m"]),
        ('eval "vllm serve org/m"', ["org/m"]),
        ("tmux new -d 'vllm serve org/m'", ["org/m"]),
        ("docker --context x run vllm/vllm-openai:v0.24.0 org/m", ["org/m"]),
        ("nvidia-docker run vllm/vllm-openai:v0.24.0 org/m", ["org/m"]),
        ("~/ik_llama.cpp/build/bin/llama-server -m a.gguf -fa\nvllm serve org/m", ["org/m"]),
        ("ARGS=(\n  --a 1\n)\nvllm serve org/m ${ARGS[@]}", ["org/m"]),
        ('CUDA_VISIBLE_DEVICES="$GPU" \\\n"$PYTHON" -m sglang.launch_server --model-path org/m', ["org/m"]),
        ('"$LLAMA_SERVER" -hf org/m\n${VLLM_BIN} serve org/n\n$VLLM_HOME/x serve org/o', ["org/m", "org/n"]),
        ("<!--\n```\nvllm serve old/m\n```\n-->\n```\nvllm serve org/m\n```\n", ["org/m"]),
    ],
)
def test_what_runs_and_what_does_not(images: Images, text: str, models: list[str]) -> None:
    assert [reading.launch.model for reading in read(text, "guide.md", images)] == models


def test_versions_that_the_script_installs(images: Images) -> None:
    text = "pip install 'vllm[audio]==0.12.0'\nvllm serve org/m\ngit checkout b4800\n./llama-server -m a\n"
    assert [reading.launch.version for reading in read(text, "run.sh", images)] == ["0.12.0", "4800"]


def test_a_pods_variable_in_a_script(images: Images) -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - image: vllm/vllm-openai:v0.24.0\n"
        "      env: [{name: UTIL, value: '0.72'}]\n      command: [/bin/sh, -c]\n"
        "      args: ['exec vllm serve org/m --gpu-memory-utilization \"${UTIL}\"']\n"
    )
    assert read(text, "pod.yaml", images)[0].launch.flags == {"gpu-memory-utilization": "0.72"}


@pytest.mark.parametrize("unit", [": <<X\nvllm\n", "X=(vllm serve\n", "( ( vllm ", "vllm <a <<c "])
def test_hostile_scripts_take_time_in_proportion(images: Images, unit: str) -> None:
    """Each took minutes: every opening was searched for its end through the whole text."""
    text = unit * (200_000 // len(unit))
    with pytest.raises(UsageError):
        read(text, "run.sh", images)


def test_a_comment_block_ends_at_its_word(images: Images) -> None:
    text = ": <<'A'\nvllm serve org/a\nB\nA\n: <<B\nvllm serve org/b\n  B\nvllm serve org/c\n: <<C\n"
    assert [reading.launch.model for reading in read(text, "run.sh", images)] == ["org/c"]


IMAGE = "vllm/vllm-openai:v0.24.0"
CONFIG = "./conf/a.yaml"
NOTHING: Mapping[str, str] = MappingProxyType({})


def readings(
    path: str, text: str, images: Images, beside: Mapping[str, str] = NOTHING
) -> tuple[ReadLaunch, ...]:
    return tuple(scan(source_file(text, path, beside.get), images).launches)


FOLDER = Path(__file__).parent / "files" / "formats"


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.iterdir()))
def test_formats(name: str, images: Images) -> None:
    text = (FOLDER / name).read_text()
    (reading,) = readings(name, text, images)
    launch = reading.launch
    assert (launch.engine, launch.version, launch.model) == ("vllm", "0.24.0", "org/m")
    assert launch.flags == {"max-num-seqs": "3"}
    line = text.split("\n")[reading.locations["flag:max-num-seqs"].line - 1]
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
    assert reading.locations["env:A"].line == 4


def test_compose_extends_a_service_of_another_file(images: Images) -> None:
    text = (
        "services:\n  a:\n    extends: {file: base.yaml, service: b}\n    command: org/m --max-num-seqs 3\n"
    )
    base = f"services:\n  b:\n    image: {IMAGE}\n    gpus: all\n    command: x\n"
    (reading,) = readings("compose.yaml", text, images, {"base.yaml": base})
    assert reading.launch.container and reading.launch.container.gpus == "all"
    assert reading.locations["image"].line == 3 and reading.locations["flag:max-num-seqs"].line == 4
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
    assert two.locations["flag:max-num-seqs"].line == 9


def unread(text: str, images: Images, path: str = "run.sh") -> tuple[NotRead, ...]:
    return not_read(scan(source_file(text, path), images))


@pytest.mark.parametrize(
    ("path", "text", "engine", "line", "why"),
    [
        ("a.md", 'x\n```python\nrun(["vllm", "serve", "org/m"])\n```\n', "vLLM", 3, "marked `python`"),
        ("a.toml", 'cmd = ["llama-server", "-m", "x.gguf"]\n', "llama.cpp", 1, "not a command"),
        ("a.conf", "command=/opt/run $X -- 'vllm serve $MODEL'\n", "vLLM", 1, "`$X` is set outside"),
        ("a.sh", "docker run \\\n  -e A=1 $IMAGE \\\n  --max-model-len 9 --what\n"
        "", "vLLM", 1, "`$IMAGE` is set"),
        ("a.sh", "vllm serve 'org/m --x 1\n", "vLLM", 1, "never closed"),
        ("a.sh", "vllm serve org/m --config x.yaml", "an engine", 1, "`x.yaml`, and that file"),
        ("compose.yaml", "services:\n  a:\n    extends: {file: b.yaml, service: b}\n"
        "", "an engine", 3, "`b.yaml`"),
        ("run.ps1", "Start-Process wsl -ArgumentList 'python3 -m sglang.launch_server --model-path m'\n",
         "SGLang", 1, "not a command"),
    ],
)  # fmt: skip
def test_named(path: str, text: str, engine: str, line: int, why: str, images: Images) -> None:
    (place,) = unread(text, images, path)
    assert (place.engine, place.location.line) == (engine, line)
    assert why in place.why


@pytest.mark.parametrize(
    "text",
    [
        "# vllm serve org/m\n",
        "echo 'vllm serve org/m'\n",
        "pkill -f 'vllm serve org/m'\n",
        "vllm serve --help\n",
        "if pgrep -f 'vllm serve org/m'; then exit; fi\n",
        "docker run --rm vllm/vllm-openai:v0.24.0 --help\n",
        "docker run ubuntu nvidia-smi\n",
        "pip install vllm\n",
        "vllm serve org/m --max-num-seqs 3\n",
        "docker run \\\n  --gpus all \\\n  vllm/vllm-openai:v0.24.0 \\\n  org/m\n",
    ],
)
def test_not_named(text: str, images: Images) -> None:
    assert unread(text, images) == ()


def test_prose_is_not_a_launch(images: Images) -> None:
    text = "Use vllm serve org/m, as `vllm serve org/m`, or not.\n\n```bash\nvllm serve org/m\n```\n"
    assert unread(text, images, "guide.md") == ()


@pytest.mark.parametrize(
    "text",
    [
        "cat <<A\n" * 5000 + "vllm serve org/m\n",
        "A=x\n" + 'A="$A$A"\n' * 2000 + "vllm serve $A\n",
        "A=()\n" + "A+=(--x y)\n" * 5000 + 'vllm serve "${A[@]}"\n',
        "docker run \\\n" * 5000,
        'job "a" {\n' + 'a "b" {\n' * 5000,
    ],
    ids=["heredocs", "doubling", "array", "lines", "blocks"],
)
def test_hostile_texts_are_read_in_bounded_time(text: str, images: Images) -> None:
    """Each once took minutes, or would with a pattern that tries every end for every beginning."""
    not_read(scan(source_file(text, "run.sh"), images))
