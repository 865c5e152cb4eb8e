mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gpt-oss-120b-sglang \
  --label firesteel=gpt-oss-120b-sglang \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  lmsysorg/sglang:v0.5.21 python3 -m sglang.launch_server \
  --model-path openai/gpt-oss-120b \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gpt-oss-120b-sglang \
  --attention-backend triton \
  --tool-call-parser gpt-oss \
  --reasoning-parser gpt-oss \
  --disable-flashinfer-autotune \
  --sleep-on-idle \
  --enable-metrics \
  --context-length 131072 \
  --max-running-requests 2
