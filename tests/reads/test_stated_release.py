"""Which release a text speaks of, where the command does not say."""

import pytest

from firesteel.catalog.catalog import shipped
from firesteel.engines.schema.releases import known_versions
from firesteel.reads.launches import scan
from firesteel.reads.source_text import source_file
from firesteel.reads.stated_release import find_release
from firesteel.reads.surroundings import Surroundings
from firesteel.rules.checker import Finding
from firesteel.rules.linter import LintOptions, lint

NEWEST = known_versions("vllm")[-1]
SERVE = "vllm serve org/m --gpu-memory-utilization 0.7"
RECIPE = """meta: {title: x, hardware: {h200: verified}}
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
        (SERVE, "line", None),
        (f"# needs vLLM >= 0.20\n{SERVE}", "run.sh", ("0.20.0", NEWEST, 1)),
        (f"# vLLM 0.24+ only\n{SERVE}", "run.sh", ("0.24.0", NEWEST, 1)),
        (f"# vLLM 0.24 is what I had\n{SERVE}", "run.sh", None),
        (f"pip install 'vllm>=0.12.0'\n{SERVE}", "run.sh", ("0.12.0", NEWEST, 1)),
        (f"IMAGE=vllm/vllm-openai:v0.26.0\n{SERVE}", "run.sh", ("0.26.0", "0.26.0", 1)),
        (f"docker pull vllm/vllm-openai:v0.26.0-aarch64\n{SERVE}", "run.sh", ("0.26.0", "0.26.0", 1)),
        (f"docker pull vllm/vllm-openai:nightly\n{SERVE}", "run.sh", None),
        (f"# requires vLLM 0.7.3\n{SERVE}", "run.sh", (known_versions("vllm")[0], NEWEST, 1)),
        (f"# requires vLLM 9.0\n{SERVE}", "run.sh", None),
        (f"# requires SGLang 0.5.9\n{SERVE}", "run.sh", None),
        (f"# x\nRequires vLLM 0.19 or newer.\n```bash\n{SERVE}\n```\n", "g.md", ("0.19.0", NEWEST, 2)),
        (f"# x\n## A\nThis needs vLLM >= 0.19.\n## B\n```bash\n{SERVE}\n```\n", "g.md", None),
        (f"```\npip install 'vllm>=0.12'\n```\n## B\n```bash\n{SERVE}\n```\n", "g.md", ("0.12.0", NEWEST, 2)),
        (RECIPE, "m.yaml", ("0.17.0", NEWEST, 4)),
    ],
)
def test_what_a_text_states(text: str, path: str, expected: tuple[str, str, int] | None) -> None:
    file = source_file(text, path)
    readings = scan(file, shipped().images).launches
    found = find_release(readings[0], path, Surroundings(file))
    assert (found and (found.low, found.high, found.spot.line)) == expected


def findings(text: str, path: str = "run.sh") -> dict[tuple[str, str], Finding]:
    found = lint(text, path, LintOptions(shipped().images)).findings
    return {(finding.rule, finding.key): finding for finding in found if finding.level != "note"}


def test_both_ends_of_a_range() -> None:
    flags = "--linear-backend marlin --calculate-kv-scales"
    found = findings(f"# needs vLLM >= 0.20\n{SERVE} {flags}\n")
    assert {key: finding.level for key, finding in found.items()} == {
        ("flag-unknown", "flag:linear-backend"): "stop",
        ("vllm-flags-gone-0.28", "flag:calculate-kv-scales"): "stop",
    }
    low, high = found.values()
    assert low.says.startswith("with vLLM 0.20.0, which line 1 allows: ") and "first in 0.22.0" in low.says
    assert high.says.startswith(f"with vLLM {NEWEST}, which line 1 allows: ")
    assert findings(f"# needs vLLM >= 0.22\n{SERVE} --linear-backend marlin\n") == {}


def test_a_recipe_is_held_against_its_minimum_in_every_section() -> None:
    found = findings(RECIPE, "m.yaml")
    assert {key: (finding.level, finding.spot and finding.spot.line) for key, finding in found.items()} == {
        ("flag-unknown", "flag:linear-backend"): ("stop", 14),
        ("variable-unread", "env:VLLM_ENABLE_STARTUP_PLAN"): ("warn", 15),
    }


def test_a_variant_may_have_a_minimum_of_its_own() -> None:
    section = "    vram_minimum_gb: 60\n"
    assert findings(RECIPE.replace(section, f'{section}    min_vllm_version: "0.26.0"\n'), "m.yaml") == {}
    assert findings(RECIPE.replace('"0.17.0"', '"nightly"'), "m.yaml") == {}


def test_a_guide_in_a_recipe_installs_what_its_section_says() -> None:
    guide = "guide: |\n  ## Start\n  {}\n  ```bash\n  vllm serve a/b --linear-backend marlin\n  ```\n"
    text = RECIPE.replace("--linear-backend", "--max-model-len").replace("marlin", "4096")
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
    text = (
        f"# needs vLLM >= 0.20\n{SERVE.replace('org/m', 'openai/gpt-oss-20b')} --attention-backend FLASHINFER"
    )
    found = findings(text)
    assert found["gpt-oss-flashinfer-attention", "flag:attention-backend"].level == "warn"
