mkdir -p ~/.cache/huggingface && \
docker run -d --name firesteel-phi-4-multimodal-nvfp4 \
  --label firesteel=phi-4-multimodal-nvfp4 \
  --gpus all \
  --ipc host \
  -p 127.0.0.1:8000:8000 \
  -v ~/.cache/huggingface:/hub \
  -e HF_HOME=/hub \
  --entrypoint= \
  vllm/vllm-openai:v0.28.0 \
  bash -c 'python3 -m pip install --no-cache-dir scipy && vllm serve nvidia/Phi-4-multimodal-instruct-NVFP4 --host 0.0.0.0 --port 8000 --served-model-name phi-4-multimodal-nvfp4 --trust-remote-code --max-num-batched-tokens 8192 --max-model-len 65536 --max-num-seqs 4'
