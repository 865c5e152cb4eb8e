"""Words in front of an engine that run it or only speak of it, and which engine a container starts."""

from __future__ import annotations

import pytest

from firesteel.catalog.image import Images
from firesteel.errors import UsageError
from firesteel.reads import programs
from firesteel.reads.launches import read
from firesteel.reads.programs import run_the_next
from firesteel.reads.reader import ReadLaunch

RUN = """
sudo
sudo -u llm nohup
sudo -E env HF_HOME=/x
exec
nice -n 5 ionice -c 3
taskset -c 0-3
numactl --cpunodebind 0 --membind=0
timeout -k 5 600
setsid stdbuf -oL -eL
uv run
uv tool run
uv run --with vllm --
conda run -n vllm --no-capture-output
nsys profile -o out --delay 60 -t cuda
srun -N 2 --gres gpu:8
ssh -p 22 spark-2
docker exec -it server
docker compose run --rm -e A=b --service-ports llm
kubectl exec -it pod -n models --
if !
$SUDO
docker compose -f a.yml exec -T --user root llm
+
wsl -d Ubuntu --
""".strip().splitlines()
SPEAK = """
systemctl restart
sudo systemctl edit
sudo -E systemctl status
journalctl -u
docker stats
docker logs -f
docker exec
docker compose logs
cmake --build build --target
command -v
[ -x
pkill -f
Get-Process
ln -sf
for binary in
./launch-cluster.sh -t image exec
the new
""".strip().splitlines()


@pytest.mark.parametrize("words", RUN)
def test_they_run_the_program(words: str) -> None:
    assert run_the_next(words.split())
    assert programs.find((*words.split(), "llama-server", "-m", "m.gguf")) == ("engine", len(words.split()))


@pytest.mark.parametrize("words", SPEAK)
def test_they_only_name_it(words: str) -> None:
    assert not run_the_next(words.split())
    assert programs.find((*words.split(), "llama-server", "--full")) is None


def test_a_sentence_that_begins_with_its_name() -> None:
    assert programs.find(("llama-server", "accepts", "--foo-bar", "too")) is None
    assert programs.find(("llama-server",)) == ("engine", 0)


IMAGE = "vllm/vllm-openai:v0.24.0"


def only(text: str, images: Images) -> ReadLaunch:
    (reading,) = read(text, "run.sh", images)
    return reading


@pytest.mark.parametrize(
    "text",
    [
        f"docker run --gpus all $EXTRA {IMAGE} org/m --max-num-seqs 3",
        f'docker run --gpus all "${{ARGS[@]}}" $MORE -p 1:1 {IMAGE} org/m --max-num-seqs 3',
        f"docker run --gpus all ${{IMAGE:-{IMAGE}}} org/m --max-num-seqs 3",
        f'CMD="docker run --gpus all {IMAGE}"\nCMD="$CMD org/m"\nCMD+=" --max-num-seqs 3"\neval "$CMD"',
        f'CMD="docker run {IMAGE} org/m"\nif [ -n "$X" ]; then\n CMD="$CMD --max-num-seqs 3"\nfi\neval $CMD',
        f"docker run --entrypoint python3 {IMAGE} /usr/local/bin/vllm serve org/m --max-num-seqs 3",
        f"docker run {IMAGE} numactl --membind 0 vllm serve org/m --max-num-seqs 3",
    ],
)
def test_launches_that_were_lost(text: str, images: Images) -> None:
    launch = only(text, images).launch
    assert (launch.engine, launch.version, launch.model) == ("vllm", "0.24.0", "org/m")
    assert launch.flags == {"max-num-seqs": "3"}
    assert launch.container and launch.container.image == IMAGE


def test_the_value_of_an_extended_command_has_its_own_place(images: Images) -> None:
    reading = only(f'C="docker run {IMAGE} org/m"\nC="$C --max-num-seqs 3"\neval $C', images)
    assert (reading.locations["image"].line, reading.locations["flag:max-num-seqs"].line) == (1, 2)


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ("serve org/m --gpu-memory-utilization 0.9", "vllm"),
        ("--model org/m --gpu-memory-utilization 0.9", "vllm"),
        ("--model-path org/m --mem-fraction-static 0.9", "sglang"),
        ("-hf org/m --ctx-size 4096 -ngl 99", "llamacpp"),
        ("$MODEL --gpu-memory-utilization 0.9", "vllm"),
    ],
)
def test_an_unknown_image_is_known_by_its_flags(words: str, engine: str, images: Images) -> None:
    assert only(f"docker run registry.local/inference:1 {words}", images).launch.engine == engine
    assert only(f"docker run $IMAGE {words}", images).launch.engine == engine


@pytest.mark.parametrize(
    "words", ["serve org/m --nope", "--port 80", "sleep infinity", "-m x", "python3 x.py"]
)
def test_an_unknown_image_with_other_arguments(words: str, images: Images) -> None:
    with pytest.raises(UsageError):
        read(f"docker run registry.local/inference:1 {words}", "run.sh", images)


def test_a_flag_and_its_value_in_one_word(images: Images) -> None:
    text = f"services:\n  a:\n    image: {IMAGE}\n    command: [org/m, --max-num-seqs 3]\n"
    reading = only(text, images)
    assert reading.launch.flags == {"max-num-seqs": "3"}
    assert reading.locations["flaw:glued"].line == 4


def test_images_of_llamacpp_that_hold_all_its_tools(images: Images) -> None:
    run = "docker run -v /m:/m ghcr.io/ggml-org/llama.cpp:full-cuda"
    launch = only(f"{run} --server -m /m/a.gguf -c 512", images).launch
    assert (launch.engine, launch.model, launch.flags) == ("llamacpp", "/m/a.gguf", {"ctx-size": "512"})
    for tool in ("--all-in-one /m/ 7B", "--run -m /m/a.gguf", "-l -m /m/a.gguf -no-cnv -p x"):
        with pytest.raises(UsageError, match="no command that starts an engine"):
            read(f"{run} {tool}", "run.sh", images)


def test_letters_alone_are_no_engine(images: Images) -> None:
    with pytest.raises(UsageError):
        read("docker run registry/tool:1 -b=BUCKET -m=google/gemma/7b-it/2", "run.sh", images)
