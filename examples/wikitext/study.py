"""Sixteen position schemes on WikiText-2: trained at 128 tokens, tested up to 1,024.

The thirteen settings of "On Position Embeddings in BERT" (Wang et al. 2021) as language
models, and rope, alibi and t5. With one seed all see the same batches and start from the
same shared weights. Each scheme is trained for a quarter of the budget with three learning
rates; the one with the lowest valid loss goes on to the end. One scheme is trained with five
seeds, and gaps under two of their standard deviations are called ties.

SOURCE is the archive or folder that prepare.py takes. DEST gets every run, study.md and the
plot. What is finished is not done again, so the same command goes on after an interruption.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from prepare import PrepareError, prepare_subword

ROOT = Path(__file__).resolve().parents[2]

SCHEMES = {
    "none": "none",
    "fl-APE": "learned",
    "fs-APE": "sinusoidal(layout=interleaved)",
    "ls-APE": "learnable-sinusoidal",
    "fl-RPE": "shaw",
    "fs-RPE": "sinusoidal-relative",
    "ls-RPE": "learnable-sinusoidal-relative",
    "fl-APE + fl-RPE": "learned+shaw",
    "fl-APE + fs-RPE": "learned+sinusoidal-relative",
    "fl-APE + ls-RPE": "learned+learnable-sinusoidal-relative",
    "ls-APE + fl-RPE": "learnable-sinusoidal+shaw",
    "ls-APE + fs-RPE": "learnable-sinusoidal+sinusoidal-relative",
    "ls-APE + ls-RPE": "learnable-sinusoidal+learnable-sinusoidal-relative",
    "rope": "rope",
    "alibi": "alibi",
    "t5": "t5",
}
NOISE = "fs-APE"
SEEDS = (1, 2, 3, 4, 5)
LEARNING_RATES = ("2e-3", "4e-3", "8e-3")
UPDATES = 400
QUARTER = UPDATES // 4
PIECES = 8000
ARTICLES = 20
LENGTHS = (128, 256, 512, 1024)
STRIDES = (2, 4)

TRAIN = [
    *("--task", "language_modeling", "--user-dir", str(ROOT / "pe_fairseq")),
    *("--arch", "pe_lm", "--decoder-layers", "4", "--decoder-embed-dim", "128"),
    *("--decoder-ffn-embed-dim", "512", "--decoder-attention-heads", "4"),
    *("--share-decoder-input-output-embed", "--dropout", "0"),
    *("--optimizer", "adam", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "1"),
    # by the number of updates alone, so that a run of a quarter is the start of a whole one
    *("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "50"),
    *("--warmup-init-lr", "1e-7", "--tokens-per-sample", "128", "--max-tokens", "2048"),
    *("--no-epoch-checkpoints", "--save-interval-updates", "200"),
    *("--keep-interval-updates", "1"),
    *("--log-format", "json", "--log-interval", "20"),
]


@dataclass(frozen=True)
class Run:
    """One training run: ``folder`` holds its checkpoint, log and results."""

    name: str
    rate: str
    seed: int
    folder: Path

    @property
    def checkpoint(self):
        return self.folder / "checkpoint_last.pt"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="SOURCE")
    parser.add_argument("dest", type=Path, metavar="DEST", help="a folder to work in")
    parser.add_argument(
        "--articles",
        type=int,
        default=ARTICLES,
        metavar="N",
        help=f"of valid and test take the first N articles ({ARTICLES})",
    )
    options = parser.parse_args()
    try:
        data = options.dest / "data"
        prepare_subword(options.source, data, PIECES, options.articles)
        study(data, options.dest)
    except (PrepareError, OSError) as error:
        sys.exit(f"study.py: error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(f"study.py: error: this failed: {' '.join(error.cmd)}")
    except KeyboardInterrupt:
        sys.exit("study.py: interrupted; the same command goes on from here")


def study(data, dest):
    chosen = {}
    for name in SCHEMES:
        trials = [run_of(dest, name, rate, 1) for rate in LEARNING_RATES]
        for run in trials:
            train(run, data, QUARTER)
        chosen[name] = min(trials, key=lambda run: valid_loss(run, QUARTER))
        train(chosen[name], data, UPDATES)
        evaluate(chosen[name], data)
    noise = [run_of(dest, NOISE, chosen[NOISE].rate, seed) for seed in SEEDS]
    for run in noise:
        train(run, data, UPDATES)
        evaluate(run, data)
    (dest / "study.md").write_text(table(chosen, noise), encoding="utf-8")
    script(
        "report_extrapolation",
        *(run.folder / "test.jsonl" for run in chosen.values()),
        *("--out", dest),
    )
    print((dest / "study.md").read_text(encoding="utf-8"))


def run_of(dest, name, rate, seed):
    folder = dest / re.sub("[^a-zA-Z0-9]+", "-", name) / f"lr{rate}-seed{seed}"
    return Run(name, rate, seed, folder)


def train(run, data, updates):
    """Train up to ``updates``, from where the run stands."""
    done = run.folder / f"trained-{updates}.json"
    if done.exists():
        return
    run.folder.mkdir(parents=True, exist_ok=True)
    spec = SCHEMES[run.name]
    print(f"{run.folder}: '{spec}' to {updates} updates", flush=True)
    start = time.monotonic()
    command = [
        *("fairseq-train", str(data), *TRAIN, "--decoder-position", spec),
        *("--lr", run.rate, "--seed", str(run.seed), "--max-update", str(updates)),
        *("--save-dir", str(run.folder)),
    ]
    with open(run.folder / "output", "ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise subprocess.CalledProcessError(status, [*command, f"(see {run.folder}/output)"])
    cost = {"seconds": time.monotonic() - start, "peak_mib": usage.ru_maxrss / 1024}
    done.write_text(json.dumps(cost))


def logged(run, tag):
    """What fairseq-train has logged under ``tag``, as dicts."""
    pattern = rf"\| {tag} \| (\{{.*\}})$"
    text = (run.folder / "output").read_text()
    return [json.loads(line) for line in re.findall(pattern, text, re.MULTILINE)]


def valid_loss(run, updates):
    lines = [line for line in logged(run, "valid") if int(line["valid_num_updates"]) == updates]
    return float(lines[-1]["valid_loss"])


def evaluate(run, data):
    lengths = ("--lengths", ",".join(map(str, LENGTHS)))
    for split in ("valid", "test"):
        script(
            *("eval_extrapolation", run.checkpoint, data, "--gen-subset", split, *lengths),
            *("--results-path", run.folder / f"{split}.jsonl"),
            done=run.folder / f"{split}.done",
        )
    script(
        *("eval_position_stride", run.checkpoint, data, "--offsets", "0"),
        *("--strides", ",".join(map(str, STRIDES))),
        *("--results-path", run.folder / "stride.jsonl"),
        done=run.folder / "stride.done",
    )


def script(name, *arguments, done=None):
    if done is None or not done.exists():
        path = ROOT / "scripts" / f"{name}.py"
        subprocess.run([sys.executable, str(path), *map(str, arguments)], check=True)
        if done is not None:
            done.touch()


def perplexities(run):
    """Per-word perplexities of a run by column; None where they are undefined."""
    found = {}
    for split in ("valid", "test"):
        for line in results(run, split):
            window = line["signature"]["window"]
            found[split, window] = line.get("perplexity_per_word")
    for line in results(run, "stride"):
        signature = line["signature"]
        key = ("stride", signature["position_stride"], signature["window"])
        found[key] = line.get("perplexity_per_word")
    return found


def results(run, name):
    text = (run.folder / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def table(chosen, noise):
    """The study's tables in Markdown."""
    of_seeds = [perplexities(run) for run in noise]
    columns = [(split, length) for split in ("valid", "test") for length in LENGTHS]
    for stride in STRIDES:
        window = LENGTHS[0] // stride
        columns += [("stride", stride, window), ("stride", 1, window)]
    spread = {c: statistics.stdev(found[c] for found in of_seeds) for c in columns}
    found = {name: perplexities(run) for name, run in chosen.items()}
    best = {c: min(row[c] for row in found.values() if row[c] is not None) for c in columns}

    def cell(value, column):
        if value is None:
            return "undefined"
        tie = value - best[column] < 2 * spread[column]
        return f"**{value:.1f}**" if tie else f"{value:.1f}"

    heading = ["scheme", "`--decoder-position`"]
    heading += [f"{split} {length:,}" for split, length in columns[:8]]
    heading += [f"{'control' if s == 1 else f'stride {s}'}, {w}" for _, s, w in columns[8:]]
    rows = [
        [name, f"`{SCHEMES[name]}`", *(cell(row[c], c) for c in columns)]
        for name, row in found.items()
    ]
    rows.append([f"sd of {len(noise)} seeds", NOISE, *(f"{spread[c]:.1f}" for c in columns)])
    text = [
        "Perplexity per word. Bold: within two standard deviations (last row) of the best in",
        "its column, a tie.",
        "",
        *markdown(heading, rows),
        "",
        *markdown(
            ["scheme", "learning rate", "position parameters", "tokens/s", "peak MiB"],
            costs(chosen),
        ),
    ]
    return "\n".join(text) + "\n"


def costs(chosen):
    plain = parameters(chosen["none"])
    for name, run in chosen.items():
        speeds = [float(line["wps"]) for line in logged(run, "train_inner")]
        done = json.loads((run.folder / f"trained-{UPDATES}.json").read_text())
        yield [
            name,
            run.rate,
            f"{parameters(run) - plain:,}",
            f"{statistics.median(speeds):,.0f}",
            f"{done['peak_mib']:,.0f}",
        ]


def parameters(run):
    text = (run.folder / "output").read_text()
    return int(re.search(r"model params: ([\d,]+)", text)[1].replace(",", ""))


def markdown(heading, rows):
    yield "| " + " | ".join(heading) + " |"
    yield "|---|" + "---:|" * (len(heading) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


if __name__ == "__main__":
    main()
