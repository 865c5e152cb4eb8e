cat > run.sh <<'EOF'
docker run --gpus all vllm/vllm-openai:v0.24.0 org/m --max-num-seqs 3
EOF
