#!/usr/bin/env bash
# The whole chain on WikiText-2, on two CPU cores: prepare, train and evaluate three
# schemes, and write DEST/results.md. What is finished is not done again.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/recipes.sh"
usage 2 "[SEED=1] $0 SOURCE DEST [more fairseq-train flags]" "$@"
corpus=$1 dest=$2
train=("${SMALL[@]}" --log-format json "${@:3}")

mkdir -p "$dest"
printf '%s\n' "${train[@]:2}" >"$dest/flags.new"
if [[ -e $dest/flags ]] && ! cmp -s "$dest/flags" "$dest/flags.new"; then
  echo "error: $dest was begun with other flags or another SEED; take another folder" >&2
  exit 1
fi
mv "$dest/flags.new" "$dest/flags"

python "$HERE/prepare.py" "$corpus" "$dest/data"

for scheme in none learned sinusoidal; do
  run=$dest/$scheme
  mkdir -p "$run"
  if [[ ! -e $run/trained ]]; then
    fairseq-train "$dest/data" --save-dir "$run" "${train[@]}" \
      --decoder-position "$scheme" | tee -a "$run/train.log"
    touch "$run/trained"
  fi
  for split in valid test; do
    if [[ ! -e $run/$split.log ]]; then
      "$HERE/evaluate.sh" "$dest/data" "$run/checkpoint_last.pt" --gen-subset "$split" \
        --tokens-per-sample 128 --context-window 64 | tee "$run/$split.part"
      mv "$run/$split.part" "$run/$split.log"
    fi
  done
done

python "$HERE/table.py" "$dest"/{none,learned,sinusoidal} >"$dest/results.part"
mv "$dest/results.part" "$dest/results.md"
cat "$dest/results.md"
