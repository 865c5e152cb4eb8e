mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-diffusiongemma-26b-a4b-nvfp4 \
  --label firesteel=diffusiongemma-26b-a4b-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.28.0 nvidia/diffusiongemma-26B-A4B-it-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name diffusiongemma-26b-a4b-nvfp4 \
  --attention-backend TRITON_ATTN \
  --diffusion-config '{"canvas_length":256}' \
  --override-generation-config '{"max_new_tokens":null}' \
  --default-chat-template-kwargs '{"enable_thinking":true}' \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 65536 \
  --max-num-seqs 4
