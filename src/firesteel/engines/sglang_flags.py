"""The long flags of SGLang's server, by how many words follow them.

Read out of `sglang/srt/server_args.py` of 0.5.9, where every flag is one `add_argument`, and a few that came
since.
"""

from __future__ import annotations

from firesteel.engines.flags import names

SWITCHES = names(
    """
    abort-on-priority-when-disabled allow-auto-truncate checkpoint-engine-wait-weights-before-ready
    collect-tokens-histogram constrained-json-disable-any-whitespace delete-ckpt-after-loading
    disable-chunked-prefix-cache disable-cuda-graph disable-cuda-graph-padding disable-custom-all-reduce
    disable-fast-image-processor disable-flashinfer-autotune
    disable-flashinfer-cutlass-moe-fp4-allgather disable-hicache-numa-detect disable-hybrid-swa-memory
    disable-outlines-disk-cache disable-overlap-schedule disable-radix-cache
    disable-shared-experts-fusion disable-tokenizer-batch-decode
    disaggregation-decode-enable-offload-kvcache enable-attn-tp-input-scattered
    enable-broadcast-mm-inputs-process enable-cache-report enable-cudagraph-gc
    enable-custom-logit-processor enable-deepep-moe enable-deterministic-inference
    enable-double-sparsity enable-dp-attention enable-dp-lm-head enable-draft-weights-cpu-backup
    enable-dynamic-batch-tokenizer enable-dynamic-chunking enable-eplb
    enable-expert-distribution-metrics enable-flashinfer-allreduce-fusion enable-fp32-lm-head
    enable-fused-qk-norm-rope enable-hierarchical-cache enable-layerwise-nvtx-marker enable-lmcache
    enable-lora enable-lora-overlap-loading enable-memory-saver enable-metrics
    enable-metrics-for-all-schedulers enable-mixed-chunk enable-mscclpp enable-multi-layer-eagle
    enable-multimodal enable-nan-detection enable-nccl-nvls enable-nsa-prefill-context-parallel
    enable-p2p-check enable-pdmux enable-piecewise-cuda-graph enable-precise-embedding-interpolation
    enable-prefill-delayer enable-prefix-mm-cache enable-priority-scheduling enable-profile-cuda-graph
    enable-request-time-stats-logging enable-return-hidden-states enable-return-routed-experts
    enable-single-batch-overlap enable-symm-mem enable-tokenizer-batch-encode enable-torch-compile
    enable-torch-compile-debug-mode enable-torch-symm-mem enable-trace enable-two-batch-overlap
    enable-weights-cpu-backup encoder-only export-metrics-to-file flashinfer-mla-disable-ragged
    grpc-mode is-embedding keep-mm-feature-on-device language-only log-requests mm-enable-dp-encoder
    quantize-and-serve remote-instance-weight-loader-start-seed-via-transfer-engine
    schedule-low-priority-values-first show-time-cost skip-server-warmup skip-tokenizer-init
    sleep-on-idle stream-output triton-attention-reduce-in-fp32 trust-remote-code
    weight-loader-disable-mmap
    """
)
"""No word follows."""

LISTS = names(
    """
    bucket-e2e-request-latency bucket-inter-token-latency bucket-time-to-first-token cuda-graph-bs
    cuda-graph-bs-decode custom-weight-loader debug-tensor-dump-layers encoder-urls
    generation-tokens-buckets log-requests-target lora-paths lora-target-modules numa-node
    piecewise-cuda-graph-tokens prefill-delayer-forward-passes-buckets
    prefill-delayer-wait-seconds-buckets prompt-tokens-buckets tokenizer-metrics-allowed-custom-labels
    uvicorn-access-log-exclude-prefixes
    """
)
"""Every word up to the next flag."""

