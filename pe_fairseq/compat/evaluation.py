"""Guards: no text, or an evaluation that would leave text out, is an error.

Nor may a batch be left out: fairseq 0.12.3 drops the last one, of training, validation and
generation, where its size is no multiple of ``--required-batch-size-multiple`` (8).

Stock ``fairseq-eval-lm`` drops blocks longer than the model's limit, prints the
perplexity of what is left, and exits 0. An empty split fails where it is mapped into memory.
"""

import contextvars
import os

import numpy
from fairseq import utils
from fairseq.data import data_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask

from ..errors import UserError
from .patching import replace

_evaluating = contextvars.ContextVar("inside eval_lm_dataloader", default=False)


def _load_dataset(stock_load):
    def load_dataset(self, split, *args, **kwargs):
        for folder in utils.split_paths(self.args.data):
            path = os.path.join(folder, split + ".bin")
            if self.args.tokens_per_sample < 1:
                raise UserError("--context-window must be below --tokens-per-sample")
            if os.path.isfile(path) and os.path.getsize(path) == 0:
                raise UserError(f"the split '{split}' in {folder} holds no text")
        return stock_load(self, split, *args, **kwargs)

    return load_dataset


def _dataloader(stock_dataloader):
    def eval_lm_dataloader(self, *args, **kwargs):
        if distributed_utils.get_global_world_size() > 1:
            raise UserError(
                "fairseq-eval-lm in several processes prints the perplexity of one "
                "process's share of the text; run one process"
            )
        token = _evaluating.set(True)
        try:
            return stock_dataloader(self, *args, **kwargs)
        finally:
            _evaluating.reset(token)

    return eval_lm_dataloader


def _filter(stock_filter):
    def filter_indices_by_size(
        self, indices, dataset, max_positions=None, ignore_invalid_inputs=False
    ):
        kept = stock_filter(self, indices, dataset, max_positions, ignore_invalid_inputs)
        if _evaluating.get() and len(kept) < len(indices):
            longest = max(dataset.size(index) for index in indices)
            raise UserError(
                f"{len(indices) - len(kept)} of {len(indices)} blocks would be left out "
                f"of the evaluation: they have up to {longest} tokens, the model takes "
                f"{max_positions}. Use --tokens-per-sample {max_positions} or less"
            )
        return kept

    return filter_indices_by_size


def _batches(stock_batches):
    def batch_by_size(indices, *args, **kwargs):
        sizes, most = kwargs.get("num_tokens_vec"), kwargs.get("max_tokens")
        longest = numpy.max(sizes, initial=0) if sizes is not None else 0
        if most is not None and 0 < most < longest:
            # stock fails on it with an IndexError
            raise UserError(
                f"a block or sentence has {longest} tokens and a batch takes {most}; raise "
                "--max-tokens"
            )
        try:
            batches = list(stock_batches(indices, *args, **kwargs))
        except AssertionError as error:
            if "max_tokens" not in str(error):
                raise
            raise UserError(f"{error}; raise --max-tokens") from error
        kept = sum(map(len, batches))
        if kwargs.get("fixed_shapes") is None and kept < len(indices):
            batches.append(indices[kept:])
        return batches

    return batch_by_size


def install():
    """Make eval-lm refuse to skip blocks, and every command refuse an empty split."""
    replace(LanguageModelingTask, "load_dataset", _load_dataset)
    replace(LanguageModelingTask, "eval_lm_dataloader", _dataloader)
    replace(data_utils, "batch_by_size", _batches)
    replace(FairseqTask, "filter_indices_by_size", _filter)
