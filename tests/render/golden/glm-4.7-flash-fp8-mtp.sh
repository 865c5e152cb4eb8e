mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-glm-4.7-flash-fp8-mtp \
  --label firesteel=glm-4.7-flash-fp8-mtp \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  vllm/vllm-openai:v0.28.0 whiskeywhiskey/Huihui-GLM-4.7-Flash-abliterated-FP8-Dynamic \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name glm-4.7-flash-fp8-mtp \
  --speculative-config '{"method":"mtp","num_speculative_tokens":1}' \
  --tool-call-parser glm47 \
  --reasoning-parser glm45 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --override-generation-config '{"temperature":1.0,"top_p":0.95}' \
  --max-model-len 131072 \
  --max-num-seqs 2
