mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-nemotron-3.5-lightning-nvfp4 \
  --label firesteel=nemotron-3.5-lightning-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name nemotron-3.5-lightning-nvfp4 \
  --kv-cache-dtype fp8 \
  --moe-backend marlin \
  --mamba-backend flashinfer \
  --mamba-cache-mode align \
  --load-format fastsafetensors \
  --tool-call-parser qwen3_xml \
  --enable-auto-tool-choice \
  --reasoning-parser nemotron_v3 \
  --max-num-batched-tokens 16384 \
  --override-generation-config '{"temperature":1.0,"top_p":1.0}' \
  --max-model-len 262144 \
  --max-num-seqs 8
