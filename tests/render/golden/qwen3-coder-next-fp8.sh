mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3-coder-next-fp8 \
  --label firesteel=qwen3-coder-next-fp8 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e VLLM_USE_DEEP_GEMM=0 \
  vllm/vllm-openai:v0.28.0 Qwen/Qwen3-Coder-Next-FP8 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3-coder-next-fp8 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --override-generation-config '{"temperature":1.0,"top_p":0.95,"top_k":40}' \
  --max-model-len 131072 \
  --max-num-seqs 4
