#!/usr/bin/env bash
# Perplexity on the test set: blocks of 256 scored tokens, each after 256 of context.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipes.sh"
usage 2 "$0 DATA CHECKPOINT [more fairseq-eval-lm flags]" "$@"

# fairseq's default of 36,000 tokens a batch would need some 40 GB for the softmax alone
exec fairseq-eval-lm "$1" --path "$2" --user-dir "$USER_DIR" --task language_modeling \
  --gen-subset test --sample-break-mode none \
  --tokens-per-sample 512 --context-window 256 --max-tokens 1024 "${@:3}"
