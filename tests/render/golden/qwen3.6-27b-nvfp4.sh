mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3.6-27b-nvfp4 \
  --label firesteel=qwen3.6-27b-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 nvidia/Qwen3.6-27B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3.6-27b-nvfp4 \
  --kv-cache-dtype fp8 \
  --speculative-config '{"method":"mtp","num_speculative_tokens":3}' \
  --load-format fastsafetensors \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 262144 \
  --max-num-seqs 7
