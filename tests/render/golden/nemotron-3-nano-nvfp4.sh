mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-nemotron-3-nano-nvfp4 \
  --label firesteel=nemotron-3-nano-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  --entrypoint= \
  vllm/vllm-openai:v0.28.0 \
  bash -c 'mkdir -p /plugins && ln -sfn "$(hf download --quiet nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 nano_v3_reasoning_parser.py)" /plugins/nano_v3_reasoning_parser.py && vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 --host 0.0.0.0 --port 8000 --served-model-name nemotron-3-nano-nvfp4 --kv-cache-dtype fp8 --moe-backend marlin --tool-call-parser qwen3_coder --enable-auto-tool-choice --reasoning-parser-plugin /plugins/nano_v3_reasoning_parser.py --reasoning-parser nano_v3 --max-num-batched-tokens 8192 --override-generation-config '"'"'{"temperature":1.0,"top_p":1.0}'"'"' --max-model-len 262144 --max-num-seqs 8'
