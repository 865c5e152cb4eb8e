"""Which machine a text speaks of, and where it says so."""

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.reads.launches import scan
from firesteel.reads.source_text import source_file
from firesteel.reads.stated_machine import StatedMachine, find_machine
from firesteel.reads.surroundings import Surroundings

SERVE = "vllm serve org/m --gpu-memory-utilization 0.9"
RECIPE = (
    "meta: {{title: x{hardware}}}\nmodel: {{model_id: a/b, base_args: []}}\n"
    "variants: {{default: {{precision: fp8, vram_minimum_gb: {size}}}}}\n"
)


def machines(text: str, path: str = "line") -> list[StatedMachine]:
    file = source_file(text, path)
    readings = scan(file, shipped().images).launches
    return [find_machine(reading, path, Surroundings(file)) for reading in readings]


def guide(*parts: str) -> str:
    return "\n".join(f"```bash\n{SERVE}\n```" if part == "$" else part for part in parts)


@pytest.mark.parametrize(
    "text, path, expected",
    [
        (SERVE, "line", ("unsaid", "")),
        (f"# for 8x H200\n{SERVE}", "run.sh", ("other", "H200")),
        (f"# two DGX Sparks\n{SERVE} -tp 2", "run.sh", ("spark", "DGX Sparks")),
        (f"{SERVE}  # fits on an A100", "run.sh", ("other", "A100")),
        (guide("# Guide", "```", "GPU  A800-80GB * 1", "```", "Run:", "$"), "g.md", ("other", "A800")),
        (guide("# Guide", "$", "Measured on one RTX4090D."), "g.md", ("other", "RTX4090D")),
        (f"{SERVE} -tp 8", "line", ("other", "8 GPUs in one host")),
        (f"{SERVE} -tp 8 -pp 2 --nnodes 2", "line", ("other", "8 GPUs in one host")),
        (f"{SERVE} -tp 2 --nnodes 2", "line", ("unsaid", "")),
        (f"{SERVE} -tp 2 --distributed-executor-backend ray", "line", ("unsaid", "")),
        (f"{SERVE} -dp 4", "line", ("other", "4 GPUs in one host")),
        (f"CUDA_VISIBLE_DEVICES=0,1 {SERVE}", "line", ("other", "2 GPUs in one host")),
        (
            "docker run --gpus '\"device=0,1\"' vllm/vllm-openai:v0.26.0 a/b",
            "line",
            ("other", "2 GPUs in one host"),
        ),
        ("docker run vllm/vllm-openai-rocm:v0.26.0 a/b", "line", ("other", "rocm")),
        ("docker run eugr/spark-vllm vllm serve a/b -tp 8", "line", ("spark", "spark")),
        (SERVE, "nvidia/station-vllm/run.sh", ("other", "station")),
        (SERVE, "dgx-spark-playbooks/vllm/run.sh", ("spark", "spark")),
        (guide("# vLLM", "## 8x H100", "$"), "g.md", ("other", "H100")),
        (guide("# DGX Spark", "## Start", "$"), "g.md", ("spark", "DGX Spark")),
        (guide("# A VM of GCP", "## Start", "$"), "g.md", ("other", "GCP")),
        (
            guide("# x", "$", "Use a `g4-standard-48`."),
            "g.md",
            ("other", "g4-standard-48"),
        ),
        (guide("# x", "On an L40S it fits:", "", "$"), "g.md", ("other", "L40S")),
        (guide("# x", "Also tested on H100 and the DGX Spark.", "$"), "g.md", ("spark", "DGX Spark")),
        (guide("# x", "$", "## Results", "Measured on a B200."), "g.md", ("other", "B200")),
        (guide("# x", "$", "A B200 is faster than a DGX Spark."), "g.md", ("unsaid", "")),
        (guide("# Qwen3-30B-A3B with the Apache Spark connector", "$"), "g.md", ("unsaid", "")),
        (RECIPE.format(hardware=", hardware: {h200: verified}", size=60), "m.yaml", ("other", "h200")),
        (
            RECIPE.format(hardware=", hardware: {h200: verified, dgx_spark_gb10: verified}", size=60),
            "m.yaml",
            ("spark", "dgx spark"),
        ),
        (
            RECIPE.format(hardware=", hardware: {h200: verified, dgx_spark_gb10: unsupported}", size=60),
            "m.yaml",
            ("other", "h200"),
        ),
        (RECIPE.format(hardware="", size=60), "m.yaml", ("unsaid", "")),
        (RECIPE.format(hardware="", size=640), "m.yaml", ("other", "at least 640 GB")),
    ],
)
def test_what_a_text_states(text: str, path: str, expected: tuple[str, str]) -> None:
    (machine,) = machines(text, path)
    assert (machine.kind, machine.what) == expected
    assert (machine.spot is None) == (machine.kind == "unsaid")


def test_each_launch_of_a_guide_has_its_own_machine() -> None:
    text = guide("# x", "## H200", "$", "## DGX Spark", "$", "### More", "$", "## Anything", "$")
    found = machines(text, "g.md")
    assert [machine.kind for machine in found] == ["other", "spark", "spark", "unsaid"]
    assert [machine.spot.line for machine in found if machine.spot] == [2, 6, 6]


def test_a_template_is_for_the_machine_of_its_chart() -> None:
    template = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.28.0\n"
        "    args: [--model, a/b]\n  nodeSelector: {{ toYaml .Values.nodeSelector }}\n"
    )
    values = {"../values.yaml": "nodeSelector:\n  cloud.google.com/gke-accelerator: nvidia-l4\n"}
    file = source_file(template, "templates/pod.yaml", values.get)
    (reading,) = scan(file, shipped().images).launches
    assert find_machine(reading, file.path, Surroundings(file)).kind == "other"
