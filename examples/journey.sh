#!/bin/sh
# From a bare machine to a served model and back, as a person would type it. Needs no GPU: without one, a small model
# is served on the CPU. A test runs this file unchanged.
#
#   FIRESTEEL=./firesteel PORT=8123 sh examples/journey.sh
set -eu
firesteel=${FIRESTEEL:-firesteel}
port=${PORT:-8000}
say() { printf '\n$ %s\n' "$*"; }

say "firesteel: this host, what fits it, what to type next"
"$firesteel"

say "firesteel plan gpt-oss-120b --host gb10: does it fit a Spark, and how fast is it, before 60 GB are downloaded"
"$firesteel" plan gpt-oss-120b --host gb10

say "firesteel check: what is wrong with a command from a guide"
"$firesteel" check --host gb10 - <<'GUIDE' || test $? -eq 3
docker run --gpus all -p 8000:8000 vllm/vllm-openai:v0.24.0 vllm serve openai/gpt-oss-120b
GUIDE

say "firesteel pull smollm2: download everything it needs; after that no network is used"
"$firesteel" pull smollm2

say "firesteel up smollm2 --dry-run: print the exact commands"
"$firesteel" up smollm2 --port "$port" --dry-run

say "firesteel up smollm2: plan, check, launch behind the guard, warm up, verify"
"$firesteel" up smollm2 --port "$port"

say "a chat request, as any OpenAI client sends it"
curl --silent --fail --max-time 60 "http://127.0.0.1:$port/v1/chat/completions" \
    -H 'Content-Type: application/json' \
    -d '{"model": "smollm2", "temperature": 0, "max_tokens": 32, "messages": [{"role": "user", "content": "What is 2+2?"}]}'
echo

say "firesteel ps, verify, logs: what runs, verify it again, print its log"
"$firesteel" ps
"$firesteel" verify smollm2
"$firesteel" logs smollm2 -n 3

say "firesteel client opencode: what belongs in a coding agent's configuration"
"$firesteel" client opencode smollm2

say "firesteel render: the same launch for Kubernetes"
"$firesteel" render gpt-oss-120b --as kubernetes

say "firesteel down smollm2: stop it, and wait until its memory is free"
"$firesteel" down smollm2
