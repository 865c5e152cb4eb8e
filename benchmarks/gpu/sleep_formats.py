"""Does a model come back right from vLLM's sleep level 2? One case for each kind of model and format, on a
real GPU.

    python benchmarks/gpu/sleep_formats.py CHECKPOINTS OUT [--only PATTERN ...] [--jobs 12] [--seconds 560]

CHECKPOINTS is what `make_sleepers.py` wrote. vLLM is imported once and every case is a fork with the engine
inside it, so that its worker can be asked. Each case, with four prompts of 40 to 1,500 tokens and 32 greedy
tokens each:

1. noise: the same prompts five times with the prefix cache emptied and five times with it full;
2. `plain`: five times sleep level 2, wake the weights, `reload_weights`, wake the KV cache, and ask;
3. `reset`: the same five times with `reset_prefix_cache` after the wake;
4. `dirty`: the same three times, and while it sleeps all the GPU memory that it can get up to 6 GiB is
filled with ones (0xFF: NaN as a float, -1 as an integer) and given back, as another model would leave it;
5. `no-reload`: wakes without `reload_weights`; the answers should be wrong. Then it sleeps and reloads
again;
6. `damaged`: one tensor of the files is set to zeros before the reload: the answers must differ; then the
file is as before, and so must be the answers;
7. `kv-first`: three times with the KV cache awake before the reload; and at the end what may repair a
failure: `recapture` captures the CUDA graphs again after the reload, `drafter-too` loads the drafter's
weights and buffers.

A case survives when each answer of 2 to 4 and of `kv-first` is as before the sleep: to the bit where the
repeats of 1 are, else with no more tokens that differ and log probabilities at most 1.5 times as far apart
as between repeats, in the same and in other batches; with a drafter, as many accepted tokens. OUT gets
`sleep.jsonl`, a line a case, and a log each; `--compact` turns such files into `sleep_formats.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, where its worker can be asked
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
LIMIT_S = 280
WAKES = ("plain", "reset", "dirty", "kv-first")
OTHERS = ("adapter-again", "no-reload", "after-no-reload", "damaged", "mended", "drafter-too", "recapture")
DIRTY_BYTES = 6 * 2**30
LENGTHS = (40, 100, 700, 1500)
ANSWER = 32
MTP: dict[str, Any] = {"speculative_config": {"method": "mtp", "num_speculative_tokens": 2}}
TEXT_ONLY: dict[str, Any] = {"limit_mm_per_prompt": {"image": 0, "video": 0}}
DELTA: dict[str, Any] = {"gdn_prefill_backend": "triton"}
KV_BF16: dict[str, Any] = {"kv_cache_dtype": "bfloat16"}
QWEN35 = TEXT_ONLY | DELTA
MATRIX = r"layers\.2\..*(down_proj|out_proj|w2|proj)\.?(weight|weight_packed|_blocks|down_proj)?$"


@dataclass(frozen=True)
class Case:
    checkpoint: str
    name: str = ""
    """What it is beside the checkpoint's name."""
    arguments: dict[str, Any] = field(default_factory=dict)
    eager: bool = False
    image: bool = False
    lora: bool = False
    damage: str = MATRIX
    env: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        words = (self.checkpoint, self.name, "eager" if self.eager else "")
        return "+".join(filter(None, words))


