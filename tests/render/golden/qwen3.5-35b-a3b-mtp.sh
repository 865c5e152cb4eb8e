mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3.5-35b-a3b-mtp \
  --label firesteel=qwen3.5-35b-a3b-mtp \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 Qwen/Qwen3.5-35B-A3B \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3.5-35b-a3b-mtp \
  --speculative-config '{"method":"mtp","num_speculative_tokens":2,"num_speculative_tokens_per_batch_size":[[1,4,2],[5,512,0]]}' \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 131072 \
  --max-num-seqs 4
