# The recipes' flags, for the scripts beside this file to source.
# POSITION and SEED come from the environment.

POSITION=${POSITION:-sinusoidal}
SEED=${SEED:-1}

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
USER_DIR=$(cd "$HERE/../../pe_fairseq" && pwd)

COMMON=(
  --user-dir "$USER_DIR" --task language_modeling --sample-break-mode none
  --decoder-position "$POSITION" --seed "$SEED"
)

# Each epoch's checkpoint is a gigabyte, so only the last and the best are kept. One in
# mid-epoch limits what a stopped run loses to 1000 updates.
CHECKPOINTS=(
  --no-epoch-checkpoints --save-interval-updates 1000 --keep-interval-updates 1
)

# The WikiText-103 settings released with PermuteFormer, which are fairseq's own
# (fairseq's in fp16, PermuteFormer's in fp32).
BASIC=(
  "${COMMON[@]}" "${CHECKPOINTS[@]}"
  --arch pe_lm --share-decoder-input-output-embed --dropout 0.1
  --optimizer adam --adam-betas "(0.9, 0.98)" --weight-decay 0.01 --clip-norm 0
  --lr 5e-4 --lr-scheduler inverse_sqrt --warmup-updates 4000 --warmup-init-lr 1e-7
  --tokens-per-sample 512 --max-tokens 2048 --max-update 50000
)
# 32 batches of max-tokens 2048 are the 65,536 tokens of an update.
BASIC_BATCHES=32

# Adaptive inputs (Baevski & Auli 2019) as in fairseq's own example; the architecture
# has the sizes.
ADAPTIVE=(
  "${COMMON[@]}" "${CHECKPOINTS[@]}"
  --arch pe_lm_wiki103 --criterion adaptive_loss --ddp-backend legacy_ddp
  --optimizer nag --clip-norm 0.1
  --lr 1 --lr-scheduler cosine --t-mult 2 --lr-period-updates 270000 --lr-shrink 0.75
  --warmup-updates 16000 --warmup-init-lr 1e-7 --min-lr 1e-4 --stop-min-lr 1e-9
  --tokens-per-sample 3072 --max-tokens 3072 --max-update 286000
)
# fairseq's example has update-freq 3 and does not say on how many GPUs; we take 8.
ADAPTIVE_BATCHES=24

# Small enough for two CPU cores: 1.2 million tokens, 0.6 of WikiText-2. The adaptive
# softmax is there for speed, as the full one over 33,280 words is most of the work at
# this width. Perplexities come from evaluate.sh alone.
SMALL=(
  "${COMMON[@]}"
  --no-epoch-checkpoints --save-interval-updates 200 --keep-interval-updates 1
  --disable-validation
  --arch pe_lm --decoder-layers 4 --decoder-embed-dim 128 --decoder-ffn-embed-dim 512
  --decoder-attention-heads 4 --dropout 0.1
  --criterion adaptive_loss --ddp-backend legacy_ddp
  --adaptive-softmax-cutoff 2000,10000 --adaptive-input --adaptive-input-cutoff 2000,10000
  --tie-adaptive-weights --tie-adaptive-proj
  --optimizer adam --adam-betas "(0.9, 0.98)" --weight-decay 0.01 --clip-norm 1
  --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 200 --warmup-init-lr 1e-7
  --tokens-per-sample 128 --max-tokens 2048 --max-update 600
)

# update_freq BATCHES PROCESSES: how many of an update's batches each process takes.
update_freq() {
  if (($1 % $2)); then
    echo "error: an update's $1 batches do not divide among $2 processes" >&2
    return 1
  fi
  echo $(($1 / $2))
}

# usage COUNT TEXT ARGUMENTS…: stop unless there are COUNT arguments or more.
usage() {
  if (($# - 2 < $1)); then
    echo "usage: $2" >&2
    exit 2
  fi
}
