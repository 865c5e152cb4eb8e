mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3.5-122b-a10b-int4 \
  --label firesteel=qwen3.5-122b-a10b-int4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e VLLM_MARLIN_USE_ATOMIC_ADD=1 \
  vllm/vllm-openai:v0.28.0 Intel/Qwen3.5-122B-A10B-int4-AutoRound \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3.5-122b-a10b-int4 \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_xml \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 131072 \
  --max-num-seqs 4
