"""Guard: an evaluation that would leave text out is an error.

Stock ``fairseq-eval-lm`` drops blocks longer than the model's limit, prints the
perplexity of what is left, and exits 0.
"""

import contextvars

from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask

from ..errors import UserError
from .patching import replace

_evaluating = contextvars.ContextVar("inside eval_lm_dataloader", default=False)


def _dataloader(stock_dataloader):
    def eval_lm_dataloader(self, *args, **kwargs):
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


def install():
    """Make eval-lm refuse to skip blocks."""
    replace(LanguageModelingTask, "eval_lm_dataloader", _dataloader)
    replace(FairseqTask, "filter_indices_by_size", _filter)
