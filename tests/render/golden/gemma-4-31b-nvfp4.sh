mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gemma-4-31b-nvfp4 \
  --label firesteel=gemma-4-31b-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.26.0 nvidia/Gemma-4-31B-IT-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gemma-4-31b-nvfp4 \
  --kv-cache-dtype fp8 \
  --linear-backend marlin \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 131072 \
  --max-num-seqs 4
