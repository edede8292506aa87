#!/usr/bin/env bash
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
    cat <<'TEXT'
usage: [QUICKSTART_SCHEMES='learned sinusoidal rope alibi'] scripts/quickstart.sh [flags]

Environment, installation, a corpus from the installed Python packages' own documentation,
one small language model for each position scheme, their perplexities at 1, 2, 4 and 8 times
the training length: a table on the screen, and in runs/quickstart

  extrapolation.md, .csv, .png   the table, all numbers, the plot
  commands.sh                    every command that ran
  tensorboard/                   training curves: tensorboard --logdir runs/quickstart/tensorboard
  data/                          the corpus
  SCHEME/                        checkpoints, log and results of one scheme

The same command goes on where it was stopped. QUICKSTART_SCHEMES are --decoder-position specs
with no blank inside. More fairseq-train flags may follow, such as --max-update 1000 for a
longer run; with other flags than before, give another folder (relative to the checkout):
QUICKSTART_OUT=runs/longer. PYTHON chooses the interpreter (3.11 or 3.12) of a new environment;
where pe-fairseq is installed in the active one, that is taken.
TEXT
}

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    usage
    exit
fi

schemes=${QUICKSTART_SCHEMES:-learned sinusoidal rope alibi}
out=${QUICKSTART_OUT:-runs/quickstart}
started=$SECONDS
trap 'echo; echo "stopped; the same command goes on from here" >&2; exit 130' INT TERM

stage() {
    printf '\n== %s (%d s)\n' "$1" $((SECONDS - started))
}

# run COMMAND…: run it, and note that it ran
run() {
    printf '%q ' "$@" >>"$out/commands.sh"
    echo >>"$out/commands.sh"
    "$@"
}

if ! command -v pe-fairseq >/dev/null || ! command -v python >/dev/null; then
    if ! "${PYTHON:-python3}" -c "import pydoc_data.topics, venv, ensurepip"; then
        echo "error: $("${PYTHON:-python3}" --version) lacks a part of the standard library" \
            "(above); name a complete Python 3.11 or 3.12: PYTHON=/path/to/python3 $0" >&2
        exit 1
    fi
    stage "environment"
    . scripts/environment.sh
    environment=$PWD/.venv
fi

# fairseq would start a process on each GPU that it sees
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-0}

train=(
    --user-dir pe_fairseq --task language_modeling --arch pe_lm
    --decoder-layers 4 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512
    --decoder-attention-heads 4 --share-decoder-input-output-embed --dropout 0
    --optimizer adam --adam-betas "(0.9, 0.98)" --clip-norm 1
    --lr 5e-3 --lr-scheduler cosine --warmup-updates 80 --warmup-init-lr 1e-7
    --tokens-per-sample 128 --max-tokens 2048 --max-update 400 --seed 1
    --no-epoch-checkpoints --save-interval-updates 50 --keep-interval-updates 1
    --max-valid-steps 10
    --log-interval 10 "$@"
)
mkdir -p "$out"
if compgen -G "$out/*/checkpoint*.pt" >/dev/null && [[ $(<"$out/flags") != "${train[*]}" ]]; then
    echo "error: $out was begun with other flags; take another folder: QUICKSTART_OUT=…" >&2
    exit 1
fi
echo "${train[*]}" >"$out/flags"

# before anything is trained, rather than when its turn comes
python - $schemes <<'PYTHON'
import sys
from pe_fairseq import errors, positions

with errors.one_line_errors():
    for spec in sys.argv[1:]:
        positions.parse(spec)
PYTHON

stage "corpus"
if [[ ! -e $out/data/manifest.json ]]; then
    run pe-fairseq corpus docs "$out/data"
fi

results=()
for scheme in $schemes; do
    name=${scheme//[^A-Za-z0-9+.=-]/_}
    folder=$out/$name
    stage "$scheme"
    mkdir -p "$folder"
    if [[ ! -e $folder/trained ]]; then
        run fairseq-train "$out/data" "${train[@]}" --decoder-position "$scheme" \
            --save-dir "$folder" --log-file "$folder/train.log" \
            --tensorboard-logdir "$out/tensorboard/$name"
        touch "$folder/trained"
    fi
    run python scripts/eval_extrapolation.py "$folder/checkpoint_last.pt" "$out/data" \
        --results-path "$folder/extrapolation.jsonl"
    results+=("$folder/extrapolation.jsonl")
done

stage "report"
run python scripts/report_extrapolation.py "${results[@]}" --out "$out"
stage "done"
if [[ -n ${environment:-} ]]; then
    echo "for fairseq-train, pe-fairseq and the other commands: . $environment/bin/activate"
fi
