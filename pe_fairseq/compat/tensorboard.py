"""TensorBoard: no leftovers of a lost run, what the numbers are, and the learned positions.

fairseq 0.12 writes the numbers of the log, with the same rounding. But after an interruption
the updates that are lost stay in its graphs beside those that replace them, and a second run
in one process (a hydra sweep) goes into the folder of the first.
"""

import contextvars
import os
import sys
from dataclasses import dataclass

import fairseq
import torch
from fairseq.logging import progress_bar
from fairseq.logging.progress_bar import TensorboardProgressBarWrapper
from fairseq.trainer import Trainer

import pe_fairseq

from ..positions import LayerPositions, Scheme
from .patching import replace

# a parameter of up to so many values, such as one for each head, has a curve for each
FEW = 16

INNER = "train_inner"

ABOUT = """\
Every number but `positions/…` is the log's. **loss** and **nll_loss** of fairseq's
cross-entropy criterions (plain, label-smoothed, adaptive) are in bits, base 2, per target
token; with `--sentence-avg` the loss is per sentence. **ppl** is 2^nll_loss, or 2^loss where
there is no nll_loss. `train_inner` averages since the last log line, `train` over the epoch.

pe-fairseq {ours}, fairseq {fairseq}, torch {torch}, seed {seed}, positions: {positions}
"""

_run = contextvars.ContextVar("the run that trains in this process", default=None)


@dataclass
class Run:
    """What this process trains.

    Attributes:
        first: its first update.
        histograms_at: the update of the last histograms.
    """

    trainer: Trainer
    first: int
    histograms_at: int = -1


def with_scheme(model):
    """The decoders and encoders in ``model`` that have a position scheme."""
    return [m for m in model.modules() if isinstance(getattr(m, "scheme", None), Scheme)]


def position_parameters(model):
    """The trained parameters of the model's position schemes, by name, a shared one once."""
    places = [module.embed_positions for module in with_scheme(model)]
    places += [module for module in model.modules() if isinstance(module, LayerPositions)]
    ids = {id(p) for place in places if place is not None for p in place.parameters()}
    named = model.named_parameters()
    return {name: p for name, p in named if p.requires_grad and id(p) in ids}


def summary(values):
    """What is drawn as curves of a parameter's ``values``, a float32 tensor."""
    numbers = torch.stack([values.norm(), values.mean(), values.min(), values.max()])
    curves = dict(zip(("norm", "mean", "min", "max"), numbers.tolist()))
    if values.numel() <= FEW:
        curves.update((str(i), value) for i, value in enumerate(values.flatten().tolist()))
    return curves


def _begin_epoch(stock_begin):
    def begin_epoch(self, epoch):
        run = _run.get()
        if run is None or run.trainer is not self:
            progress_bar._close_writers()
            progress_bar._tensorboard_writers.clear()
            _run.set(Run(self, self.get_num_updates() + 1))
        return stock_begin(self, epoch)

    return begin_epoch


def _writer(stock_writer):
    def _writer(self, key):
        run = _run.get()
        writers = progress_bar._tensorboard_writers
        if key in writers or progress_bar.SummaryWriter is None or run is None:
            return stock_writer(self, key)
        writers[key] = progress_bar.SummaryWriter(
            os.path.join(self.tensorboard_logdir, key), purge_step=run.first
        )
        writers[key].add_text("sys.argv", " ".join(sys.argv))
        writers[key].add_text("about", about(run.trainer))
        return writers[key]

    return _writer


def about(trainer):
    """What the numbers of the run are, and what made them, in Markdown."""
    specs = [str(module.scheme) for module in with_scheme(trainer.get_model())]
    return ABOUT.format(
        ours=pe_fairseq.__version__,
        fairseq=fairseq.__version__,
        torch=torch.__version__,
        seed=trainer.cfg.common.seed,
        positions=", ".join(specs) or "stock fairseq's",
    )


def _log(stock_log):
    def _log_to_tensorboard(self, stats, tag=None, step=None):
        stock_log(self, stats, tag, step)
        run = _run.get()
        if run is not None and progress_bar.SummaryWriter is not None:
            parameters = position_parameters(run.trainer.get_model())
            if parameters:
                _write(self._writer(INNER), parameters, run, at_log_line=tag == INNER)

    return _log_to_tensorboard


@torch.no_grad()
def _write(writer, parameters, run, at_log_line):
    """Write curves at every log line; histograms when it validates or ends an epoch."""
    step = run.trainer.get_num_updates()
    for name, parameter in parameters.items():
        values = parameter.float()
        if at_log_line:
            for what, number in summary(values).items():
                writer.add_scalar(f"positions/{name}/{what}", number, step)
        elif run.histograms_at < step and values.isfinite().all():
            writer.add_histogram(f"positions/{name}", values, step)
    if not at_log_line:
        run.histograms_at = step
    writer.flush()


def install():
    """Extend what fairseq writes where ``--tensorboard-logdir`` is given."""
    replace(Trainer, "begin_epoch", _begin_epoch)
    replace(TensorboardProgressBarWrapper, "_writer", _writer)
    replace(TensorboardProgressBarWrapper, "_log_to_tensorboard", _log)