def cases() -> list[Case]:
    draft = {
        "speculative_config": {"method": "draft_model", "model": "draft-bf16", "num_speculative_tokens": 2}
    }
    lora = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1}
    vision = DELTA | {"limit_mm_per_prompt": {"image": 1, "video": 0}, "skip_tokenizer_init": False}
    found = []
    for eager in (False, True):
        found += [
            Case("qwen3_5_moe-bf16", "mtp", QWEN35 | MTP, eager, damage=r"^mtp\.fc\.weight$"),
            Case("qwen3-bf16", "draft", draft, eager, damage=r"embed_tokens\.weight$"),
            Case("deepseek_v3-bf16", "mtp", MTP, eager, damage=r"eh_proj\.weight$"),
            Case("qwen3-modelopt", eager=eager),
            Case("qwen3_moe-modelopt", eager=eager),
            Case("qwen3_5_moe-mixed", "", QWEN35, eager),
            Case("qwen3_5_moe-fp8-block", "", QWEN35, eager),
            Case("qwen3_5_moe-nvfp4", "", QWEN35, eager),
            Case("deepseek_v3-bf16", eager=eager),
            Case("deepseek_v3-fp8-block", eager=eager),
            Case("nemotron_h-bf16", eager=eager),
            Case(
                "qwen3_5_moe-bf16",
                "image",
                vision,
                eager,
                image=True,
                damage=r"visual\.blocks\.1\.attn\.qkv\.",
            ),
            Case("qwen3-bf16", "lora", lora, eager, lora=True),
            Case("gpt_oss-mxfp4", eager=eager),
        ]
    for checkpoint in ("qwen3", "qwen3_moe"):
        found += [Case(f"{checkpoint}-{form}") for form in ("bf16", "fp8-dynamic", "fp8-block", "nvfp4")]
    found += [
        Case("qwen3_moe-mxfp4"),
        Case("gemma3-bf16"),
        Case("gpt_oss-mxfp4", "marlin", {"moe_backend": "marlin"}),
        Case("deepseek_v3-fp8-dynamic"),
        Case("deepseek_v3-nvfp4"),
        *(Case(f"nemotron_h-{form}") for form in ("fp8-dynamic", "nvfp4", "modelopt")),
        *(Case(f"qwen3_next-{form}", "", DELTA) for form in ("bf16", "fp8-dynamic", "nvfp4")),
        *(Case(f"qwen3_5_moe-{form}", "", QWEN35) for form in ("bf16", "fp8-dynamic", "modelopt")),
        *(Case(f"qwen3_5_moe-{form}", "kv-bf16", QWEN35 | KV_BF16) for form in ("mixed", "modelopt")),
        Case("qwen3_5_moe-mixed", "kv-bf16", QWEN35 | KV_BF16, eager=True),
        Case("nemotron_h-modelopt", "kv-bf16", KV_BF16),
        Case("nemotron_h-nvfp4", eager=True),
        Case("qwen3-modelopt", "kv-bf16", KV_BF16),
        Case("qwen3_moe-modelopt", "kv-bf16", KV_BF16),
        Case("qwen3-bf16", "kv-fp8", {"kv_cache_dtype": "fp8"}),
        *(Case(f"qwen3_moe-{form}", eager=True) for form in ("nvfp4", "mxfp4", "fp8-dynamic")),
        Case("deepseek_v3-nvfp4", eager=True),
        Case("qwen3_5_moe-mixed", "mtp", QWEN35 | KV_BF16 | MTP, damage=r"^mtp\.fc\.weight$"),
        Case("qwen3_5_moe-bf16", "prefix-cache", QWEN35 | {"enable_prefix_caching": True}),
    ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument(
        "--compact", type=Path, nargs="+", help="print short rows of these sleep.jsonl and end"
    )
    parser.add_argument("--only", nargs="*", default=["*"])
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=560)
    options = parser.parse_args()
    if options.compact:
        print("[\n" + ",\n".join(json.dumps(row) for row in compact(options.compact)) + "\n]")
        return 0
    began = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    version = import_vllm()
    print(f"vLLM {version} imported in {time.monotonic() - began:.0f} s", flush=True)
    waiting = [case for case in cases() if any(fnmatch(case.title, pattern) for pattern in options.only)]
    slow = ("nemotron", "qwen3_5", "qwen3_next")  # their kernels take two minutes to compile
    waiting.sort(key=lambda case: case.eager or not case.checkpoint.startswith(slow))
    running: dict[int, tuple[Case, float]] = {}
    results = options.out / "sleep.jsonl"
    while waiting or running:
        if waiting and time.monotonic() - began > options.seconds - 60:
            print(f"out of time before {[case.title for case in waiting]}", flush=True)
            waiting = []
        while waiting and len(running) < options.jobs:
            case = waiting.pop(0)
            pid = os.fork()
            if not pid:
                child(case, options.checkpoints, options.out)
            running[pid] = case, time.monotonic()
        for pid, (case, since) in list(running.items()):
            is_over = time.monotonic() - since > LIMIT_S or time.monotonic() - began > options.seconds
            if is_over:
                os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0 if is_over else os.WNOHANG)
            if not ended:
                continue
            del running[pid]
            row = summary(case, options.out, status, is_over, time.monotonic() - since) | {"vllm": version}
            with results.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(line(row), flush=True)
        time.sleep(0.1)
    return 0


def import_vllm() -> str:
    """Once, so that no fork loads it: its version."""
    import vllm
    from vllm.model_executor.models import registry

    import_module("vllm.entrypoints.llm")
    registry._run_in_subprocess = lambda function: function()  # it would import vLLM again for each model
    return str(vllm.__version__)


