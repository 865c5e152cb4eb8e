mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3-235b-gptq-int4-two-sparks \
  --label firesteel=qwen3-235b-gptq-int4-two-sparks \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 Qwen/Qwen3-235B-A22B-GPTQ-Int4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3-235b-gptq-int4-two-sparks \
  --tensor-parallel-size 2 \
  --nnodes 2 \
  --node-rank 0 \
  --master-addr "$HEAD" \
  --tool-call-parser hermes \
  --reasoning-parser qwen3 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 32768 \
  --max-num-seqs 4
