"""The simulated Spark: its memory, its docker and nvidia-smi, its engines and their faults."""

from __future__ import annotations

import dataclasses
import http.client
import json
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import firesteel
from firesteel.edge.host import process
from firesteel.edge.sim import boot, docker, engine_config, nvidia_smi
from firesteel.edge.sim.containers import ContainerRecord, DockerError, file_path, write
from firesteel.edge.sim.setup import Scenario, enter, scenario, scenarios
from firesteel.edge.sim.spark import SimFault, SimGpuProcess, SimSpark, held_bytes, log_kernel_message
from firesteel.engines.diagnosis import diagnose
from firesteel.engines.logs import reported_memory, start_progress
from firesteel.errors import InvalidFile, UsageError
from firesteel.facts.host.hardware import Gpu
from firesteel.facts.host.memory import (
    parse_buddyinfo,
    parse_gpu_processes,
    parse_kernel_log,
    parse_oom_kills,
    parse_pressure,
)
from firesteel.launch import Ask, EngineName
from firesteel.units import GIB
from firesteel.values import load, replace
from tests.edge.sim.spark import LLAMACPP, VLLM, Engine, Spark, spark, until

QUICK = SimSpark(faster=200, images=("*",), pull_s=0.0)
BRIEF: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
Sparks = Callable[[SimSpark], Spark]


@pytest.fixture
def sparks(tmp_path: Path) -> Iterator[Sparks]:
    created: list[Spark] = []

    def create(description: SimSpark) -> Spark:
        created.append(spark(tmp_path / f"spark{len(created)}", description))
        return created[-1]

    yield create
    for host in created:
        host.end()


def with_fault(**fault: Any) -> SimSpark:
    return replace(QUICK, faults=(SimFault(**fault),))


# --- memory ---


def test_memory_falls_by_the_plan_and_comes_back_after_kill_9(sparks: Sparks) -> None:
    host = sparks(QUICK)
    before = host.memory.available_bytes
    first, second = host.start(*LLAMACPP), host.start(*VLLM, name="two")
    first.until_ready(), second.until_ready()
    parts = firesteel.plan("gpt-oss-120b-llamacpp", host_name="gb10", context=8192, users=2)[0].plan.memory
    both_bytes = before - host.memory.available_bytes
    process.send(first.pid, signal.SIGKILL)
    until(lambda: before - host.memory.available_bytes < both_bytes)
    freed = both_bytes - (before - host.memory.available_bytes)
    assert freed == pytest.approx(parts.needed.expected, rel=0.02)
    assert first.client.wait(timeout=120) == 137
    assert host.docker("stop", "two").stdout == "two\n"
    assert host.memory.available_bytes == before
    assert second.client.wait(timeout=120) == 0
    assert host.docker("ps", "--all", "--quiet").stdout == ""


def test_proc_files_have_the_format_of_the_kernel(sparks: Sparks) -> None:
    host = sparks(QUICK)
    proc = host.folder / "proc"
    assert host.memory.total_bytes == pytest.approx(121.69 * GIB, abs=1024)
    pressure = parse_pressure((proc / "pressure/memory").read_text())
    assert pressure is not None and pressure.full_avg10 == 0
    assert parse_oom_kills((proc / "vmstat").read_text()) is not None
    large = parse_buddyinfo((proc / "buddyinfo").read_text())
    assert large is not None and large > 100 * GIB
    fragmented = sparks(with_fault(kind="fragmentation"))
    assert parse_buddyinfo((fragmented.folder / "proc/buddyinfo").read_text()) == 0


# --- docker and nvidia-smi ---


