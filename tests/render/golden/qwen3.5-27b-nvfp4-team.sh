mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3.5-27b-nvfp4-team \
  --label firesteel=qwen3.5-27b-nvfp4-team \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3.5-27b-nvfp4-team \
  --max-num-batched-tokens 8192 \
  --reasoning-parser qwen3 \
  --max-model-len 16384 \
  --max-num-seqs 32
