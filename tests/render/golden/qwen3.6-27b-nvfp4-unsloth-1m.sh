mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3.6-27b-nvfp4-unsloth-1m \
  --label firesteel=qwen3.6-27b-nvfp4-unsloth-1m \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 \
  vllm/vllm-openai:v0.28.0 unsloth/Qwen3.6-27B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3.6-27b-nvfp4-unsloth-1m \
  --kv-cache-dtype fp8 \
  --hf-overrides '{"text_config":{"rope_parameters":{"mrope_interleaved":true,"mrope_section":[11,11,10],"rope_type":"yarn","rope_theta":10000000,"partial_rotary_factor":0.25,"factor":4.0,"original_max_position_embeddings":262144}}}' \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 1010000 \
  --max-num-seqs 1
