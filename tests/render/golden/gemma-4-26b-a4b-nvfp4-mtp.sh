mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gemma-4-26b-a4b-nvfp4-mtp \
  --label firesteel=gemma-4-26b-a4b-nvfp4-mtp \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.28.0 nvidia/Gemma-4-26B-A4B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gemma-4-26b-a4b-nvfp4-mtp \
  --kv-cache-dtype fp8 \
  --speculative-config '{"method":"mtp","model":"google/gemma-4-26B-A4B-it-assistant","num_speculative_tokens":4,"moe_backend":"triton"}' \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 65536 \
  --max-num-seqs 2
