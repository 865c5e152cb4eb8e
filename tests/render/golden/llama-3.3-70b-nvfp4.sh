mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-llama-3.3-70b-nvfp4 \
  --label firesteel=llama-3.3-70b-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.28.0 nvidia/Llama-3.3-70B-Instruct-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name llama-3.3-70b-nvfp4 \
  --tool-call-parser llama3_json \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 65536 \
  --max-num-seqs 2
