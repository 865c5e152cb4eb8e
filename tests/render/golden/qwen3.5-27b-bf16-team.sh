mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3.5-27b-bf16-team \
  --label firesteel=qwen3.5-27b-bf16-team \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 Qwen/Qwen3.5-27B \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3.5-27b-bf16-team \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 16384 \
  --max-num-seqs 8
