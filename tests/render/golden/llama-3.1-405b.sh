mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-llama-3.1-405b \
  --label firesteel=llama-3.1-405b \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.28.0 meta-llama/Llama-3.1-405B-Instruct \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name llama-3.1-405b \
  --max-model-len 8192 \
  --max-num-seqs 1
