#!/bin/sh
# One model in three formats behind one Service: BF16 -> FP8 and NVFP4, audited, planned for a Spark, and swapped in
# Kubernetes without a change for its clients.
#
#   FIRESTEEL=./firesteel sh examples/quantize-and-swap.sh FOLDER
#
# FOLDER is a checkpoint in BF16; the others are written beside it. GLM-4.7-Flash has 62 GB; with its shapes, random
# weights and two layers of 47 there is one of 4 GB, which needs 10 GB in all:
#
#   scripts/make-random-checkpoint src/firesteel/data/models/GadflyII/GLM-4.7-Flash-NVFP4.yaml glm-4.7-flash --layers 2
set -eu
firesteel=${FIRESTEEL:-firesteel}
bf16=${1:?a folder with a checkpoint in BF16}
fp8=$bf16-fp8
nvfp4=$bf16-nvfp4
say() { printf '\n$ %s\n' "$*"; }

say "firesteel quantize $bf16 --to fp8-dynamic"
"$firesteel" quantize "$bf16" --to fp8-dynamic --out "$fp8"

say "firesteel quantize $bf16 --to nvfp4"
"$firesteel" quantize "$bf16" --to nvfp4 --out "$nvfp4"

say "firesteel audit: is each of them what an engine will take it for?"
"$firesteel" audit "$fp8"
"$firesteel" audit "$nvfp4"

say "firesteel plan --host gb10: does it fit a Spark, and how fast is it?"
for model in "$bf16" "$fp8" "$nvfp4"; do
    "$firesteel" plan "$model" --host gb10
done

say "firesteel render --as kubernetes: three Deployments behind one Service, of which the first runs"
"$firesteel" render "$bf16" "$fp8" "$nvfp4" --as kubernetes --output "$bf16.yaml"

say "firesteel render --as kubernetes-swap: change the one that runs"
"$firesteel" render "$bf16" "$fp8" "$nvfp4" --as kubernetes-swap
