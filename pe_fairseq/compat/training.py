"""Repair: a run that is finished stays as it is when its command is given again.

Stock fairseq looks at ``--max-update`` after an update, so every further start of a finished
run trains one update more and overwrites its checkpoints.
"""

import logging

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


def install():
    """Check the number of updates before an epoch too, where training runs."""
    for module in running("fairseq_cli.train"):
        replace(module, "train", _train)
