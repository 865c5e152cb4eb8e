TAG=v0.24.0
docker compose -f - up <<EOF
services:
  a:
    image: vllm/vllm-openai:$TAG
    command: org/m --max-num-seqs 3
EOF
