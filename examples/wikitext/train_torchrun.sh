#!/usr/bin/env bash
# The basic recipe in NPROC processes of this machine, one on each GPU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipes.sh"
usage 2 "[NPROC=8] [POSITION=sinusoidal] [SEED=1] $0 DATA SAVE_DIR [more fairseq-train flags]" "$@"

NPROC=${NPROC:-8}
frequency=$(update_freq "$BASIC_BATCHES" "$NPROC")
exec torchrun --standalone --nproc-per-node "$NPROC" "$(command -v fairseq-train)" \
  "$1" --save-dir "$2" "${BASIC[@]}" --update-freq "$frequency" "${@:3}"
