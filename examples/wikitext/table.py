"""Print a Markdown table of the runs of run_small.sh, from the logs in their folders."""

import json
import re
import sys
from pathlib import Path


def perplexity(log):
    """The perplexity that fairseq-eval-lm has logged."""
    return re.search(r"Perplexity: ([\d.]+)", log.read_text())[1]


def epochs(log):
    """What fairseq-train has logged at the end of each epoch, as dicts.

    A resumed epoch's last line counts what was done before, too.
    """
    lines = re.findall(r" \| train \| (\{.*\})$", log.read_text(), re.MULTILINE)
    return list({line["epoch"]: line for line in map(json.loads, lines)}.values())


print("| scheme | valid ppl | test ppl | seconds | updates | tokens/s |")
print("|---|---:|---:|---:|---:|---:|")
for run in map(Path, sys.argv[1:]):
    trained = epochs(run / "train.log")
    seconds = sum(float(epoch["train_train_wall"]) for epoch in trained)
    cells = [
        run.name,
        perplexity(run / "valid.log"),
        perplexity(run / "test.log"),
        f"{seconds:,.0f}",
        f"{int(trained[-1]['train_num_updates']):,}",
        f"{float(trained[-1]['train_wps']):,.0f}",
    ]
    print("| " + " | ".join(cells) + " |")
