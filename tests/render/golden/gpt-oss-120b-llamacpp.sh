mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gpt-oss-120b-llamacpp \
  --label firesteel=gpt-oss-120b-llamacpp \
  --gpus all \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  --health-cmd 'curl -fsS http://127.0.0.1:8000/health' \
  --health-start-period 30m \
  -e LLAMA_CACHE=/hub/hub \
  ghcr.io/ggml-org/llama.cpp:server-cuda13 \
  --hf-repo ggml-org/gpt-oss-120b-GGUF:MXFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --alias gpt-oss-120b-llamacpp \
  --n-gpu-layers all \
  --fit off \
  --flash-attn on \
  --ubatch-size 2048 \
  --batch-size 2048 \
  --load-mode dio \
  --cache-ram 2048 \
  --metrics \
  --temp 1 \
  --top-p 1 \
  --ctx-size 262144 \
  --parallel 2
