mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-nemotron-3.5-lightning-nvfp4-sglang \
  --label firesteel=nemotron-3.5-lightning-nvfp4-sglang \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  lmsysorg/sglang:v0.5.21 python3 -m sglang.launch_server \
  --model-path nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name nemotron-3.5-lightning-nvfp4-sglang \
  --mamba-ssm-dtype float16 \
  --reasoning-parser nemotron_3 \
  --tool-call-parser qwen3_coder \
  --disable-flashinfer-autotune \
  --sleep-on-idle \
  --enable-metrics \
  --context-length 262144 \
  --max-running-requests 8
