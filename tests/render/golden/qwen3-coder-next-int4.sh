mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3-coder-next-int4 \
  --label firesteel=qwen3-coder-next-int4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e VLLM_MARLIN_USE_ATOMIC_ADD=1 \
  vllm/vllm-openai:v0.28.0 Intel/Qwen3-Coder-Next-int4-AutoRound \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3-coder-next-int4 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 16384 \
  --override-generation-config '{"temperature":1.0,"top_p":0.95,"top_k":40}' \
  --max-model-len 32768 \
  --max-num-seqs 8
