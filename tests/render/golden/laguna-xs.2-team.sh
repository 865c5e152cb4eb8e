mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-laguna-xs.2-team \
  --label firesteel=laguna-xs.2-team \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e VLLM_USE_DEEP_GEMM=0 \
  vllm/vllm-openai:v0.28.0 poolside/Laguna-XS.2 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name laguna-xs.2-team \
  --tool-call-parser poolside_v1 \
  --reasoning-parser poolside_v1 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 16384 \
  --max-num-seqs 16
