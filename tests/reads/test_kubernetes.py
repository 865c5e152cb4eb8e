"""Manifests; and the same launch as a line, a service and a pod."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.launch import Container, Launch, Mount
from firesteel.reads.docker import EngineStart
from firesteel.reads.kubernetes import quantity, starts
from firesteel.reads.launches import read
from firesteel.reads.reader import ReadLaunch
from firesteel.reads.shell import NO_SPAN
from firesteel.reads.source_text import source_file
from firesteel.reads.yaml_nodes import parse_documents
from firesteel.units import GIB
from firesteel.values import replace

FILE = Path(__file__).parent / "files" / "kube.yaml"
VLLM = "vllm/vllm-openai:v0.24.0"


@pytest.fixture(scope="module")
def cluster(images: Images) -> tuple[ReadLaunch, ...]:
    return read(FILE.read_text(), "kube.yaml", images)


def test_a_deployment(cluster: tuple[ReadLaunch, ...]) -> None:
    assert cluster[0].launch == Launch(
        name="Qwen/Qwen3-8B",
        model="Qwen/Qwen3-8B",
        engine="vllm",
        version="0.24.0",
        flags={
            "max-model-len": "32768",
            "speculative-config": {"method": "mtp", "num_speculative_tokens": 3},
            "api-key": "$API_KEY",
            "chat-template": "$(NOBODY)/$(MODEL)",
        },
        env={"ORG": "Qwen", "MODEL": "Qwen/Qwen3-8B", "API_KEY": "$API_KEY", "VLLM_USE_V1": "1"},
        container=Container(
            image=VLLM,
            gpus="1",
            shm_bytes=16 * GIB,
            mounts=(Mount("models", "/models", read_only=True), Mount("/srv/cache", "/cache")),
            options=(("pid", "host"), ("memory", "100g"), ("expose", "8000"), ("volume", "/scratch")),
        ),
    )


def test_a_leader_and_its_worker(cluster: tuple[ReadLaunch, ...]) -> None:
    _, leader, worker = (reading.launch for reading in cluster)
    assert (leader.engine, leader.flags["node-rank"], worker.flags["node-rank"]) == ("sglang", "0", "1")
    container, other = leader.container, worker.container
    assert container and other
    assert (container.network, container.entrypoint, container.program) == (
        "host",
        "python3",
        ("-m", "sglang.launch_server"),
    )
    assert container.options == (("privileged", None), ("cap-add", "IPC_LOCK"))
    assert (other.entrypoint, other.program[0], worker.env) == ("/bin/sh", "-c", {"NCCL_DEBUG": "INFO"})


def test_places(cluster: tuple[ReadLaunch, ...]) -> None:
    chat, leader, worker = (
        {key: (location.line, location.column) for key, location in launch.locations.items()}
        for launch in cluster
    )
    assert (chat["image"], chat["model"], chat["env:MODEL"]) == ((27, 18), (29, 15), (39, 21))
    assert (chat["option:shm-size"], chat["option:gpus"], chat["option:pid"]) == ((64, 13), (49, 15), (19, 7))
    assert (leader["flag:nnodes"], leader["option:entrypoint"]) == ((84, 66), (83, 23))
    assert (worker["flag:node-rank"], worker["env:NCCL_DEBUG"]) == ((100, 37), (97, 24))


def test_a_variable_goes_with_its_whole_item(cluster: tuple[ReadLaunch, ...]) -> None:
    text, words = FILE.read_text(), cluster[0].words
    cut = {name: text[slice(*words[f"env:{name}"][0].span)] for name in ("ORG", "API_KEY", "VLLM_USE_V1")}
    assert cut["ORG"] == "name: ORG\n              value: Qwen"
    assert cut["API_KEY"].endswith("secretKeyRef: {name: keys, key: api}")
    assert cut["VLLM_USE_V1"] == '{name: VLLM_USE_V1, value: "1"}'
    assert words["model"][0].span == NO_SPAN
    assert text[slice(*words["flag:max-model-len"][1].span)] == '"32768"'


def test_an_item_ends_where_its_text_does() -> None:
    text = manifest("env:\n  - name: A\n    value: |\n      b\n  - name: B\n    value: c\nimage: x")
    first = one(text).options[0].word
    assert text[slice(*first.span)].endswith("value: |\n            b")


def test_variables_belong_to_one_container() -> None:
    spec = "{containers: [{env: [{name: A, value: b}]}, {args: [$(A)]}]}"
    (document,) = parse_documents(source_file(f"apiVersion: v1\nkind: Pod\nspec: {spec}", "pod.yaml"))
    _, second = starts(document) or ()
    assert second.arguments[0].text == "$(A)"


def manifest(container: str, pod: str = "") -> str:
    inner = indent(dedent(container), "      ").removeprefix("      ")
    return f"apiVersion: v1\nkind: Pod\nspec:\n{indent(dedent(pod), '  ')}\n  containers:\n    - {inner}\n"


def one(text: str) -> EngineStart:
    (document,) = parse_documents(source_file(text, "pod.yaml"))
    (start,) = starts(document) or ()
    return start


SHM = "volumes: [{name: v, emptyDir: {medium: Memory%s}}]"


@pytest.mark.parametrize(
    ("container", "pod", "expected"),
    [
        ("image: x", "", []),
        ("image: x", "restartPolicy: Always\nhostNetwork: false", []),
        ("image: x", "hostIPC: true\nhostPID: true", [("ipc", "host"), ("pid", "host")]),
        ("image: x", "runtimeClassName: nvidia", [("gpus", "all"), ("runtime", "nvidia")]),
        ("resources: {limits: {nvidia.com/gpu: 2}}", "runtimeClassName: nvidia",
         [("runtime", "nvidia"), ("gpus", "2")]),
        ("resources: {limits: {nvidia.com/gpu: 0}}", "", []),
        ("resources: {requests: {nvidia.com/gpu.shared: 1, memory: 5Gi}}", "", [("gpus", "1")]),
        ("resources: {limits: {cpu: 8, memory: 1536Mi}}", "", [("cpus", "8"), ("memory", "1536m")]),
        ("resources: {limits: {memory: plenty}}", "", [("memory", "plenty")]),
        ("ports: [{containerPort: 80, hostPort: 81}, {containerPort: 82, protocol: UDP}]", "",
         [("publish", "81:80"), ("expose", "82/udp")]),
        ("ports: [{containerPort: 80, hostPort: 81, hostIP: '::1'}]", "", [("publish", "[::1]:81:80")]),
        ("env: [{name: A, value: '1'}, {name: B}, {name: A=B, value: c}, {value: d}, e]", "",
         [("env", "A=1"), ("env", "B=")]),
        ("env: [{name: A, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]", "", [("env", "A")]),
        ("envFrom: [{configMapRef: {name: x}}]\nworkingDir: /w", "", [("workdir", "/w")]),
        ("volumeMounts: [{name: v, mountPath: /dev/shm}]", SHM % ", sizeLimit: 10.5Gi",
         [("shm-size", "10752m")]),
        ("volumeMounts: [{name: v, mountPath: /dev/shm}]", SHM % "", [("tmpfs", "/dev/shm")]),
        ("volumeMounts: [{name: v, mountPath: /dev/shm}]", f"hostIPC: true\n{SHM % ', sizeLimit: 1Gi'}",
         [("ipc", "host"), ("tmpfs", "/dev/shm:size=1g")]),
        ("volumeMounts: [{name: v, mountPath: /x}]", SHM % ", sizeLimit: 1G",
         [("tmpfs", "/x:size=1000000000")]),
        ("volumeMounts: [{name: v, mountPath: /x, subPath: a}]",
         "volumes: [{name: v, hostPath: {path: /h/}}]", [("volume", "/h/a:/x")]),
        ("volumeMounts: [{name: v, mountPath: /x, subPath: a, readOnly: true}]",
         "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]",
         [("mount", "type=volume,source=c,target=/x,volume-subpath=a,readonly")]),
        ("volumeMounts: [{name: w, mountPath: /x}, {name: v}]", "volumes: [{name: w, secret: {}}, {name: v}]",
         [("volume", "/x")]),
        ("command: []\nargs: [a]", "", []),
        ("command: [a, b]", "", [("entrypoint", "a")]),
        ("securityContext: {privileged: false, runAsUser: 0, capabilities: {drop: [ALL]}}", "",
         [("user", "0"), ("cap-drop", "ALL")]),
    ],
)  # fmt: skip
def test_options(container: str, pod: str, expected: list[tuple[str, str | None]]) -> None:
    start = one(manifest(container, pod))
    assert [(option.name, option.value) for option in start.options] == expected
    assert all(option.word.line > 3 for option in start.options)


@pytest.mark.parametrize(
    ("written", "read_as"),
    [
        ("$(A)", "1"),
        ("$(A)$(A)x", "11x"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(NOPE)", "$(NOPE)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(LATE)", "$(A)2"),
        ("$(SECRET)", "$SECRET"),
        ("$(A", "$(A"),
        ("$$", "$"),
    ],
)
def test_variables(written: str, read_as: str) -> None:
    text = manifest(f"""\
        args: ['{written}']
        env:
          - {{name: LATE, value: $(A)2}}
          - {{name: A, value: 1}}
          - {{name: SECRET, valueFrom: {{secretKeyRef: {{name: a, key: b}}}}}}
        """)
    assert [word.text for word in one(text).arguments] == [read_as]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("64Gi", 64 * GIB), ("1.5G", 1_500_000_000), ("2e3", 2000), ("1500m", 2), ("7", 7), (".5Ki", 512),
        ("1E", 10**18), ("", None), ("Gi", None), ("1GiB", None), ("1e999", None), ("-1", None),
    ],
)  # fmt: skip
def test_quantities(text: str, count: int | None) -> None:
    assert quantity(text) == count


POD = f"{{containers: [{{name: c, image: '{VLLM}', args: [org/m]}}]}}"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Pod", f"spec: {POD}"),
        ("Deployment", f"spec: {{template: {{spec: {POD}}}}}"),
        ("StatefulSet", f"spec: {{template: {{spec: {POD}}}}}"),
        ("Job", f"spec: {{template: {{spec: {POD}}}}}"),
        ("CronJob", f"spec: {{jobTemplate: {{spec: {{template: {{spec: {POD}}}}}}}}}"),
        ("PodTemplate", f"template: {{spec: {POD}}}"),
        ("LeaderWorkerSet", f"spec: {{leaderWorkerTemplate: {{workerTemplate: {{spec: {POD}}}}}}}"),
        ("InferenceService", f"spec: {{predictor: {POD}}}"),
        ("ServingRuntime", f"spec: {POD}"),
        ("Service", f"spec: {{template: {{spec: {POD}}}}}"),
        ("RayCluster", f"spec: {{workerGroupSpecs: [{{template: {{spec: {POD}}}}}]}}"),
        ("List", f"items: [{{apiVersion: v1, kind: Pod, spec: {POD}}}]"),
        ("InferenceService", f"spec: {{predictor: {{model: {{modelFormat: {{name: vllm}}, image: '{VLLM}',"
                             " args: [org/m]}}}"),
    ],
)  # fmt: skip
def test_kinds(images: Images, kind: str, spec: str) -> None:
    text = f"apiVersion: x/v1\nkind: {kind}\nmetadata: {{name: n}}\n{spec}\n"
    (reading,) = read(text, "x.yaml", images)
    assert (reading.launch.model, reading.launch.version) == ("org/m", "0.24.0")


@pytest.mark.parametrize("text", ["kind: Pod", "apiVersion: v1", "[]", "a", "kind: {a: b}\napiVersion: v1"])
def test_other_files_are_not_manifests(text: str) -> None:
    (document,) = parse_documents(source_file(text, "x.yaml"))
    assert starts(document) is None


def test_a_template_that_is_not_yaml(images: Images) -> None:
    text = "apiVersion: v1\nkind: Pod\nspec:\n  containers: {{ tpl .Values.pods . }} x\n"
    with pytest.raises(UsageError, match=r"chart\.yaml:4: "):
        read(text, "chart.yaml", images)


SAME = {
    "image alone": (
        f"docker run {VLLM} --model Qwen/Qwen3-8B",
        f"image: {VLLM}\ncommand: --model Qwen/Qwen3-8B",
        f"image: {VLLM}\nargs: [--model, Qwen/Qwen3-8B]",
        "",
    ),
    "vllm with everything around it": (
        "docker run --gpus 1 --shm-size 16g -p 8000:8000 -v /srv/m:/models:ro -e HF_HOME=/models"
        f" -e HF_TOKEN {VLLM} Qwen/Qwen3-8B --max-model-len 32768 --enable-prefix-caching",
        f"""\
        image: {VLLM}
        gpus: [{{count: 1}}]
        shm_size: 16g
        ports: ["8000:8000"]
        volumes: [/srv/m:/models:ro]
        environment: {{HF_HOME: /models, HF_TOKEN: }}
        command: [Qwen/Qwen3-8B, --max-model-len, 32768, --enable-prefix-caching]
        """,
        f"""\
        image: {VLLM}
        args: [Qwen/Qwen3-8B, --max-model-len, "32768", --enable-prefix-caching]
        ports: [{{containerPort: 8000, hostPort: 8000}}]
        env: [{{name: HF_HOME, value: /models}}, {{name: HF_TOKEN, valueFrom: {{secretKeyRef: {{}}}}}}]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
        volumeMounts: [{{name: m, mountPath: /models, readOnly: true}}, {{name: s, mountPath: /dev/shm}}]
        """,
        """\
        volumes:
          - {name: m, hostPath: {path: /srv/m}}
          - {name: s, emptyDir: {medium: Memory, sizeLimit: 16Gi}}
        """,
    ),
    "the program after its own entrypoint": (
        f"docker run --ipc host {VLLM} vllm serve openai/gpt-oss-20b --port 8001",
        f"image: {VLLM}\nipc: host\ncommand: vllm serve openai/gpt-oss-20b --port 8001",
        f"image: {VLLM}\nargs: [vllm, serve, openai/gpt-oss-20b, --port, '8001']",
        "hostIPC: true",
    ),
    "an entrypoint of one's own": (
        f"docker run --entrypoint vllm {VLLM} serve openai/gpt-oss-20b",
        f"image: {VLLM}\nentrypoint: vllm serve\ncommand: openai/gpt-oss-20b",
        f"image: {VLLM}\ncommand: [vllm, serve]\nargs: [openai/gpt-oss-20b]",
        "",
    ),
    "JSON": (
        f"docker run {VLLM} org/m"
        """ --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""",
        f"""\
        image: {VLLM}
        command: >
          org/m
          --speculative-config '{{"method": "mtp", "num_speculative_tokens": 3}}'
        """,
        f"""\
        image: {VLLM}
        args:
          - org/m
          - --speculative-config
          - '{{"method": "mtp", "num_speculative_tokens": 3}}'
        """,
        "",
    ),
    "a script": (
        "docker run --entrypoint /bin/sh nvcr.io/nvidia/vllm:26.04-py3"
        " -c 'pip install scipy && A=1 vllm serve org/m -tp 2'",
        """\
        image: nvcr.io/nvidia/vllm:26.04-py3
        entrypoint: [/bin/sh, -c]
        command: ["pip install scipy && A=1 vllm serve org/m -tp 2"]
        """,
        """\
        image: nvcr.io/nvidia/vllm:26.04-py3
        command: [/bin/sh, -c]
        args: ["pip install scipy && A=1 vllm serve org/m -tp 2"]
        """,
        "",
    ),
    "sglang": (
        "docker run --network host --gpus 1 --entrypoint python3 lmsysorg/sglang:v0.5.9"
        " -m sglang.launch_server --model-path openai/gpt-oss-120b --host 0.0.0.0 --port 30001"
        " --mem-fraction-static 0.8",
        """\
        image: lmsysorg/sglang:v0.5.9
        network_mode: host
        deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}
        entrypoint: python3 -m sglang.launch_server
        command: |
          --model-path openai/gpt-oss-120b
          --host 0.0.0.0 --port 30001
          --mem-fraction-static 0.8
        """,
        """\
        image: lmsysorg/sglang:v0.5.9
        command: [python3, -m, sglang.launch_server]
        args: [--model-path=openai/gpt-oss-120b, --host, 0.0.0.0, --port=30001, --mem-fraction-static, "0.8"]
        resources: {limits: {nvidia.com/gpu: "1"}}
        """,
        "hostNetwork: true",
    ),
    "llama.cpp": (
        "docker run -p 8080:8080 -v models:/models ghcr.io/ggml-org/llama.cpp:server-cuda13-b9000"
        " -m /models/gpt-oss-20b.gguf -c 8192 --host 0.0.0.0 -ngl 99",
        """\
        image: ghcr.io/ggml-org/llama.cpp:server-cuda13-b9000
        ports: [{target: 8080, published: 8080}]
        volumes: [{type: volume, source: models, target: /models}]
        command: -m /models/gpt-oss-20b.gguf -c ${CTX:-8192} --host 0.0.0.0 -ngl 99
        """,
        """\
        image: ghcr.io/ggml-org/llama.cpp:server-cuda13-b9000
        args: [-m, /models/gpt-oss-20b.gguf, -c, "8192", --host, 0.0.0.0, -ngl, "99"]
        ports: [{hostPort: 8080, containerPort: 8080}]
        volumeMounts: [{name: models, mountPath: /models}]
        """,
        "volumes: [{name: models, persistentVolumeClaim: {claimName: models}}]",
    ),
    "llama.cpp by name, from the Hub": (
        "docker run --entrypoint /app/llama-server -e HF_TOKEN=x my/build:1 -hf ggml-org/gpt-oss-20b-GGUF",
        """\
        image: my/build:1
        entrypoint: [/app/llama-server]
        command: [-hf, ggml-org/gpt-oss-20b-GGUF]
        environment: [HF_TOKEN=x]
        """,
        """\
        image: my/build:1
        command: [/app/llama-server]
        args: [-hf, ggml-org/gpt-oss-20b-GGUF]
        env: [{name: HF_TOKEN, value: x}]
        """,
        "",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_a_line_a_service_and_a_pod_give_the_same_launch(images: Images, name: str) -> None:
    line, service, container, pod = SAME[name]
    composed = f"services:\n  one:\n{indent(dedent(service), '    ')}"
    found = [
        _bare(*read(text, path, images))
        for text, path in (
            (line, "-"), (composed, "compose.yaml"), (manifest(container, pod), "pod.yaml"),
        )
    ]  # fmt: skip
    assert found[1] == found[0]
    assert found[2] == found[0]
    assert found[0].model


def _bare(reading: ReadLaunch) -> Launch:
    assert reading.launch.container
    return replace(reading.launch, container=replace(reading.launch.container, options=()))


SCALARS = st.one_of(
    st.sampled_from(["vllm serve m", "$(A)", "$$", "8000", "true", "", "16Gi", "Memory", "/dev/shm", VLLM]),
    st.none(),
    st.integers(),
    st.text(max_size=8),
)
KEYS = st.sampled_from(
    [
        *("spec", "template", "containers", "image", "command", "args", "env", "name", "value", "valueFrom"),
        *("ports", "containerPort", "hostPort", "resources", "limits", "memory", "nvidia.com/gpu", "volumes"),
        *("volumeMounts", "mountPath", "emptyDir", "medium", "sizeLimit", "hostPath", "path", "hostIPC"),
        *("securityContext", "capabilities", "add", "model", "modelFormat", "items", "<<"),
    ]
)
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=30,
)


@given(st.lists(st.dictionaries(KEYS, TREES, max_size=8), max_size=3), TREES)
def test_any_structure(images: Images, containers: list[object], volumes: object) -> None:
    pod = {"containers": containers, "volumes": volumes}
    text = yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "spec": pod})
    try:
        read(text, "pod.yaml", images)
    except UsageError as error:
        assert error.next


def doubling(count: int, uses: int) -> str:
    env = "".join(f"  - {{name: A{n}, value: '$(A{n - 1})$(A{n - 1})'}}\n" for n in range(1, count))
    args = "".join(f"  - $(A{count - 1})\n" for _ in range(uses))
    return manifest(f"image: {VLLM}\nenv:\n  - {{name: A0, value: ab}}\n{env}args:\n{args}")


def test_variables_that_double(images: Images) -> None:
    (reading,) = read(doubling(60, 3), "pod.yaml", images)
    assert max(len(value) for value in reading.launch.env.values()) <= 2**16
    with pytest.raises(UsageError, match="expand to more than"):
        read(doubling(15, 100), "pod.yaml", images)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("&a [*a]", "with its aliases expanded"),
        ("{containers: [&a {image: x, <<: *a}]}", "with its aliases expanded"),
        ("[" * 50_000, "nested deeper"),
    ],
)
def test_bombs(images: Images, spec: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read(f"apiVersion: v1\nkind: Pod\nspec: {spec}\n", "pod.yaml", images)


@pytest.mark.parametrize("word", ["$$" * 400_000, "$(A)" * 200_000, "$(" * 400_000, "(" * 800_000])
def test_long_words_end(images: Images, word: str) -> None:
    text = manifest(f"image: {VLLM}\nenv: [{{name: A, value: b}}]\nargs: [org/m, '{word}']")
    assert read(text, "pod.yaml", images)[0].launch.model == "org/m"


def test_the_command_of_a_chart_replaces_the_entrypoint(images: Images) -> None:
    text = 'image:\n  repository: vllm/vllm-openai\n  tag: v0.26.0\n  command: ["vllm", "serve", "/data/"]\n'
    (found,) = read(text, "values.yaml", images)
    assert found.launch.container is not None
    assert (found.launch.container.entrypoint, found.launch.model) == ("", "/data/")
