"""Print a Markdown table of the runs of run_small.sh, from the logs in their folders."""

import json
import re
import sys
from pathlib import Path


def perplexity(log):
    """The perplexity that fairseq-eval-lm has logged."""
    return re.search(r"Perplexity: ([\d.]+)", log.read_text())[1]


def last_epoch(log):
    """What fairseq-train has logged at the end of its last epoch, as a dict."""
    lines = re.findall(r" \| train \| (\{.*\})$", log.read_text(), re.MULTILINE)
    return json.loads(lines[-1])


print("| scheme | valid ppl | test ppl | seconds | updates | tokens/s |")
print("|---|---:|---:|---:|---:|---:|")
for run in map(Path, sys.argv[1:]):
    epoch = last_epoch(run / "train.log")
    cells = [
        run.name,
        perplexity(run / "valid.log"),
        perplexity(run / "test.log"),
        f"{float(epoch['train_wall']):,.0f}",
        f"{int(epoch['train_num_updates']):,}",
        f"{float(epoch['train_wps']):,.0f}",
    ]
    print("| " + " | ".join(cells) + " |")
