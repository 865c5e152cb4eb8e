"""Quantized checkpoints beside their source, by transformers on a CPU: perplexity, KL of logits, answers.

    VENV/bin/python benchmarks/quantize_quality.py SOURCE QUANTIZED...

VENV has transformers and compressed-tensors.

The text is `docs/architecture.md` of this repository. compressed-tensors decompresses, not firesteel.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = Path(__file__).resolve().parents[1] / "docs/architecture.md"
TOKENS, PROMPTS, ANSWER = 1024, 8, 24
QUESTIONS = [
    "What is the capital of France?", "What is two plus two?", "Name a primary colour.",
    "Which planet is nearest to the sun?", "Who wrote Hamlet?", "What do bees make?",
    "How many days has a week?", "What is the opposite of hot?",
]  # fmt: skip


def load(folder: str) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


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
        "| checkpoint | perplexity | KL of the logits | same next token | greedy tokens until they differ |"
    )
    print("|---|---:|---:|---:|---:|")
    for folder in (source, *others):
        model = load(folder)
        logits = model(tokens).logits[0].float().log_softmax(-1)
        answers = [
            model.generate(p, max_new_tokens=ANSWER, do_sample=False)[0, p.shape[1] :].tolist()
            for p in prompts
        ]
        perplexity = torch.exp(-logits[:-1].gather(1, tokens[0, 1:, None]).mean()).item()
        expected = expected or (logits, answers)
        kl = (expected[0].exp() * (expected[0] - logits)).sum(-1).mean().item()
        same = (expected[0].argmax(-1) == logits.argmax(-1)).float().mean().item()
        equal = [_common(a, b) / max(1, len(a)) for a, b in zip(expected[1], answers, strict=True)]
        name = Path(folder).name
        print(
            f"| {name} | {perplexity:.2f} | {kl:.4f} | {same:.1%} | {sum(equal) / len(equal):.0%} |",
            flush=True,
        )
        print(f"<!-- {tokenizer.decode(answers[0], skip_special_tokens=True)!r} -->", flush=True)


def _common(first: list[int], second: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))


if __name__ == "__main__":
    main()
