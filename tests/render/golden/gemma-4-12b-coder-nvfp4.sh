mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gemma-4-12b-coder-nvfp4 \
  --label firesteel=gemma-4-12b-coder-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 sakamakismile/gemma-4-12B-coder-fable5-composer2.5-MTP-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gemma-4-12b-coder-nvfp4 \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --default-chat-template-kwargs '{"enable_thinking":true}' \
  --max-model-len 16384 \
  --max-num-seqs 4