def test_a_container_keeps_running_without_its_client(plain: Plain) -> None:
    host, engine = plain.host, plain.vllm
    engine.client.kill()
    engine.client.wait()
    assert engine.get("/health") == 200
    listed = host.docker("ps", "--filter", "label=firesteel=two", "--format", "{{.Names}} {{.Labels}}")
    assert listed.stdout == "two firesteel=two\n"
    assert host.docker("ps", "--quiet", "--filter", "label=firesteel=three").stdout == ""
    assert host.docker("logs", "--since", "99999999999", "two").stdout == ""
    state = host.docker("inspect", "--format", "{{.State.Running}} {{json .Config.Labels}}", "two").stdout
    assert state == 'true {"firesteel": "two"}\n'
    argv = [str(host.folder / "bin/docker"), "attach", "--no-stdin", "--sig-proxy=false", "two"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as watcher:
        watcher.send_signal(signal.SIGTERM)
    assert engine.get("/health") == 200


def test_logs_follow_to_the_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an engine that ends right after it, between two looks."""
    (tmp_path / "containers").mkdir()
    log = file_path(tmp_path, "one", "log")
    log.write_text("loading\n")
    argv = ["sh", "-c", 'sleep 0.2; echo "CUDA error: out of memory" >> "$0"', str(log)]
    with subprocess.Popen(argv) as engine:
        write(tmp_path, ContainerRecord("one", "one", "image", (), 0.0, pid=process.find(engine.pid)))
        assert docker.logs(["--follow", "one"], tmp_path, QUICK) == 0
    assert capsys.readouterr().out == "loading\nCUDA error: out of memory\n"


def test_a_signal_to_the_client_reaches_the_engine(sparks: Sparks) -> None:
    engine = sparks(QUICK).start(*LLAMACPP).until_ready()
    engine.client.send_signal(signal.SIGTERM)
    assert engine.client.wait(timeout=120) == 0


def test_an_engine_ends_when_its_spark_is_deleted(sparks: Sparks) -> None:
    """As when somebody deletes FIRESTEEL_HOME: no command would find it any more."""
    host = sparks(QUICK)
    engine = host.start(*LLAMACPP).until_ready()
    pid = engine.pid
    engine.client.kill()
    shutil.rmtree(host.folder)
    until(lambda: not process.is_alive(pid))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["swarm", "init"], 1, "'swarm' is not a command that the simulated docker knows"),
        (["ps", "--last", "3"], 125, "unknown flag: --last"),
        (["stop", "nothing"], 1, "No such container: nothing"),
        (["version", "--format", "{{.Server.Nothing}}"], 64, "does not know `.Server.Nothing`"),
    ],
)
def test_docker_refuses_by_name(
    plain: Plain, capfd: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert docker.main(arguments, plain.host.folder) == code
    assert message in capfd.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--userns", "host", *LLAMACPP], 125, "unknown flag: --userns"),
        (["--gpus", "all"], 125, "requires at least 1 argument"),
        (["-p", "web:80", *LLAMACPP], 125, 'invalid publish opts format "web:80"'),
        (["debian:12", "ls"], 127, "runs an engine, and this starts none"),
        (["vllm/vllm-openai:v0.28.0", "nobody/knows-this"], 1, "knows no model `nobody/knows-this`"),
    ],
)
def test_invalid_runs(plain: Plain, arguments: list[str], code: int, message: str) -> None:
    with pytest.raises(DockerError, match=re.escape(message)) as refused:
        engine_config.engine_config(arguments, plain.host.folder, "id", {})
    assert refused.value.code == code


def test_a_name_in_use(plain: Plain) -> None:
    second = plain.host.start(*VLLM, name="one")
    assert "is already in use by container" in second.log()
    assert second.client.returncode == 125


def test_nvidia_smi(sparks: Sparks) -> None:
    host = sparks(replace(QUICK, gpu_users=(SimGpuProcess(77, "/usr/bin/python3", 60 * GIB),)))

    def query(columns: str) -> str:
        code, output = nvidia_smi.run([columns, "--format=csv,noheader"], host.folder)
        assert code == 0
        return output

    (gpu,) = Gpu.parse(query("--query-gpu=name,driver_version,compute_cap,memory.total"))
    assert gpu.is_gb10 and gpu.memory_bytes is None
    (user,) = parse_gpu_processes(query("--query-compute-apps=pid,process_name,used_memory"))
    assert (user.pid, user.used_bytes) == (77, 60 * GIB)
    assert nvidia_smi.run(["--query-gpu=nonsense"], host.folder)[0] == 2
    inside = host.docker("run", "--rm", "--gpus", "all", "--entrypoint", "nvidia-smi", "any:1", "-L")
    assert inside.stdout.startswith("GPU 0: NVIDIA GB10")


# --- serving ---


@dataclass(frozen=True)
class Plain:
    """Two engines without faults; the second needs a key."""

    host: Spark
    llamacpp: Engine
    vllm: Engine


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plain]:
    host = spark(tmp_path_factory.mktemp("plain"), QUICK)
    flags = ("--tool-call-parser", "openai", "--enable-auto-tool-choice", "--max-num-seqs", "4")
    key = {"VLLM_API_KEY": "fs-secret"}
    vllm = host.start("-e", "VLLM_API_KEY", *VLLM, *flags, name="two", env=key, key="fs-secret")
    llamacpp = host.start(*LLAMACPP)
    try:
        yield Plain(host, llamacpp.until_ready(), vllm.until_ready())
    finally:
        host.end()


def test_vllm_answers(plain: Plain) -> None:
    engine = plain.vllm
    answer = engine.ask("What is 12*17?")
    message = answer["choices"][0]["message"]
    assert message["content"] == "12*17 = 204." and message["reasoning"]
    assert answer["usage"]["completion_tokens"] > 5
    assert engine.answer("What is the capital of France?") == "The capital of France is Paris."
    assert "reasoning" not in engine.ask("Say hello", **BRIEF)["choices"][0]["message"]
    weather = {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }
    called = engine.ask("What is the weather in Oslo?", tools=[{"type": "function", "function": weather}])
    function = called["choices"][0]["message"]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"city": "Oslo"}
    assert called["choices"][0]["finish_reason"] == "tool_calls"
    filler = "The garden was quiet and nobody came by. " * 100
    hidden = f"{filler}The password of the mill is kestrel-9. {filler}What is the password of the mill?"
    assert "kestrel-9" in engine.answer(hidden, **BRIEF)
    metrics = engine.text("/metrics")
    assert 'kv_cache_size_tokens="' in metrics and "vllm:generation_tokens_total" in metrics
    listed = json.loads(engine.text("/v1/models"))["data"][0]
    assert listed["id"] == "oss" and listed["simulated"] is True


def test_limits_are_respected(plain: Plain) -> None:
    engine = plain.llamacpp
    whole = engine.ask("Explain what a computer is.", max_tokens=60, **BRIEF)
    cut = engine.ask("Explain what a computer is.", max_tokens=7, **BRIEF)
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 7)
    assert whole["choices"][0]["message"]["content"].startswith(cut["choices"][0]["message"]["content"])
    stopped = engine.answer("Explain what a computer is.", stop=["instructions"], **BRIEF)
    assert "instructions" not in stopped and "A computer is a machine" in stopped
    counted = engine.post("/tokenize", {"content": "one two three"})["tokens"]
    assert engine.post("/detokenize", {"tokens": counted})["content"] == "one two three"
    assert len(counted) == 3
    assert engine.refusal("word " * 20000) == 400


def test_a_prompt_that_was_read_is_cached(plain: Plain) -> None:
    question = "Explain what a machine is, and more of the same kind, in your own words."
    seen = [
        plain.llamacpp.ask(question, max_tokens=2)["usage"]["prompt_tokens_details"]["cached_tokens"]
        for _ in range(2)
    ]
    assert seen == [0, 32]


def test_a_key_is_required_and_in_no_file(plain: Plain) -> None:
    engine = plain.vllm
    without_key = dataclasses.replace(engine, key=None)
    assert without_key.get("/v1/models") == 401 and without_key.get("/health") == 200
    assert without_key.refusal("Say hello") == 401
    assert engine.answer("Say hello", **BRIEF) == "hello"
    for path in (plain.host.folder / "containers").iterdir():
        assert "fs-secret" not in path.read_text()
    assert "fs-secret" not in Path(f"/proc/{engine.pid.number}/cmdline").read_text()


# --- boot logs ---


def test_boot_logs_read_like_real_ones(plain: Plain) -> None:
    llamacpp, vllm = (plain.host.docker("logs", name).stdout for name in ("one", "two"))
    plan = firesteel.plan("gpt-oss-120b-llamacpp", host_name="gb10", context=8192, users=2)[0].plan
    planned = {part.name: part.bytes.expected for part in plan.memory.parts}
    reported = reported_memory("llamacpp", llamacpp)
    assert reported.weights_bytes == pytest.approx(planned["weights"], rel=1e-3)
    assert reported.kv_bytes == pytest.approx(planned["KV cache"], rel=1e-3)
    tokens = plain.vllm.text("/metrics").partition('kv_cache_size_tokens="')[2].partition('"')[0]
    assert reported_memory("vllm", vllm).kv_tokens == int(tokens)
    logs: dict[EngineName, str] = {"llamacpp": llamacpp, "vllm": vllm}
    for engine, text in logs.items():
        assert "simulated" in text.splitlines()[0]
        assert any(start_progress(engine, line) for line in text.splitlines())


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.26.0", "GPU KV cache size: {tokens} tokens"),
        (
            "0.28.0",
            "GPU KV cache size: {tokens} tokens, Maximum concurrency for 131,072 tokens per request: {x}x",
        ),
        (
            "0.31.0",
            "CUDA KV cache size: {tokens} tokens, Maximum concurrency for 131,072 tokens per request: {x}x",
        ),
    ],
)
def test_lines_of_each_release(version: str, expected: str) -> None:
    plan = firesteel.propose(Ask("gpt-oss-20b", version=version), firesteel.host("gb10"))[0].plan
    lines = [line for stage in boot.stages(plan, SimSpark()) for line in (*stage["lines"], *stage["end"])]
    printed = plan.printed[0]
    (line,) = [line.partition("] ")[2] for line in lines if "KV cache size" in line]
    assert line == expected.format(tokens=f"{printed.tokens:,}", x=printed.concurrency_text)
    unfilled = {name for line in lines for name in re.findall(r"\{\w+\}", line)}
    assert unfilled <= {"{clock}", "{pid}"}


# --- faults ---


def test_a_crash_prints_its_lines_and_exits_with_its_code(sparks: Sparks) -> None:
    lines = ("torch.OutOfMemoryError: CUDA out of memory.",)
    engine = sparks(with_fault(kind="crash", at="load", code=3, lines=lines)).start(*VLLM)
    log = engine.log()
    assert lines[0] in log and "Available KV cache memory" not in log
    assert engine.client.returncode == 3
    assert diagnose(log).causes


def test_an_oom_kill_is_137_and_in_the_kernel_log(sparks: Sparks) -> None:
    host = sparks(with_fault(kind="oom-kill", at="load"))
    before = host.memory.available_bytes
    engine = host.start(*LLAMACPP)
    engine.log()
    assert engine.client.returncode == 137
    assert [event.kind for event in parse_kernel_log((host.folder / "dev/kmsg").read_text())] == ["oom"]
    assert host.memory.available_bytes == before


def test_faults_of_memory_and_of_answers(sparks: Sparks, plain: Plain) -> None:
    """A load that takes more than planned, a driver out of memory, a collapse, garbage, and HTTP 500."""
    faults = (
        SimFault("load-too-large", at="load", bytes=5 * GIB),
        SimFault("nv-no-memory", at="load"),
        SimFault("memory-collapse", after=1.0, seconds=1.0, bytes=round(2.5 * GIB)),
        SimFault("garbage", after=1),
        SimFault("http-500", after=2),
    )
    host = sparks(replace(QUICK, memory_available_bytes=98 * GIB, faults=faults))
    engine = host.start(*LLAMACPP).until_ready()
    samples = [host.memory.available_bytes]
    own = next(size for pid, size in held_bytes(plain.host.folder).items() if pid == plain.llamacpp.pid)
    assert 98 * GIB - samples[0] == pytest.approx(own + 5 * GIB, rel=1e-3)
    kinds = {event.kind for event in parse_kernel_log((host.folder / "dev/kmsg").read_text())}
    assert kinds == {"no-memory"}
    assert engine.answer("Say hello", **BRIEF) == "hello"
    assert "hello" not in engine.answer("Say hello", max_tokens=20, **BRIEF)
    assert engine.refusal("Say hello") == 500

    def has_collapsed() -> bool:
        samples.append(host.memory.available_bytes)
        return samples[-1] < 2.6 * GIB

    until(has_collapsed)
    assert sorted(samples, reverse=True) == samples and len(set(samples)) > 2, "it falls, it does not jump"

    def is_under_pressure() -> bool:  # the simulated Spark writes it after /proc/meminfo
        pressure = parse_pressure((host.folder / "proc/pressure/memory").read_text())
        return pressure is not None and pressure.full_avg10 > 20

    until(is_under_pressure)


def test_faults_of_the_engine(sparks: Sparks) -> None:
    """A wrong kernel in the log, a wrong `usage`, and a hang with /health at 200."""
    wrong = "Using 'TRITON' Mxfp4 MoE backend."
    faults = (
        SimFault("wrong-kernel", lines=(wrong,)),
        SimFault("bad-usage", times=2),
        SimFault("hang", after=1),
    )
    host = sparks(replace(QUICK, faults=faults))
    engine = host.start(*VLLM).until_ready()
    log = host.docker("logs", "one").stdout
    assert wrong in log and log.count("Mxfp4 MoE backend") == 1 and "attention backend" in log
    assert engine.ask("Say hello", **BRIEF)["usage"]["completion_tokens"] == 2
    with pytest.raises(TimeoutError):
        engine.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, timeout=0.5)
    assert engine.get("/health") == 200
    body = json.dumps({"messages": [{"role": "user", "content": "x"}]})
    link = http.client.HTTPConnection(engine.url.removeprefix("http://"))
    link.request("POST", "/v1/chat/completions", body)
    until(lambda: 'vllm:num_requests_running{engine="0",model_name="oss"} 1.0' in engine.text("/metrics"))
    assert "vllm:generation_tokens_total" in engine.text("/metrics")
    link.close()
    until(lambda: 'vllm:num_requests_running{engine="0",model_name="oss"} 0.0' in engine.text("/metrics"))


@pytest.mark.parametrize(
    ("fault", "arguments", "message"),
    [
        ("no-docker", ["version"], "Cannot connect to the Docker daemon"),
        ("pull-fails", ["pull", "a/b:1"], "Error response from daemon"),
        ("disk-full", ["pull", "a/b:1"], "no space left on device"),
        ("no-gpu-in-docker", ["run", "--gpus", "all", *LLAMACPP], "could not select device driver"),
    ],
)
def test_docker_fails(
    sparks: Sparks, capfd: pytest.CaptureFixture[str], fault: str, arguments: list[str], message: str
) -> None:
    assert docker.main(arguments, sparks(with_fault(kind=fault)).folder) != 0
    assert message in capfd.readouterr().err


def test_a_slow_start_is_slow() -> None:
    plan = firesteel.plan("gpt-oss-20b", host_name="gb10")[0].plan
    plain = {stage["name"]: stage["seconds"] for stage in boot.stages(plan, QUICK)}
    slow = {
        stage["name"]: stage["seconds"]
        for stage in boot.stages(plan, with_fault(kind="slow-start", at="load", times=20))
    }
    assert slow == {**plain, "load": pytest.approx(20 * plain["load"])}


# --- creating one ---


def test_scenarios() -> None:
    assert {"idle", "busy", "collapse", "no-memory", "hang", "crash", "garbage"} <= scenarios().keys()
    for name in scenarios():
        assert isinstance(scenario(name), SimSpark)
    with pytest.raises(UsageError, match="there is no scenario `nope`; there are"):
        scenario("nope")


def test_a_mistake_in_a_scenario_is_named_with_its_line() -> None:
    text = "about: x\nfaults:\n- kind: crash\n  bytes: 5GiB\n  typo: 1\n"
    with pytest.raises(InvalidFile, match=r"mine\.yaml:5: .*typo"):
        load("mine.yaml", text, Scenario)
    sound = load("mine.yaml", text.replace("  typo: 1\n", ""), Scenario)
    assert sound.faults == (SimFault("crash", bytes=5 * GIB),)


def test_enter_keeps_the_spark_unless_a_scenario_is_named(tmp_path: Path) -> None:
    environ = {"FIRESTEEL_HOME": str(tmp_path), "PATH": "/bin", "FIRESTEEL_SIM_SPEED": "50"}
    folder = enter("busy", environ)
    assert environ["FIRESTEEL_HOME"] == str(folder / "home")
    assert environ["PATH"].startswith(f"{folder}/bin:") and environ["FIRESTEEL_SIM"] == str(folder)
    description = json.loads((folder / "spark.json").read_text())
    assert description["gpu_users"] and description["faster"] == 50
    enter(None, {"FIRESTEEL_HOME": str(tmp_path), "PATH": "/bin"})
    assert json.loads((folder / "spark.json").read_text()) == description
    assert enter(None, environ) == folder and environ["PATH"] == f"{folder}/bin:/bin"
    enter("idle", {"FIRESTEEL_HOME": str(tmp_path), "PATH": "/bin"})
    assert not json.loads((folder / "spark.json").read_text())["gpu_users"]
    with pytest.raises(UsageError, match="must be between"):
        enter("idle", {"FIRESTEEL_HOME": str(tmp_path), "FIRESTEEL_SIM_SPEED": "warp"})


def test_a_named_scenario_starts_without_state(tmp_path: Path) -> None:
    environ = {"FIRESTEEL_HOME": str(tmp_path), "PATH": "/bin"}
    folder = enter("idle", dict(environ))
    state = [folder / "images.json", folder / "home" / "gpu_in_container.json"]
    for path in state:
        path.write_text("[]")
    log_kernel_message(folder, "NVRM: NV_ERR_NO_MEMORY")
    enter(None, dict(environ))
    assert all(path.exists() for path in state)
    enter("idle", dict(environ))
    assert not any(path.exists() for path in state) and (folder / "dev/kmsg").read_text() == ""
    assert json.loads((folder / "spark.json").read_text())["name"] == "idle"


def test_a_scenario_does_not_change_while_an_engine_runs(sparks: Sparks, tmp_path: Path) -> None:
    host = sparks(replace(QUICK, name="idle"))
    engine = host.start(*LLAMACPP).until_ready()
    environ = {"FIRESTEEL_SIM": str(host.folder), "PATH": "/bin"}
    with pytest.raises(UsageError, match="one runs on this simulated Spark") as refused:
        enter("crash", dict(environ))
    assert refused.value.next == "firesteel --sim ps, and firesteel --sim down --all"
    images = host.folder / "images.json"
    images.write_text("[]")
    enter("idle", dict(environ))
    assert images.exists() and engine.get("/health") == 200
    host.docker("stop", "one")
    enter("crash", dict(environ))
    assert not images.exists()