def child(case: Case, checkpoints: Path, out: Path) -> None:
    """In a fork: what it prints goes to TITLE.log, each step's result to TITLE.steps as it comes."""
    log = os.open(out / f"{case.title}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ |= case.env
    with (out / f"{case.title}.steps").open("w") as steps:
        try:
            Trial(case, checkpoints, out, steps).run()
        except BaseException as error:
            traceback.print_exc()
            words = re.sub(r"\s+", " ", str(error))
            print(
                json.dumps({"step": "raised", "error": f"{type(error).__name__}: {words}"[:600]}), file=steps
            )
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # not through the parent's handlers


class Trial:
    def __init__(self, case: Case, checkpoints: Path, out: Path, steps: Any) -> None:
        self.case, self.steps = case, steps
        self.folder = out / "models" / case.title  # the files are damaged later: a copy
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(checkpoints / case.checkpoint, self.folder)
        self.arguments = {
            "max_model_len": 2048,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 2048,
            "enforce_eager": case.eager,
            "kv_cache_memory_bytes": 512 * 2**20,
            "gpu_memory_utilization": 0.03,
            "skip_tokenizer_init": True,
            "enable_sleep_mode": True,
            "disable_log_stats": False,
            "seed": 0,
        } | json.loads(json.dumps(case.arguments))
        draft = self.arguments.get("speculative_config", {})
        if "model" in draft:
            self.drafter = out / "models" / f"{case.title}-drafter"
            shutil.rmtree(self.drafter, ignore_errors=True)
            shutil.copytree(checkpoints / draft["model"], self.drafter)
            draft["model"] = str(self.drafter)
        self.adapter = checkpoints / "lora"

    def say(self, step: str, **values: object) -> None:
        print(json.dumps({"step": step, **values}), file=self.steps, flush=True)

    def run(self) -> None:
        from vllm.entrypoints.llm import LLM

        began = time.monotonic()
        self.llm = LLM(str(self.folder), **self.arguments)
        self.draft_buffers = (
            {name: buffer.cpu().clone() for name, buffer in self.draft().named_buffers()}
            if self.draft()
            else {}
        )
        self.say("ready", seconds=round(time.monotonic() - began, 1), **self.about())
        self.reference = self.ask()
        self.reset()
        self.first = self.ask()  # the very first may still compile
        self.reset()
        alone = None if self.case.lora else self.compare(self.ask(alone=True))
        cold, warm = [], []
        for _ in range(5):
            self.reset()
            cold.append(self.compare(self.ask()))
        for _ in range(5):
            warm.append(self.compare(self.ask()))
        self.say(
            "noise",
            cold=cold,
            warm=warm,
            alone=alone,
            very_first=self.compare(self.reference),
            accepted=self.first.accepted,
        )
        for variant, times in (("plain", 5), ("reset", 5), ("dirty", 3), ("kv-first", 3)):
            for _ in range(times):
                self.cycle(variant)
        if hasattr(self, "lora_request"):
            self.llm.llm_engine.remove_lora(1)
            self.say("adapter-again", **self.compare(self.ask()))
        self.cycle("no-reload")
        self.cycle("after-no-reload")
        path = (self.drafter if hasattr(self, "drafter") else self.folder) / "model.safetensors"
        name, undamaged = damage(path, self.case.damage)
        self.cycle("damaged", tensor=name)
        path.write_bytes(undamaged)
        self.cycle("mended")
        if self.draft() is not None:
            self.cycle("drafter-too")
            self.cycle("drafter-too")
        elif not self.case.eager:
            self.cycle("recapture")
            self.cycle("recapture")

    def cycle(self, variant: str, **values: object) -> None:
        llm, took = self.llm, {}

        def timed(name: str, function: Any, *arguments: Any, **options: Any) -> None:
            began = time.perf_counter()
            function(*arguments, **options)
            took[name] = round(time.perf_counter() - began, 3)

        awake = gpu_bytes()
        with own_memory_only():
            timed("sleep", llm.sleep, level=2)
        asleep = gpu_bytes()
        if variant == "dirty":
            make_dirty()
        timed("wake_weights", llm.wake_up, tags=["weights"])
        if variant == "kv-first":
            timed("wake_kv", llm.wake_up, tags=["kv_cache"])
        values["found"] = self.found_in_memory()
        if variant != "no-reload":
            timed("reload", llm.collective_rpc, "reload_weights")
        if variant != "kv-first":
            timed("wake_kv", llm.wake_up, tags=["kv_cache"])
        if variant == "reset":
            self.reset()
        if variant == "drafter-too":
            timed("drafter", self.load_drafter)
        if variant == "recapture":
            timed("capture", self.capture)
        timed("answers", lambda: values.update(self.compare(self.ask())))
        values["again"] = self.compare(self.ask())
        self.say(variant, **values, seconds=took, gpu_mib=[awake >> 20, asleep >> 20])

    def draft(self) -> Any:
        return self.worker().get_draft_model()

    def worker(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker

    def load_drafter(self) -> None:
        """What vLLM leaves out: the drafter's weights from their files, and its buffers."""
        from vllm.model_executor.model_loader import get_model_loader

        config = self.llm.llm_engine.vllm_config
        loader = get_model_loader(config.load_config)
        drafter = self.draft()
        drafter.load_weights(loader.get_all_weights(config.speculative_config.draft_model_config, drafter))
        for name, buffer in drafter.named_buffers():
            buffer.data.copy_(self.draft_buffers[name])

    def capture(self) -> None:
        """Throw the CUDA graphs away and capture them again."""
        from vllm.compilation.cuda_graph import CUDAGraphWrapper

        CUDAGraphWrapper.clear_all_graphs()
        self.worker().model_runner.capture_model()

    def reset(self) -> None:
        if not self.llm.reset_prefix_cache():
            self.say("warning", text="reset_prefix_cache refused")

    def found_in_memory(self) -> str:
        """What the first matrix holds after the wake, before the reload."""
        model = self.worker().get_model()
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2 and "embed" not in name and parameter.is_cuda:
                raw = parameter.detach().flatten()[:4096].view(-1).cpu()
                bytes_ = set(raw.contiguous().view(torch().uint8).tolist())
                return "zeros" if bytes_ == {0} else "ones" if bytes_ == {255} else "other"
        return "?"

    def ask(self, alone: bool = False) -> Answer:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0, max_tokens=ANSWER, logprobs=1, ignore_eos=True, detokenize=False
        )
        before = self.accepted()
        prompts: list[dict[str, Any]] = [
            {"prompt_token_ids": [5 + (i * i * 31 + i * 7 + length) % 1000 for i in range(length)]}
            for length in LENGTHS
        ]
        if self.case.image:
            prompts = [
                {
                    "prompt_token_ids": [50, 51, 1022, 1020, 1023, *range(60, 60 + n)],
                    "multi_modal_data": {"image": picture(n)},
                }
                for n in (8, 30)
            ]
        options: dict[str, Any] = {"use_tqdm": False}
        if alone:
            found = [self.llm.generate([prompt], sampling, **options)[0] for prompt in prompts]
        elif self.case.lora:
            from vllm.lora.request import LoRARequest

            self.lora_request = LoRARequest("made", 1, str(self.adapter))
            found = self.llm.generate(prompts, sampling, lora_request=self.lora_request, **options)
            found += self.llm.generate(prompts, sampling, **options)
        else:
            found = self.llm.generate(prompts, sampling, **options)
        answers = [each.outputs[0] for each in found]
        tokens = [list(each.token_ids) for each in answers]
        chosen = [
            [at[token].logprob for at, token in zip(each.logprobs, each.token_ids, strict=True)]
            for each in answers
        ]
        return Answer(tokens, chosen, self.accepted() - before)

    def accepted(self) -> int:
        if "speculative_config" not in self.arguments:
            return 0
        metrics = {metric.name: getattr(metric, "value", 0) for metric in self.llm.get_metrics()}
        return int(metrics.get("vllm:spec_decode_num_accepted_tokens", 0))

    def compare(self, answer: Answer) -> dict[str, Any]:
        """Against the first answer: tokens that differ, distance of log probabilities until then."""
        different, apart, parts = 0, 0.0, []
        for mine, other, first, second in zip(
            self.first_or(answer).tokens,
            answer.tokens,
            self.first_or(answer).chosen,
            answer.chosen,
            strict=True,
        ):
            same = next(
                (i for i, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1]), len(mine)
            )
            different += len(mine) - same
            distances = [abs(a - b) for a, b in zip(first[:same], second[:same], strict=True)]
            if any(number != number for number in second):
                distances.append(float("inf"))
            apart = max([apart, *distances])
            parts.append(len(mine) - same)
        row: dict[str, Any] = {
            "different": different,
            "apart": round(apart, 5) if apart != float("inf") else "nan",
        }
        if different:
            row["by_prompt"] = parts
        if "speculative_config" in self.arguments:
            row["accepted"] = answer.accepted
        return row

    def first_or(self, answer: Answer) -> Answer:
        return getattr(self, "first", answer)

    def about(self) -> dict[str, Any]:
        """What serves it: kernels of the layers, the attention, whether a prefix cache is on."""
        core = self.llm.llm_engine.engine_core.engine_core
        runner = core.model_executor.driver_worker.worker.model_runner
        kernels: dict[str, int] = {}
        for module in runner.get_model().modules():
            method = getattr(module, "quant_method", None)
            for each in (
                method,
                getattr(module, "scheme", None),
                getattr(method, "kernel", None),
                getattr(getattr(module, "scheme", None), "kernel", None),
                getattr(method, "fp8_linear", None),
            ):
                if each is not None:
                    kernels[type(each).__name__] = kernels.get(type(each).__name__, 0) + 1
            for key in ("nvfp4_backend", "fp8_backend", "mxfp4_backend", "unquantized_backend"):
                if getattr(method, key, None) is not None:
                    word = f"{key}={getattr(method, key)}"
                    kernels[word] = kernels.get(word, 0) + 1
        backends = sorted({group.backend.get_name() for groups in runner.attn_groups for group in groups})
        config = core.vllm_config
        return {
            "kernels": kernels,
            "attention": backends,
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "cudagraphs": str(config.compilation_config.cudagraph_mode),
            "kv_cache_dtype": str(config.cache_config.cache_dtype),
            "capability": ".".join(map(str, torch().cuda.get_device_capability())),
            "gpu": torch().cuda.get_device_name(),
        }


