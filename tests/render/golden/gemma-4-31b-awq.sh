mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gemma-4-31b-awq \
  --label firesteel=gemma-4-31b-awq \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.26.0 cyankiwi/gemma-4-31B-it-AWQ-4bit \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gemma-4-31b-awq \
  --kv-cache-dtype fp8 \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 131072 \
  --max-num-seqs 4
