"""Do quantized checkpoints give the logits of their dequantized references on a real vLLM?

    ENV/bin/python benchmarks/gpu/compare_logits.py MODELS OUT.json PAIR [PAIR ...]

PAIR is QUANTIZED:REFERENCE, two folders under MODELS. vLLM computes the log probability of every token of a
fixed prompt with both. The error is the root mean square of the differences over the standard deviation of
the reference; THRESHOLD was fixed before the first run. vLLM is imported once and every model is a fork.
A REFERENCE that ends with `@fp8` is computed by transformers, which rounds the input of every linear layer to
FP8 by token, as an engine does with FP8 weights.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

from record_vllm_boots import child, import_vllm

os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
THRESHOLD = 0.10
"""At most: the same model. Above: another one."""
PROMPTS = [[1000 + (37 * i + 911 * prompt) % 20000 for i in range(128)] for prompt in range(8)]
AT_ONCE = 4
ROUNDED = "@fp8"


def main(models: Path, out: Path, pairs: list[tuple[str, str]]) -> int:
    import_vllm()
    names = sorted({name for pair in pairs for name in pair})
    running: dict[int, str] = {}
    for name in [*names, *[""] * AT_ONCE]:
        while len(running) >= (AT_ONCE if name else 1):
            pid, _ = os.wait()
            running.pop(pid, None)
        if name:
            pid = os.fork()
            if not pid:
                child(f"{out.stem}.{name}", out.parent, partial(logprobs, models / name))
            running[pid] = name
    found = {name: json.loads(out.with_suffix(f".{name}.json").read_text()) for name in names}
    rows = [compare(found, *pair) for pair in pairs]
    out.write_text(json.dumps(rows, indent=1))
    print(*rows, sep="\n")
    return 0


def logprobs(model: Path) -> list[float]:
    from vllm import LLM, SamplingParams

    if model.name.endswith(ROUNDED):
        return rounded_logprobs(model.with_name(model.name.removesuffix(ROUNDED)))
    llm = LLM(
        str(model), enforce_eager=True, max_model_len=1024, max_num_seqs=8, kv_cache_memory_bytes=1 << 29,
        gpu_memory_utilization=0.05, enable_prefix_caching=False, skip_tokenizer_init=True,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=0, temperature=0, detokenize=False)
    values: list[float] = []
    for tokens in PROMPTS:
        (output,) = llm.generate([{"prompt_token_ids": tokens}], sampling, use_tqdm=False)
        rows = zip(tokens, output.prompt_logprobs or [], strict=True)
        values += [row[token].logprob for token, row in rows if row]
    return values


def rounded_logprobs(model: Path) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    def round_to_fp8(module: object, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        values = inputs[0].float()
        scale = values.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448
        return ((values / scale).to(torch.float8_e4m3fn).float() * scale).to(inputs[0].dtype), *inputs[1:]

    network = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.bfloat16).cuda().eval()
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            module.register_forward_pre_hook(round_to_fp8)
    values: list[float] = []
    for tokens in PROMPTS:
        with torch.inference_mode():
            logits = network(torch.tensor([tokens], device="cuda")).logits[0].float()
        chosen = torch.tensor(tokens[1:], device="cuda").unsqueeze(1)
        values += logits[:-1].log_softmax(-1).gather(1, chosen).squeeze(1).tolist()
    return values


def compare(found: dict[str, list[float]], quantized: str, reference: str) -> dict[str, object]:
    one, other = found[quantized], found[reference]
    pair = {"model": quantized, "reference": reference}
    if isinstance(one, dict) or isinstance(other, dict):
        return {**pair, "failed": str(one if isinstance(one, dict) else other)[:500]}
    error = fmean((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 / pstdev(other)
    return {**pair, "error": round(error, 5), "agrees": error <= THRESHOLD, "tokens": len(one)}


if __name__ == "__main__":
    asked = [tuple(word.split(":")) for word in sys.argv[3:]]
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), [(pair[0], pair[1]) for pair in asked]))
