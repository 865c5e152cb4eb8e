mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gemma-4-31b-bf16-team \
  --label firesteel=gemma-4-31b-bf16-team \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.26.0 google/gemma-4-31B-it \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gemma-4-31b-bf16-team \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 16384 \
  --max-num-seqs 4
