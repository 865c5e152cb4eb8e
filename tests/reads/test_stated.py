"""Which machine and which release a text speaks of, and where it says so."""

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.engines.schema.releases import known_versions
from firesteel.reads.launches import scan
from firesteel.reads.source_text import source_file
from firesteel.reads.stated import NearbyText, StatedMachine, find_machine, find_release
from firesteel.rules.checker import Finding
from firesteel.rules.linter import LintOptions, lint

SERVE = "vllm serve org/m --gpu-memory-utilization 0.9"
RECIPE = (
    "meta: {{title: x{hardware}}}\nmodel: {{model_id: a/b, base_args: []}}\n"
    "variants: {{default: {{precision: fp8, vram_minimum_gb: {size}}}}}\n"
)


def machines(text: str, path: str = "line") -> list[StatedMachine]:
    file = source_file(text, path)
    readings = scan(file, shipped().images).launches
    return [find_machine(reading, path, NearbyText(file)) for reading in readings]


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
def test_which_machine_a_text_states(text: str, path: str, expected: tuple[str, str]) -> None:
    (machine,) = machines(text, path)
    assert (machine.kind, machine.what) == expected
    assert (machine.location is None) == (machine.kind == "unsaid")


def test_each_launch_of_a_guide_has_its_own_machine() -> None:
    text = guide("# x", "## H200", "$", "## DGX Spark", "$", "### More", "$", "## Anything", "$")
    found = machines(text, "g.md")
    assert [machine.kind for machine in found] == ["other", "spark", "spark", "unsaid"]
    assert [machine.location.line for machine in found if machine.location] == [2, 6, 6]


def test_a_template_is_for_the_machine_of_its_chart() -> None:
    template = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-openai:v0.28.0\n"
        "    args: [--model, a/b]\n  nodeSelector: {{ toYaml .Values.nodeSelector }}\n"
    )
    values = {"../values.yaml": "nodeSelector:\n  cloud.google.com/gke-accelerator: nvidia-l4\n"}
    file = source_file(template, "templates/pod.yaml", values.get)
    (reading,) = scan(file, shipped().images).launches
    assert find_machine(reading, file.path, NearbyText(file)).kind == "other"


NEWEST = known_versions("vllm")[-1]
SERVE_70_PERCENT = "vllm serve org/m --gpu-memory-utilization 0.7"
RECIPE_WITH_MINIMUM = """meta: {title: x, hardware: {h200: verified}}
model:
  model_id: a/b
  min_vllm_version: "0.17.0"
  base_args: []
features:
  reasoning: {args: ["--reasoning-parser", "qwen3"]}
variants:
  default:
    precision: bf16
    vram_minimum_gb: 60
    hardware_overrides:
      hopper:
        extra_args: ["--linear-backend", "marlin"]
        extra_env: {VLLM_ENABLE_STARTUP_PLAN: "1"}
"""


@pytest.mark.parametrize(
    "text, path, expected",
    [
        (SERVE_70_PERCENT, "line", None),
        (f"# needs vLLM >= 0.20\n{SERVE_70_PERCENT}", "run.sh", ("0.20.0", NEWEST, 1)),
        (f"# vLLM 0.24+ only\n{SERVE_70_PERCENT}", "run.sh", ("0.24.0", NEWEST, 1)),
        (f"# vLLM 0.24 is what I had\n{SERVE_70_PERCENT}", "run.sh", None),
        (f"pip install 'vllm>=0.12.0'\n{SERVE_70_PERCENT}", "run.sh", ("0.12.0", NEWEST, 1)),
        (f"IMAGE=vllm/vllm-openai:v0.26.0\n{SERVE_70_PERCENT}", "run.sh", ("0.26.0", "0.26.0", 1)),
        (
            f"docker pull vllm/vllm-openai:v0.26.0-aarch64\n{SERVE_70_PERCENT}",
            "run.sh",
            ("0.26.0", "0.26.0", 1),
        ),
        (f"docker pull vllm/vllm-openai:nightly\n{SERVE_70_PERCENT}", "run.sh", None),
        (f"# requires vLLM 0.7.3\n{SERVE_70_PERCENT}", "run.sh", (known_versions("vllm")[0], NEWEST, 1)),
        (f"# requires vLLM 9.0\n{SERVE_70_PERCENT}", "run.sh", None),
        (f"# requires SGLang 0.5.9\n{SERVE_70_PERCENT}", "run.sh", None),
        (
            f"# x\nRequires vLLM 0.19 or newer.\n```bash\n{SERVE_70_PERCENT}\n```\n",
            "g.md",
            ("0.19.0", NEWEST, 2),
        ),
        (f"# x\n## A\nThis needs vLLM >= 0.19.\n## B\n```bash\n{SERVE_70_PERCENT}\n```\n", "g.md", None),
        (
            f"```\npip install 'vllm>=0.12'\n```\n## B\n```bash\n{SERVE_70_PERCENT}\n```\n",
            "g.md",
            ("0.12.0", NEWEST, 2),
        ),
        (RECIPE_WITH_MINIMUM, "m.yaml", ("0.17.0", NEWEST, 4)),
    ],
)
def test_which_release_a_text_states(text: str, path: str, expected: tuple[str, str, int] | None) -> None:
    file = source_file(text, path)
    readings = scan(file, shipped().images).launches
    found = find_release(readings[0], path, NearbyText(file))
    assert (found and (found.low, found.high, found.location.line)) == expected


