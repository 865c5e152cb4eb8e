"""Measure one vLLM server with `firesteel bench` and with vLLM's own `bench serve` at the same loads.

    ENV/bin/python benchmarks/gpu/compare_bench.py --url http://127.0.0.1:8000 --model NAME --tokenizer DIR \
        --out FILE.jsonl [--users 1,4,16,64] [--answers 128,512] [--prompt 512] [--budget 60s]

Start it with a Python that has both: vLLM's client runs in this process, since importing it takes a while.
Both keep so many streams open, send prompts of random words, and ask for answers of exactly so many tokens at
temperature 0. FILE gets a line for each load and tool.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--users", default="1,4,16,64")
    parser.add_argument("--answers", default="128,512")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--budget", default="60s", help="of firesteel, for each length of answers")
    options = parser.parse_args()
    with options.out.open("a") as out:
        for answer in (int(text) for text in options.answers.split(",")):
            for measure in (vllm_rows, firesteel_rows):
                try:
                    rows = measure(options, answer)
                except Exception:
                    rows = [{"tool": measure.__name__, "failed": traceback.format_exc()[-1500:]}]
                for row in rows:
                    row = {"model": options.model, "prompt": options.prompt, "answer": answer} | row
                    print(json.dumps(row), file=out, flush=True)
                    print(row, flush=True)
    return 0


def vllm_rows(options: argparse.Namespace, answer: int) -> list[dict[str, Any]]:
    from vllm.benchmarks.serve import add_cli_args
    from vllm.benchmarks.serve import main as run
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    rows = []
    for users in (int(text) for text in options.users.split(",")):
        parser = FlexibleArgumentParser()
        add_cli_args(parser)
        arguments = [
            "--backend", "openai-chat", "--endpoint", "/v1/chat/completions", "--base-url", options.url,
            "--model", options.model, "--tokenizer", options.tokenizer, "--dataset-name", "random",
            "--random-input-len", str(options.prompt), "--random-output-len", str(answer), "--ignore-eos",
            "--max-concurrency", str(users), "--num-prompts", str(users * (8 if users < 64 else 4)),
            "--temperature", "0", "--num-warmups", str(users), "--disable-tqdm", "--seed", str(users),
        ]  # fmt: skip
        result = run(parser.parse_args(arguments))
        rows.append(
            {
                "tool": "vllm bench serve",
                "users": users,
                "decode_tokens_per_s": round(1000 / result["mean_tpot_ms"], 2),
                "median_time_per_output_token_ms": result["median_tpot_ms"],
                "total_tokens_per_s": round(result["output_throughput"], 1),
                "median_ttft_ms": round(result["median_ttft_ms"], 2),
                "completed": result["completed"],
            }
        )
    return rows


def firesteel_rows(options: argparse.Namespace, answer: int) -> list[dict[str, Any]]:
    argv = [
        sys.executable, "-m", "firesteel", "bench", "--url", f"{options.url}/v1", "--model", options.model,
        "--users", options.users, "--depth", str(options.prompt), "--answer", str(answer), "--text", "prose",
        "--budget", options.budget, "--json",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        return [{"tool": "firesteel", "failed": (done.stdout + done.stderr)[-1500:]}]
    document = json.loads(done.stdout)
    return [
        {
            "tool": "firesteel",
            "users": figures["point"]["users"],
            "decode_tokens_per_s": (figures["decode_tokens_per_s"] or {}).get("value"),
            "median_time_per_output_token_ms": figures["time_per_output_token_ms"].get("p50"),
            "total_tokens_per_s": (figures["total_tokens_per_s"] or {}).get("value"),
            "median_ttft_ms": figures["ttft_ms"].get("p50"),
            "accepted_per_step": figures["accepted_per_step"],
            "interval": figures["decode_tokens_per_s"],
            "cached_share": figures["cached_share"],
            "notes": figures["notes"],
            "client": document["client"],
        }
        for figures in document["figures"]
    ]


if __name__ == "__main__":
    sys.exit(main())
