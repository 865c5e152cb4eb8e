mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-nemotron-3-nano-nvfp4-1m \
  --label firesteel=nemotron-3-nano-nvfp4-1m \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 \
  vllm/vllm-openai:v0.26.0 nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name nemotron-3-nano-nvfp4-1m \
  --kv-cache-dtype fp8 \
  --moe-backend marlin \
  --linear-backend marlin \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --reasoning-parser nemotron_v3 \
  --max-num-batched-tokens 8192 \
  --override-generation-config '{"temperature":1.0,"top_p":1.0}' \
  --max-model-len 1000000 \
  --max-num-seqs 1
