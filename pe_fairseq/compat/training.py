"""Repairs: a finished run stays as it is, and one that is resumed sees the same batches.

Stock fairseq looks at ``--max-update`` after an update, so every further start of a finished
run trains one update more and overwrites its checkpoints.

It also makes its batches once, in the order of the epoch in which it starts, and keeps them
for all epochs. A run resumed in the second epoch or later so has other batches than before,
and sees part of the text twice and part of it not at all.
"""

import inspect
import logging

from fairseq.tasks.fairseq_task import FairseqTask

from .commands import running
from .patching import replace

logger = logging.getLogger(__name__)


def _train(stock_train):
    def train(cfg, trainer, task, epoch_itr):
        limit, done = cfg.optimization.max_update, trainer.get_num_updates()
        if 0 < limit <= done:
            logger.info(f"{done} of {limit} updates are done: nothing to train")
            return [None], True
        return stock_train(cfg, trainer, task, epoch_itr)

    return train


def _batches(stock_batches):
    signature = inspect.signature(stock_batches)

    def get_batch_iterator(self, dataset, *args, **kwargs):
        given = signature.bind(self, dataset, *args, **kwargs)
        given.apply_defaults()
        epoch = given.arguments["epoch"]
        kept = self.can_reuse_epoch_itr(dataset) and not self.has_sharded_data("train")
        made = dataset in self.dataset_to_epoch_iter
        if made or not kept or getattr(self.cfg, "rebuild_batches", False):
            return stock_batches(*given.args, **given.kwargs)
        # the batches of a run that starts in its first epoch
        given.arguments["epoch"] = 1
        iterator = stock_batches(*given.args, **given.kwargs)
        dataset.set_epoch(epoch)
        iterator.epoch = max(epoch, 1)
        return iterator

    return get_batch_iterator


def install():
    """Check the number of updates before an epoch, and keep the batches of the first."""
    replace(FairseqTask, "get_batch_iterator", _batches)
    for module in running("fairseq_cli.train"):
        replace(module, "train", _train)
