mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3.6-27b-nvfp4-plain \
  --label firesteel=qwen3.6-27b-nvfp4-plain \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 nvidia/Qwen3.6-27B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3.6-27b-nvfp4-plain \
  --kv-cache-dtype fp8 \
  --max-num-batched-tokens 8192 \
  --load-format fastsafetensors \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --max-model-len 32768 \
  --max-num-seqs 16