@dataclass(frozen=True)
class Answer:
    tokens: list[list[int]]
    chosen: list[list[float]]
    accepted: int


def torch() -> Any:
    return import_module("torch")


def picture(number: int) -> Any:
    import numpy as np
    from PIL import Image

    values = np.random.default_rng(number).integers(0, 255, (256, 320, 3), dtype=np.uint8)
    return Image.fromarray(values)


@contextmanager
def own_memory_only() -> Iterator[None]:
    """vLLM raises if the whole GPU has less free memory after the sleep; here other cases use it too."""
    accelerator, real = torch().accelerator, torch().accelerator.get_memory_info
    accelerator.get_memory_info = lambda *_: (real()[1] - gpu_bytes(), real()[1])
    try:
        yield
    finally:
        accelerator.get_memory_info = real


def make_dirty() -> None:
    cuda = torch().cuda
    free = cuda.mem_get_info()[0]
    tensor = torch().full((min(DIRTY_BYTES, free - 2**30),), 255, dtype=torch().uint8, device="cuda")
    cuda.synchronize()
    del tensor
    cuda.empty_cache()


def gpu_bytes() -> int:
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    mine = [
        each.usedGpuMemory
        for each in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if each.pid == os.getpid()
    ]
    return int(mine[0] or 0) if mine else 0


