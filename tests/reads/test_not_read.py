"""What looks like a launch and could not be read is named."""

from __future__ import annotations

import pytest

from firesteel.catalog.image import Images
from firesteel.reads.launches import scan
from firesteel.reads.not_read import NotRead
from firesteel.reads.source_text import source_file


def unread(text: str, images: Images, path: str = "run.sh") -> tuple[NotRead, ...]:
    return scan(source_file(text, path), images).unread


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
    assert (place.engine, place.spot.line) == (engine, line)
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
    scan(source_file(text, "run.sh"), images)
