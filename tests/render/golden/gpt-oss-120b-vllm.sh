mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gpt-oss-120b-vllm \
  --label firesteel=gpt-oss-120b-vllm \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 openai/gpt-oss-120b \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gpt-oss-120b-vllm \
  --moe-backend marlin \
  --tool-call-parser openai \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --override-generation-config '{"temperature":1.0,"top_p":1.0}' \
  --max-model-len 131072 \
  --max-num-seqs 4