def findings(text: str, path: str = "run.sh") -> dict[tuple[str, str], Finding]:
    found = lint(text, path, LintOptions(shipped().images)).findings
    return {(finding.rule, finding.key): finding for finding in found if finding.level != "note"}


def test_both_ends_of_a_range() -> None:
    flags = "--linear-backend marlin --calculate-kv-scales"
    found = findings(f"# needs vLLM >= 0.20\n{SERVE_70_PERCENT} {flags}\n")
    assert {key: finding.level for key, finding in found.items()} == {
        ("flag-unknown", "flag:linear-backend"): "stop",
        ("vllm-flags-gone-0.28", "flag:calculate-kv-scales"): "stop",
    }
    low, high = found.values()
    assert low.says.startswith("with vLLM 0.20.0, which line 1 allows: ") and "first in 0.22.0" in low.says
    assert high.says.startswith(f"with vLLM {NEWEST}, which line 1 allows: ")
    assert findings(f"# needs vLLM >= 0.22\n{SERVE_70_PERCENT} --linear-backend marlin\n") == {}


def test_a_recipe_is_held_against_its_minimum_in_every_section() -> None:
    found = findings(RECIPE_WITH_MINIMUM, "m.yaml")
    assert {
        key: (finding.level, finding.location and finding.location.line) for key, finding in found.items()
    } == {
        ("flag-unknown", "flag:linear-backend"): ("stop", 14),
        ("variable-unread", "env:VLLM_ENABLE_STARTUP_PLAN"): ("warn", 15),
    }


def test_a_variant_may_have_a_minimum_of_its_own() -> None:
    section = "    vram_minimum_gb: 60\n"
    assert (
        findings(RECIPE_WITH_MINIMUM.replace(section, f'{section}    min_vllm_version: "0.26.0"\n'), "m.yaml")
        == {}
    )
    assert findings(RECIPE_WITH_MINIMUM.replace('"0.17.0"', '"nightly"'), "m.yaml") == {}


def test_a_guide_in_a_recipe_installs_what_its_section_says() -> None:
    guide = "guide: |\n  ## Start\n  {}\n  ```bash\n  vllm serve a/b --linear-backend marlin\n  ```\n"
    text = RECIPE_WITH_MINIMUM.replace("--linear-backend", "--max-model-len").replace("marlin", "4096")
    text = text.replace('        extra_env: {VLLM_ENABLE_STARTUP_PLAN: "1"}\n', "")
    assert findings(text + guide.format("`pip install vllm`"), "m.yaml") == {}
    told = findings(text + guide.format("Use `vllm/vllm-openai:v0.20.0`."), "m.yaml")
    assert [rule for rule, _ in told] == ["flag-unknown"]


def test_an_image_decides_its_own_release() -> None:
    run = "docker run --gpus all --ipc host {} org/m --gpu-memory-utilization 0.7 --linear-backend marlin"
    text = f"# needs vLLM >= 0.20\n{run.format('vllm/vllm-openai:v0.26.0')}\n"
    assert findings(text) == {}
    assert findings(text.replace("vllm/vllm-openai:v0.26.0", "example.org/vllm-fork:1")) == {}


def test_a_rule_about_a_spark_does_not_stop_for_one_end() -> None:
    served = SERVE_70_PERCENT.replace("org/m", "openai/gpt-oss-20b")
    text = f"# needs vLLM >= 0.20\n{served} --attention-backend FLASHINFER"
    found = findings(text)
    assert found["gpt-oss-flashinfer-attention", "flag:attention-backend"].level == "warn"
