"""Quantized checkpoints beside their source, by transformers on a CPU: perplexity, KL of logits, answers.

    VENV/bin/python benchmarks/quantize_quality.py SOURCE QUANTIZED...

VENV has transformers and compressed-tensors, which reads the checkpoints; firesteel takes no part. The text
is `docs/architecture.md` of this repository. Where a format has activations in 8 or 4 bits, each linear layer
gets its inputs rounded as an engine rounds them, after a row with inputs in full, which shows the weights
alone. The last column is what `benchmarks/gpu/compare_logits.py` measures between vLLM and a reference with
the same weights and inputs in full: the error of the log probabilities of its prompts, over their spread.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = Path(__file__).resolve().parents[1] / "docs/architecture.md"
TOKENS, ANSWER = 1024, 32
QUESTIONS = [
    "What is the capital of France?", "What is two plus two?", "Name a primary colour.",
    "Which planet is nearest to the sun?", "Who wrote Hamlet?", "What do bees make?",
    "How many days has a week?", "What is the opposite of hot?", "What is water made of?",
    "Write a sentence about the sea.", "What language is spoken in Brazil?", "Name a fruit that is yellow.",
]  # fmt: skip
PROMPTS = [[1000 + (37 * i + 911 * prompt) % 20000 for i in range(128)] for prompt in range(8)]
"""Those of `compare_logits.py`."""
Rounding = Callable[[torch.Tensor], torch.Tensor]


def load(folder: str, rounding: Rounding | None) -> torch.nn.Module:
    """All weights dequantized, so that only the rounding that is asked for happens."""
    from transformers import CompressedTensorsConfig

    is_quantized = "quantization_config" in (Path(folder) / "config.json").read_text("utf-8")
    options = {"quantization_config": CompressedTensorsConfig(run_compressed=False)} if is_quantized else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).float().eval()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.__dict__.pop("forward", None)  # compressed-tensors' own, which may round inputs
            if rounding and "lm_head" not in name:
                module.register_forward_pre_hook(partial(_rounded, rounding))
    return model


def _rounded(rounding: Rounding, module: torch.nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
    return (rounding(inputs[0]),)


def fp8_per_token(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def fp8_per_group(x: torch.Tensor) -> torch.Tensor:
    pad = -x.shape[-1] % 128
    groups = torch.nn.functional.pad(x, (0, pad)).unflatten(-1, (-1, 128))
    return fp8_per_token(groups).flatten(-2)[..., : x.shape[-1]]


def fp4_per_group(x: torch.Tensor) -> torch.Tensor:
    """With the global scale pinned to 1, as in nvfp4-w4a4."""
    groups = x.unflatten(-1, (-1, 16))
    scale = (groups.abs().amax(-1, keepdim=True) / 6).clamp(max=448).to(torch.float8_e4m3fn).float()
    sizes = (groups / scale.clamp(min=1e-12)).abs().clamp(max=6)
    step = torch.where(sizes < 2, 0.5, torch.where(sizes < 4, 1.0, 2.0))
    return ((sizes / step).round() * step * groups.sign() * scale).flatten(-2)


ROUNDINGS = {"FP8-DYNAMIC": fp8_per_token, "FP8-BLOCK": fp8_per_group, "NVFP4-W4A4": fp4_per_group}


@torch.no_grad()
def main() -> None:
    source, *others = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokens = tokenizer(TEXT.read_text("utf-8"), return_tensors="pt").input_ids[:, :TOKENS]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        ).input_ids
        for question in QUESTIONS
    ]
    expected = None
    print(
        "| checkpoint | activations | perplexity | KL, nats | same next token | same answers | "
        "answers until they differ | error of activations |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for folder in (source, *others):
        name = Path(folder).name
        rounding = next((r for label, r in ROUNDINGS.items() if name.upper().endswith(label)), None)
        in_full = None
        for own in dict.fromkeys((None, rounding)):
            model = load(folder, own)
            logits = model(tokens).logits[0].float().log_softmax(-1)
            answers = [
                model.generate(p, max_new_tokens=ANSWER, do_sample=False)[0, p.shape[1] :].tolist()
                for p in prompts
            ]
            losses = -logits[:-1].gather(1, tokens[0, 1:, None])[:, 0]
            expected = expected or (logits, answers)
            kl = (expected[0].exp() * (expected[0] - logits)).sum(-1)
            same = (expected[0].argmax(-1) == logits.argmax(-1)).float().mean().item()
            pairs = list(zip(expected[1], answers, strict=True))
            until = sum(_common(a, b) / max(1, len(a)) for a, b in pairs) / len(pairs)
            values = _log_probabilities(model)
            in_full = values if in_full is None else in_full
            error = ((values - in_full).square().mean().sqrt() / in_full.std()).item()
            print(
                f"| {name} | {'rounded' if own else 'in full'} | {losses.mean().exp():.2f} | {_interval(kl)} "
                f"| {same:.1%} | {sum(a == b for a, b in pairs)} of {len(pairs)} | {until:.0%} "
                f"| {f'{error:.3f}' if own else ''} |",
                flush=True,
            )


def _log_probabilities(model: torch.nn.Module) -> torch.Tensor:
    values = []
    for prompt in PROMPTS:
        tokens = torch.tensor([prompt])
        logits = model(tokens).logits[0].float().log_softmax(-1)
        values.append(logits[:-1].gather(1, tokens[0, 1:, None])[:, 0])
    return torch.cat(values)


def _interval(values: torch.Tensor) -> str:
    """95 %, by the spread of blocks of 64 tokens, which are nearly independent."""
    blocks = torch.stack([block.mean() for block in values.split(64) if len(block) == 64])
    half = 1.96 * blocks.std() / len(blocks) ** 0.5
    return f"{values.mean():.4f} ± {half:.4f}"


def _common(first: list[int], second: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))


if __name__ == "__main__":
    main()
