#!/usr/bin/env python3
"""Modules and lines of ours that each process has loaded when it has started, and its memory then.

    .venv-dev/bin/python benchmarks/load_sets.py [SRC]...     SRC: `src` of another checkout, before this one

The module of a long-lived process (supervisor, gateway, the gateway's jobs, a node's agent) is imported; a
command runs to its end. A program whose module moved says so: change PROGRAMS. Memory is VmRSS at that
moment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve()
LINE = "check docker run vllm/vllm-openai:v0.24.0 vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4"
COMMANDS = {
    "--help": "--help",
    "plan": "plan gpt-oss-120b --host gb10",
    "check": LINE,
    "models": "models --host gb10",
}
PROGRAMS = {
    "supervisor": ("firesteel.run.supervise.supervisor",),
    "gateway": ("firesteel.gateway.serve",),
    "load job": ("firesteel.gateway.loader.job",),
    "unload job": ("firesteel.gateway.loader.unload",),
    "cluster agent": ("firesteel.hosts.cluster.agent",),
    "cluster runner": ("firesteel.hosts.cluster.runner",),
}
COUNT = """
import sys, json
from pathlib import Path
def report():
    files = {m.__file__ for n, m in list(sys.modules.items())
             if (n == "firesteel" or n.startswith("firesteel.")) and getattr(m, "__file__", None)}
    lines = sum(Path(f).read_text().count(chr(10)) for f in files)
    rss = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmRSS"))
    print("\\n" + json.dumps([len(files), lines, rss // 1024]), file=sys.stderr)
"""
RUN = (
    COUNT
    + """
from firesteel.cli.main import main
try:
    main(sys.argv[1:])
finally:
    report()
"""
)
IMPORT = (
    COUNT
    + """
import importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
report()
"""
)


def measure(source: str, script: str, words: list[str], home: str) -> tuple[int, int, int] | None:
    env = {**os.environ, "PYTHONPATH": source, "FIRESTEEL_HOME": home}
    argv = [sys.executable, "-c", script, *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    try:
        modules, lines, mib = json.loads(done.stderr.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return modules, lines, mib


def main(sources: list[str]) -> None:
    print("| process | modules | lines | MiB |\n|---|---|---|---|")
    for source in (*sources, str(HERE.parents[1] / "src")):
        print(f"| **{source}** | | | |")
        with tempfile.TemporaryDirectory() as home:
            for name, words in COMMANDS.items():
                measure(source, RUN, words.split(), home)  # the first one compiles
                print_row(name, measure(source, RUN, words.split(), home))
            for name, modules in PROGRAMS.items():
                print_row(name, measure(source, IMPORT, list(modules), home))


def print_row(name: str, found: tuple[int, int, int] | None) -> None:
    print(
        f"| {name} | {found[0]} | {found[1]:,} | {found[2]} |" if found else f"| {name} | moved | | |",
        flush=True,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
