cat > /etc/systemd/system/v.service <<EOF
[Service]
ExecStart=/usr/bin/docker run --gpus all vllm/vllm-openai:v0.24.0 org/m --max-num-seqs 3
EOF
