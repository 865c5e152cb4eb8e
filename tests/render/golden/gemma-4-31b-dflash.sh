mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-gemma-4-31b-dflash \
  --label firesteel=gemma-4-31b-dflash \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  -e HF_TOKEN \
  vllm/vllm-openai:v0.28.0 google/gemma-4-31B-it \
  --host 0.0.0.0 \
  --port 8000 \
  --served-model-name gemma-4-31b-dflash \
  --speculative-config '{"method":"dflash","model":"RedHatAI/gemma-4-31B-it-speculator.dflash","num_speculative_tokens":7}' \
  --tool-call-parser gemma4 \
  --reasoning-parser gemma4 \
  --enable-auto-tool-choice \
  --max-num-batched-tokens 8192 \
  --max-model-len 32768 \
  --max-num-seqs 2
