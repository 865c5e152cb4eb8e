mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-mistral-small-4-nvfp4-eagle \
  --label firesteel=mistral-small-4-nvfp4-eagle \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.26.0 mistralai/Mistral-Small-4-119B-2603-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name mistral-small-4-nvfp4-eagle \
  --kv-cache-dtype fp8 \
  --tokenizer-mode mistral \
  --config-format mistral \
  --load-format mistral \
  --moe-backend marlin \
  --linear-backend marlin \
  --speculative-config '{"method":"eagle","model":"mistralai/Mistral-Small-4-119B-2603-eagle","num_speculative_tokens":3,"max_model_len":65536}' \
  --tool-call-parser mistral \
  --enable-auto-tool-choice \
  --reasoning-parser mistral \
  --max-num-batched-tokens 8192 \
  --override-generation-config '{"temperature":0.7}' \
  --max-model-len 65536 \
  --max-num-seqs 2
