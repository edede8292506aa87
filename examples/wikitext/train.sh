#!/usr/bin/env bash
# The basic recipe in one process: one GPU, or the CPU where there is none.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipes.sh"
usage 2 "[POSITION=sinusoidal] [SEED=1] $0 DATA SAVE_DIR [more fairseq-train flags]" "$@"

# fairseq would start a process on each GPU that it sees
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
exec fairseq-train "$1" --save-dir "$2" \
  "${BASIC[@]}" --update-freq "$BASIC_BATCHES" "${@:3}"
