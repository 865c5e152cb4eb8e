mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-qwen3.8-27b-nvfp4-sglang-team \
  --label firesteel=qwen3.8-27b-nvfp4-sglang-team \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  lmsysorg/sglang:v0.5.21 python3 -m sglang.launch_server \
  --model-path RadixArk/Qwen3.8-27B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name qwen3.8-27b-nvfp4-sglang-team \
  --attention-backend flashinfer \
  --kv-cache-dtype fp8_e4m3 \
  --chunked-prefill-size 2048 \
  --mamba-ssm-dtype bfloat16 \
  --mamba-radix-cache-strategy extra_buffer \
  --reasoning-parser qwen3 \
  --tool-call-parser qwen3_coder \
  --disable-flashinfer-autotune \
  --sleep-on-idle \
  --enable-metrics \
  --context-length 16384 \
  --max-running-requests 32