def damage(path: Path, pattern: str) -> tuple[str, bytes]:
    """Sets the first tensor whose name matches to zeros; gives its name and the file as it was."""
    undamaged = path.read_bytes()
    size = int.from_bytes(undamaged[:8], "little")
    header = json.loads(undamaged[8 : 8 + size])
    name = next(name for name in sorted(header) if name != "__metadata__" and re.search(pattern, name))
    start, end = header[name]["data_offsets"]
    data = bytearray(undamaged)
    data[8 + size + start : 8 + size + end] = bytes(end - start)
    path.write_bytes(data)
    return name, undamaged


def summary(case: Case, out: Path, status: int, is_over: bool, seconds: float) -> dict[str, Any]:
    steps = [json.loads(text) for text in (out / f"{case.title}.steps").read_text().splitlines()]
    row: dict[str, Any] = {
        "case": case.title,
        "eager": case.eager,
        "seconds": round(seconds, 1),
        "verdict": verdict(steps, is_over, status),
        "steps": steps,
    }
    shutil.rmtree(out / "models" / case.title, ignore_errors=True)
    return row


def verdict(steps: list[dict[str, Any]], is_over: bool, status: int) -> str:
    """To the bit where repeats were the same to the bit, within 1.5 x their distance elsewhere."""
    noise = next((step for step in steps if step["step"] == "noise"), None)
    raised = next((step["error"] for step in steps if step["step"] == "raised"), None)
    wakes = [step for step in steps if step["step"] in WAKES]
    if noise is None or not wakes:
        at = "no result" if noise is None else "wake fails"
        return f"{at}: {raised or ('out of time' if is_over else status)}"
    accepted = {each.get("accepted") for each in noise["cold"] + noise["warm"]}
    alone = [noise["alone"]] if noise.get("alone") else []  # each prompt asked alone: other batches
    bad = []
    for wake in wakes:
        for kind, each in (("cold", wake), ("warm", wake["again"])):
            repeats = noise[kind] + ([] if None in accepted else alone)  # fewer accepted: other batches too
            is_steady = not any(one["apart"] or one["different"] for one in repeats)
            if not is_steady:
                repeats = noise["cold"] + noise["warm"] + alone
            apart = 1e-4 if is_steady else 1.5 * max(one["apart"] for one in repeats)
            if each["different"] > max(one["different"] for one in repeats):
                bad.append(f"{wake['step']}: {each['different']} tokens differ")
            elif each["apart"] == "nan" or each["apart"] > apart:
                bad.append(f"{wake['step']}: log probabilities {each['apart']} apart")
            if None not in accepted and not min(accepted) <= each["accepted"] <= max(accepted):
                bad.append(f"{wake['step']}: {each['accepted']} accepted, not {sorted(accepted)}")
    found = "; ".join(dict.fromkeys(bad)) or "survives"
    last_wake = max(number for number, step in enumerate(steps) if step["step"] in WAKES)
    if (raised or is_over) and last_wake >= len(steps) - 2:
        found += f"; then {raised or 'no end in time'}"
    return found


