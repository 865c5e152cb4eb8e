mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-glm-4.7-flash-nvfp4 \
  --label firesteel=glm-4.7-flash-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 GadflyII/GLM-4.7-Flash-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name glm-4.7-flash-nvfp4 \
  --tool-call-parser glm47 \
  --reasoning-parser glm45 \
  --moe-backend marlin \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --override-generation-config '{"temperature":1.0,"top_p":0.95}' \
  --max-model-len 131072 \
  --max-num-seqs 4
