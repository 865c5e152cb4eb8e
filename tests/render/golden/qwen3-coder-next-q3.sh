mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3-coder-next-q3 \
  --label firesteel=qwen3-coder-next-q3 \
  --gpus all \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  --health-cmd 'curl -fsS http://127.0.0.1:8000/health' \
  --health-start-period 30m \
  -e LLAMA_CACHE=/hub/hub \
  ghcr.io/ggml-org/llama.cpp:server-cuda13 \
  --hf-repo unsloth/Qwen3-Coder-Next-GGUF:UD-Q3_K_XL \
  --host 0.0.0.0 \
  --port 8000 \
  --alias qwen3-coder-next-q3 \
  --n-gpu-layers all \
  --fit off \
  --flash-attn on \
  --load-mode dio \
  --cache-ram 2048 \
  --metrics \
  --temp 1 \
  --top-p 0.95 \
  --top-k 40 \
  --min-p 0.01 \
  --ctx-size 262144 \
  --parallel 2