def compact(files: list[Path]) -> list[dict[str, Any]]:
    """A short row for each case; of two runs of a case the later file counts."""
    rows = {}
    for path in files:
        for text in path.read_text().splitlines():
            row = json.loads(text)
            rows[row["case"]] = short(row)
    return [rows[name] for name in sorted(rows)]


def short(row: dict[str, Any]) -> dict[str, Any]:
    steps = row["steps"]
    ready = next((step for step in steps if step["step"] == "ready"), {})
    found: dict[str, Any] = {"case": row["case"], "verdict": verdict(steps, row.get("is_over", False), 0)}
    found |= {
        key: ready[key]
        for key in ("kernels", "attention", "prefix_caching", "kv_cache_dtype")
        if key in ready
    }
    noise = next((step for step in steps if step["step"] == "noise"), None)
    if noise:
        kinds = {"cold": noise["cold"], "warm": noise["warm"]}
        kinds |= {"alone": [noise["alone"]]} if noise.get("alone") else {}
        found["noise"] = {kind: worst(each) for kind, each in kinds.items()}
    for name in (*WAKES, *OTHERS):
        same = [step for step in steps if step["step"] == name]
        if same:
            found[name] = (
                {"times": len(same)} | worst(same) | {"again": worst([step["again"] for step in same])}
            )
    wakes = [step for step in steps if "gpu_mib" in step]
    if wakes:
        found["gpu_mib_awake"], found["gpu_mib_asleep"] = wakes[-1]["gpu_mib"]
        parts = ("sleep", "wake_weights", "reload", "wake_kv")
        found["seconds"] = {
            part: round(
                statistics.median(step["seconds"][part] for step in wakes if part in step["seconds"]), 3
            )
            for part in parts
        }
        found["memory_after_wake"] = sorted({step["found"] for step in wakes})
    raised = next((step["error"] for step in steps if step["step"] == "raised"), None)
    return found | ({"raised": raised} if raised else {})


def worst(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The most tokens that differed and the largest distance; what was accepted, where something drafts."""
    apart = [each["apart"] for each in answers]
    row = {
        "different": max(each["different"] for each in answers),
        "apart": "nan" if "nan" in apart else max(apart),
    }
    accepted = sorted({each["accepted"] for each in answers if "accepted" in each})
    return row | ({"accepted": accepted} if accepted else {})


def line(row: dict[str, Any]) -> str:
    last = row["steps"][-1]["step"] if row["steps"] else "-"
    counted = f"[{len(row['steps'])} steps, last {last}]"
    return f"{row['case']:40} {row['seconds']:6.1f} s  {row['verdict'][:300]}  {counted}"


if __name__ == "__main__":
    sys.exit(main())
