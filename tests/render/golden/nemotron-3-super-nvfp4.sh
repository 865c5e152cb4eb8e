mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-nemotron-3-super-nvfp4 \
  --label firesteel=nemotron-3-super-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e VLLM_FLOAT32_MATMUL_PRECISION=high \
  vllm/vllm-openai:v0.24.0-ubuntu2404 nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name nemotron-3-super-nvfp4 \
  --kv-cache-dtype fp8 \
  --attention-backend flashinfer \
  --mamba-ssm-cache-dtype float32 \
  --max-num-batched-tokens 16384 \
  --reasoning-parser nemotron_v3 \
  --tool-call-parser qwen3_xml \
  --enable-auto-tool-choice \
  --max-model-len 131072 \
  --max-num-seqs 4