VALUES = names(
    """
    admin-api-key api-key attention-backend attention-context-parallel-size attn-cp-size base-gpu-id
    chat-template chunked-prefill-size completion-template config constrained-json-whitespace-pattern
    context-length cpu-offload-gb crash-dump-folder cuda-graph-config cuda-graph-max-bs
    cuda-graph-max-bs-decode custom-sigquit-handler data-parallel-size debug-tensor-dump-inject
    debug-tensor-dump-input-file debug-tensor-dump-output-folder decode-attention-backend
    decode-log-interval decrypted-config-file decrypted-draft-config-file deepep-config deepep-mode
    device disaggregation-bootstrap-port disaggregation-decode-dp disaggregation-decode-polling-interval
    disaggregation-decode-tp disaggregation-ib-device disaggregation-mode disaggregation-prefill-pp
    disaggregation-transfer-backend dist-init-addr dist-timeout dllm-algorithm dllm-algorithm-config
    download-dir dp-size ds-channel-config-path ds-heavy-channel-num ds-heavy-channel-type
    ds-heavy-token-num ds-sparse-decode-threshold dtype dynamic-batch-tokenizer-batch-size
    dynamic-batch-tokenizer-batch-timeout elastic-ep-backend encoder-transfer-backend ep
    ep-dispatch-algorithm ep-num-redundant-experts ep-size eplb-algorithm
    eplb-min-rebalancing-utilization-threshold eplb-rebalance-layers-per-chunk
    eplb-rebalance-num-iterations expert-distribution-recorder-buffer-size
    expert-distribution-recorder-mode expert-parallel-size export-metrics-to-file-dir
    extra-metric-labels fastapi-root-path file-storage-path flashinfer-mxfp4-moe-precision forward-hooks
    fp4-gemm-backend fp8-gemm-backend gc-warning-threshold-secs gpu-id-step grammar-backend
    hf-chat-template-name hicache-io-backend hicache-mem-layout hicache-ratio hicache-size
    hicache-storage-backend hicache-storage-backend-extra-config hicache-storage-prefetch-policy
    hicache-write-policy hierarchical-sparse-attention-extra-config host hybrid-kvcache-ratio
    init-expert-location json-model-override-args kt-cpuinfer kt-max-deferred-experts-per-token
    kt-method kt-num-gpu-experts kt-threadpool-count kt-weight-path kv-cache-dtype kv-events-config
    limit-mm-data-per-request load-balance-method load-format log-level log-level-http
    log-requests-format log-requests-level lora-backend lora-eviction-policy mamba-backend
    mamba-full-memory-ratio mamba-scheduler-strategy mamba-ssm-dtype mamba-track-interval
    max-loaded-loras max-lora-chunk-size max-lora-rank max-loras-per-batch max-mamba-cache-size
    max-prefill-tokens max-queued-requests max-running-requests max-total-tokens mem-fraction-static
    mm-attention-backend mm-max-concurrent-calls mm-per-request-timeout mm-process-config model
    model-checksum model-impl model-loader-extra-config model-path modelopt-checkpoint-restore-path
    modelopt-checkpoint-save-path modelopt-export-path modelopt-quant moe-a2a-backend
    moe-data-parallel-size moe-dense-tp-size moe-dp-size moe-runner-backend mooncake-ib-device
    multi-item-scoring-delimiter nccl-init-addr nccl-port nnodes node-rank nsa-decode-backend
    nsa-prefill-backend nsa-prefill-cp-mode num-continuous-decode-steps num-reserved-decode-tokens
    offload-group-size offload-mode offload-num-in-group offload-prefetch-step otlp-traces-endpoint
    page-size pdmux-config-path piecewise-cuda-graph-compiler piecewise-cuda-graph-max-tokens
    pipeline-parallel-size port pp-async-batch-depth pp-max-micro-batch-size pp-size
    preferred-sampling-params prefill-attention-backend prefill-delayer-max-delay-passes
    prefill-delayer-token-usage-low-watermark prefill-max-requests prefill-round-robin-balance
    priority-scheduling-preemption-threshold quantization quantization-param-path radix-eviction-policy
    random-seed reasoning-parser remote-instance-weight-loader-backend
    remote-instance-weight-loader-seed-instance-ip
    remote-instance-weight-loader-seed-instance-service-port
    remote-instance-weight-loader-send-weights-group-ports revision rl-on-policy-target rl-quant-profile
    sampling-backend sampling-defaults schedule-conservativeness schedule-policy scheduler-recv-interval
    served-model-name sm-group-num soft-watchdog-timeout speculative-accept-threshold-acc
    speculative-accept-threshold-single speculative-algorithm speculative-attention-mode
    speculative-draft-attention-backend speculative-draft-load-format speculative-draft-model
    speculative-draft-model-path speculative-draft-model-quantization speculative-draft-model-revision
    speculative-eagle-topk speculative-moe-a2a-backend speculative-moe-runner-backend
    speculative-ngram-branch-length speculative-ngram-capacity speculative-ngram-match-type
    speculative-ngram-max-bfs-breadth speculative-ngram-max-match-window-size
    speculative-ngram-min-bfs-breadth speculative-ngram-min-match-window-size
    speculative-num-draft-tokens speculative-num-steps speculative-token-map stream-interval
    swa-full-tokens-ratio tbo-token-distribution-threshold tensor-parallel-size
    tokenizer-metrics-custom-labels-header tokenizer-mode tokenizer-path tokenizer-worker-num
    tool-call-parser tool-server torch-compile-max-bs torchao-config tp-size
    triton-attention-num-kv-splits triton-attention-split-tile-size warmups watchdog-timeout
    weight-version
    """
)
"""One word."""
