mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gemma-4-31b-nvfp4-dflash \
  --label firesteel=gemma-4-31b-nvfp4-dflash \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.28.0 nvidia/Gemma-4-31B-IT-NVFP4 \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gemma-4-31b-nvfp4-dflash \
  --kv-cache-dtype bfloat16 \
  --linear-backend marlin \
  --speculative-config '{"method":"dflash","model":"RedHatAI/gemma-4-31B-it-speculator.dflash","num_speculative_tokens":7}' \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 65536 \
  --max-num-seqs 2
