"""`firesteel render`: every format, to the terminal and to a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from firesteel.catalog.catalog import shipped
from firesteel.edge.home import Home
from firesteel.facts.host.hardware import hardware, idle_host
from firesteel.launch import COMPILE_CACHE_ENV, COMPILED_INSIDE, Ask
from firesteel.planner.propose import propose
from firesteel.planner.rendered import launch_facts
from firesteel.reads.launches import read
from firesteel.run.spec import staged_launch
from tests.cli.inside import inside
from tests.conftest import Firesteel, run_firesteel
from tests.made_adapters import write_peft

MODEL = "qwen3.6-35b-a3b-nvfp4"


@pytest.fixture
def firesteel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Firesteel:
    return inside(tmp_path / "home", monkeypatch, capsys)


@pytest.mark.parametrize("form", ["docker", "compose", "kubernetes", "systemd", "quadlet", "sparkrun"])
def test_every_form_passes_our_own_check(firesteel: Firesteel, form: str, tmp_path: Path) -> None:
    suffix = {"docker": "sh", "systemd": "service", "quadlet": "container"}.get(form, "yaml")
    file = tmp_path / f"made.{suffix}"
    ran = firesteel("render", MODEL, "--as", form, "--context", "65536", "-o", str(file))
    assert ran.code == 0 and ran.out == ""
    assert firesteel("check", str(file)).code == 0
    (reading,) = read(file.read_text(), str(file), shipped().images)
    assert reading.launch.flags["max-model-len"] == "65536"
    assert "kv-cache-memory-bytes" in reading.launch.flags, "the plan's own figures are in it"
    assert "halves the KV cache" in file.read_text(), "and the recipe's reasons"


def test_as_json(firesteel: Firesteel) -> None:
    facts = firesteel("render", MODEL, "gpt-oss-120b-llamacpp", "--as", "kubernetes", "--json").json
    assert facts["names"] == [MODEL, "gpt-oss-120b-llamacpp"] and facts["format"] == "kubernetes"
    assert len(list(yaml.safe_load_all(facts["text"]))) == 5


def test_beyond_loopback_only_with_a_key(firesteel: Firesteel) -> None:
    text = firesteel("render", MODEL, "--as", "compose", "--listen", "0.0.0.0").out
    service = yaml.safe_load(text)["services"][MODEL]
    assert service["ports"] == ["0.0.0.0:8000:8000"]
    assert service["environment"]["VLLM_API_KEY"] == "${VLLM_API_KEY:?}", "compose starts nothing without it"
    text = firesteel("render", MODEL, "--listen", "0.0.0.0").out
    assert ': "${VLLM_API_KEY:?export it first}" && \\\nmkdir -p ' in text
    embedded = firesteel("render", "smollm2", "--listen", "0.0.0.0").out
    assert "-p 0.0.0.0:8000:8000" in embedded and "-e LLAMA_API_KEY" in embedded


@pytest.mark.parametrize(
    ("env", "mount"),
    [
        ({"HF_HOME": "/data/hf"}, "-v /data/hf:/hub \\"),
        ({"HF_HUB_CACHE": "/data/cache", "HF_HOME": "/data/hf"}, "-v /data/cache:/hub/hub \\"),
        ({"HF_HOME": "/home/me/mine", "HOME": "/home/me"}, "-v ~/mine:/hub \\"),
        ({}, "-v {home}/huggingface:/hub \\"),
        ({"FIRESTEEL_HOME": "", "HOME": "{home}"}, "-v ~/.cache/huggingface:/hub \\"),
    ],
)
def test_the_hubs_cache_is_where_pull_puts_it(
    tmp_path: Path, env: dict[str, str], mount: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    env = {name: value.replace("{home}", str(tmp_path)) for name, value in env.items()}
    for model in (MODEL, "smollm2"):
        text = run_firesteel(tmp_path, "render", model, env=env).out
        assert mount.replace("{home}", str(tmp_path)) in text


@pytest.mark.parametrize("form", ["docker", "compose", "systemd", "quadlet", "kubernetes"])
def test_compiled_kernels_are_kept_as_up_keeps_them(firesteel: Firesteel, form: str) -> None:
    proposal = propose(shipped(), idle_host(hardware("gb10")), Ask(MODEL))[0]
    launch = staged_launch(proposal, Home(Path("/home")), "/hub")
    assert launch.container is not None
    folder = next(mount.source for mount in launch.container.mounts if mount.target == COMPILED_INSIDE)
    text = firesteel("render", MODEL, "--as", form).out
    suffix = {"docker": "sh", "systemd": "service", "quadlet": "container"}.get(form, "yaml")
    (reading,) = read(text, f"x.{suffix}", shipped().images)
    assert COMPILE_CACHE_ENV["vllm"].items() <= reading.launch.env.items()
    if form == "kubernetes":
        assert f"mountPath: {COMPILED_INSIDE}\n              subPath: mount-2\n" in text  # in the claim
        return
    container = reading.launch.container
    assert container is not None
    (mount,) = [mount for mount in container.mounts if mount.target == COMPILED_INSIDE]
    assert mount.source.endswith(folder.removeprefix("/home"))


def test_from_a_service_file(firesteel: Firesteel, tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    coder = f"coder: {{recipe: {MODEL}, context: 32768, aliases: ['fast:30b']}}"
    far = "far: {recipe: gpt-oss-20b, node: spark2}"
    other = "  other: {url: http://127.0.0.1:9000}\n"
    hosts = "hosts: {spark2: 192.168.100.11}\n"
    file.write_text(f"{hosts}models:\n  {coder}\n  small: {{recipe: gpt-oss-20b}}\n  {far}\n{other}")
    kubernetes = ("render", "-f", str(file), "--as", "kubernetes", "--service", "spark")
    for active in ("coder", "small"):
        text = firesteel(*kubernetes, "--active", active).out
        deployments = [manifest for manifest in yaml.safe_load_all(text) if manifest["kind"] == "Deployment"]
        replicas = {manifest["metadata"]["name"]: manifest["spec"]["replicas"] for manifest in deployments}
        assert replicas == {"coder": int(active == "coder"), "small": int(active == "small")}
        (args,) = (each["args"] for each in deployments[0]["spec"]["template"]["spec"]["containers"])
        at = args.index("--served-model-name")
        assert args[at + 1 : at + 4] == ["coder", "spark", "fast:30b"]
    assert "# Not in this file: far, other (other hosts or programs serve them)" in text
    one = firesteel("render", "-f", str(file), "coder").out
    assert "--served-model-name coder" in one and "--max-model-len 32768" in one


@pytest.mark.parametrize("form", ["docker", "compose", "quadlet", "systemd", "kubernetes"])
def test_adapters_are_mounted_and_named(firesteel: Firesteel, tmp_path: Path, form: str) -> None:
    """As `up --adapter` starts them; one for another model is told, and left out."""
    folder = write_peft(tmp_path / "sql", ("q_proj",), {"q_proj": (8192, 8192)}, layers=1)
    model = ("render", "llama-3.3-70b-nvfp4", "--as", form)
    text = firesteel(*model, "--adapter", f"sql={folder}").out
    assert "--enable-lora" in text and "sql=/adapters/sql" in text and str(folder) in text
    other = write_peft(tmp_path / "other", ("q_proj",), {"q_proj": (576, 576)}, layers=1)
    refused = firesteel(*model, "--adapter", f"other={other}")
    assert refused.code == 3 and "adapter-base" in refused.err and "--enable-lora" not in refused.out


def test_a_model_that_does_not_fit_is_reported(firesteel: Firesteel) -> None:
    ran = firesteel("render", "llama-3.1-405b", "--as", "compose")
    assert ran.code == 4 and "does not fit" in ran.err and "services:" in ran.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which MODEL"),
        ((MODEL, "smollm2", "--as", "compose"), "takes one MODEL"),
        ((MODEL, "--service", "x"), "are for Kubernetes"),
        ((MODEL, "--as", "kubernetes", "--listen", "0.0.0.0"), "the Service decides"),
        ((MODEL, "--as", "kubernetes-swap"), "only one model to swap"),
        ((MODEL, "--as", "kubernetes", "--service", "A b"), "not a valid name of a Service"),
        ((MODEL, "--listen", "nowhere"), "is not an address to listen on"),
        ((MODEL, "--nodes", "3"), "split over 3 Sparks"),
        (("-f", "s.yaml", "--adapter", "a=/a"), "adapters in the service file"),
        ((MODEL, "--nodes", "2", "--as", "kubernetes-swap"), "runs on 2 Sparks"),
        ((MODEL, "--as", "helm"), "'helm' is not one of"),
        ((MODEL, "-o", "/nonexistent/x"), "cannot be written"),
        (("no-such-model-at-all",), "nothing called"),
    ],
)
def test_refused(firesteel: Firesteel, arguments: tuple[str, ...], message: str) -> None:
    ran = firesteel("render", *arguments)
    assert ran.code in (1, 2) and message in ran.err and ran.out == ""


def test_the_facts_come_from_plan_recipe_and_catalog() -> None:
    proposal = propose(shipped(), idle_host(hardware("gb10")), Ask("gemma-4-31b-nvfp4"))[0]
    facts = launch_facts(proposal, shipped().images)
    assert facts.is_gated and facts.needed_bytes == round(proposal.plan.memory.needed.high)
    assert proposal.plan.speed is not None and proposal.plan.speed.start_up is not None
    assert facts.start_up_s == proposal.plan.speed.start_up.seconds.high
    assert "max-model-len" in facts.flag_reasons and "kv-cache-memory-bytes" in facts.flag_reasons


def test_a_plan_for_two_sparks_says_how_to_start_it(firesteel: Firesteel) -> None:
    ran = firesteel("plan", "qwen3-235b-gptq-int4-two-sparks", "--host", "gb10")
    assert "firesteel up qwen3-235b-gptq-int4-two-sparks --cluster" in " ".join(ran.out.split())
