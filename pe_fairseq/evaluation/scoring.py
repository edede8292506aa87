"""The loss of a model on the windows of a text."""

from dataclasses import dataclass
from typing import Callable, List

import torch
from torch import Tensor

from ..errors import UserError
from .windows import Window

# Scores over the vocabulary held at once: 64 MiB in float32.
MAX_SCORES = 2**24


@dataclass(frozen=True)
class Losses:
    """Losses in nats.

    Attributes:
        of_token: float64 ``(tokens,)``: of every token of the text, each predicted in the
            window where it counts.
        of_position: float64 ``(length,)``: the mean over the disjoint windows, by
            position in the window; of no element where there is none.
        disjoint: how many windows those are.
        in_full_window: how many tokens were predicted in a window of full length.
    """

    of_token: Tensor
    of_position: Tensor
    disjoint: int
    in_full_window: int


@torch.no_grad()
def score(
    model,
    tokens: Tensor,
    windows: List[Window],
    length: int,
    *,
    first_input: int,
    pad: int,
    max_tokens: int,
    advance: Callable[[int], None] = lambda tokens: None,
) -> Losses:
    """Predict the targets of every window.

    Memory is bounded: a pass has at most ``max_tokens`` inputs (or one window), and the
    output layer is computed for part of them at a time.

    Args:
        model: a fairseq language model in evaluation mode.
        tokens: the text ``(tokens,)``.
        windows: as ``windows.plan`` makes them.
        length: of a full window.
        first_input: the symbol before the text's first token.
        pad: the padding symbol.
        max_tokens: inputs in one pass.
        advance: called after each pass with the number of tokens that counted in it.

    Raises:
        UserError: a loss is not finite.
    """
    device = next(model.parameters()).device
    inputs = torch.cat([tokens.new_tensor([first_input]), tokens[:-1]])
    of_token = torch.full((len(tokens),), float("nan"), dtype=torch.float64)
    of_position = torch.zeros(length, dtype=torch.float64)
    disjoint = in_full_window = 0
    for batch in _batches(windows, max_tokens):
        longest = batch[0].stop - batch[0].start
        rows = torch.full((len(batch), longest), pad)
        wanted = torch.zeros(len(batch), longest, dtype=torch.bool)
        targets = []
        for row, window in enumerate(batch):
            # a disjoint window's context counts too, for the loss by position
            begin = window.start if window.disjoint else window.first
            rows[row, : window.stop - window.start] = inputs[window.start : window.stop]
            wanted[row, begin - window.start : window.stop - window.start] = True
            targets.append(tokens[begin : window.stop])
        losses = _losses(model, rows.to(device), wanted.to(device), torch.cat(targets))
        for window, loss in zip(batch, losses.split([len(target) for target in targets])):
            if window.disjoint:
                of_position += loss
                disjoint += 1
            if window.stop - window.start == length:
                in_full_window += window.stop - window.first
            of_token[window.first : window.stop] = loss[-(window.stop - window.first) :]
        advance(sum(window.stop - window.first for window in batch))
    _refuse_non_finite(of_token)
    _refuse_non_finite(of_position)
    return Losses(
        of_token,
        of_position[: length * bool(disjoint)] / max(disjoint, 1),
        disjoint,
        in_full_window,
    )


def _batches(windows, max_tokens):
    """Lists of windows of at most ``max_tokens`` inputs, padding included; longest first."""
    batch = []
    for window in sorted(windows, key=lambda window: window.start - window.stop):
        longest = batch[0].stop - batch[0].start if batch else 0
        if batch and (len(batch) + 1) * longest > max_tokens:
            yield batch
            batch = []
        batch.append(window)
    if batch:
        yield batch


def _losses(model, rows, wanted, targets):
    """Losses ``(targets,)`` in nats at the ``wanted`` places of ``rows``, both ``(B, L)``."""
    features, _ = model.decoder.extract_features(rows, encoder_out=None)
    features = features[wanted]
    targets = targets.to(features.device)
    vocabulary = len(model.decoder.dictionary)
    losses = []
    for some, target in zip(
        features.split(max(1, MAX_SCORES // vocabulary)),
        targets.split(max(1, MAX_SCORES // vocabulary)),
    ):
        output = model.decoder.output_layer(some.unsqueeze(0)), None
        sample = {"target": target.unsqueeze(0)}
        log_probs = model.get_normalized_probs(output, log_probs=True, sample=sample)[0]
        losses.append(-log_probs.gather(1, target.unsqueeze(1)).squeeze(1).double().cpu())
    return torch.cat(losses)


def _refuse_non_finite(losses):
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        raise UserError(
            f"{len(bad)} of {len(losses)} tokens have no finite loss, the first one token "
            f"{bad[0].item()} ({losses[bad[0]].item()}): the model is broken, or the "
            "precision too low for it"
        )
