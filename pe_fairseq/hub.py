"""A trained language model in Python, without the command line.

model = pe_fairseq.load("checkpoints/checkpoint_best.pt", data="data-bin/wikitext-2")
model.score("The cat sat .").perplexity
model.next_token("The cat", top=5)
model.generate("The cat", max_tokens=20)
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import List

import torch
from fairseq import checkpoint_utils, hub_utils, utils
from omegaconf import open_dict
from torch import Tensor

from .corpus import manifest
from .errors import UserError, nearest


@dataclass(frozen=True)
class Score:
    """What a model makes of a text.

    Attributes:
        tokens: the text's tokens; the last is ``</s>``.
        log_probs: float32 ``(len(tokens),)``, natural logarithms, each token given all
            before it.
    """

    tokens: List[str]
    log_probs: Tensor

    @property
    def perplexity(self) -> float:
        """exp of the mean negative log-probability per token."""
        return math.exp(-self.log_probs.mean().item())


class LanguageModel:
    """One trained model (or the mean of several) with its dictionary."""

    def __init__(self, cfg, task, models):
        self.task = task
        self.dictionary = task.source_dictionary
        self.models = models
        self._hub = hub_utils.GeneratorHubInterface(cfg, task, models)

    def encode(self, text: str) -> Tensor:
        """Ids ``(tokens,)`` of ``text``, ``</s>`` at the end; unknown words become ``<unk>``.

        Raises:
            UserError: the text holds no token.
        """
        tokens = self._hub.encode(text)
        if tokens.numel() <= 1:
            raise UserError(f"the text {text!r} holds no token")
        return tokens

    def score(self, text: str) -> Score:
        """Log-probability of every token of ``text`` and of the end, from its start.

        Raises:
            UserError: the text is empty, or longer than a learned table.
        """
        target = self.encode(text)
        start = target.new_tensor(self._start())
        log_probs = self._log_probs(torch.cat([start, target[:-1]]))[len(start) - 1 :]
        picked = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
        return Score([self.dictionary[index] for index in target], picked)

    def next_token(self, text: str, top: int = 10):
        """The ``top`` likeliest tokens after ``text``, as (token, probability) pairs.

        An empty text asks for the first token.

        Raises:
            UserError: ``top`` is below 1.
        """
        _check_positive(top=top)
        prefix = self._hub.encode(text)[:-1]
        start = prefix.new_tensor(self._start())
        probs = self._log_probs(torch.cat([start, prefix]))[-1].exp()
        best = probs.topk(min(top, len(probs)))
        return [
            (self.dictionary[index], value)
            for index, value in zip(best.indices.tolist(), best.values.tolist())
        ]

    def generate(self, text: str, max_tokens: int = 50, **options) -> str:
        """Continue ``text``; by default the likeliest continuation (beam of 1).

        Args:
            max_tokens: how many tokens to add at most.
            options: fairseq's generation options: ``beam=5``, ``sampling=True``,
                ``sampling_topk=10``, ``temperature=0.8``, …

        Raises:
            UserError: a number below 1, or an option that fairseq does not have.
        """
        for name in options:
            if name not in self._hub.cfg.generation:
                known = self._hub.cfg.generation.keys()
                raise UserError(f"generation has no option '{name}'{nearest(name, known)}")
        _check_positive(max_tokens=max_tokens, beam=options.get("beam", 1))
        prefix = self._hub.encode(text)[:-1]
        # fairseq's limit counts the prefix and what stands before it
        options = {"beam": 1, "max_len_a": 1, "max_len_b": max_tokens - 1, **options}
        hypothesis = self._hub.generate([prefix], **options)[0][0]
        return self._hub.decode(hypothesis["tokens"])

    @torch.no_grad()
    def _log_probs(self, tokens: Tensor) -> Tensor:
        """Log-probabilities ``(len, vocabulary)`` of what follows each prefix of ``tokens``."""
        total = None
        for model in self.models:
            output = model(tokens.unsqueeze(0).to(self._hub.device))
            probs = model.get_normalized_probs(output, log_probs=False)[0].double().cpu()
            total = probs if total is None else total + probs
        return (total / len(self.models)).log().float()

    def _start(self):
        """What stands before the first token in training: ``</s>``, or ``<s> </s>``."""
        if getattr(self.task.args, "add_bos_token", False):
            return [self.dictionary.bos(), self.dictionary.eos()]
        return [self.dictionary.eos()]


def _check_positive(**numbers):
    for name, number in numbers.items():
        if number < 1:
            raise UserError(f"{name}={number} must be 1 or more")


def load(path, data=None, overrides=None) -> LanguageModel:
    """Load a checkpoint of a language model.

    Args:
        path: a checkpoint, or several joined by ``:`` whose mean is taken.
        data: the folder with ``dict.txt``; by default that of training, or, where it
            is gone, the checkpoint's own folder. Where its manifest names a sentencepiece
            model, text is cut by that.
        overrides: config values to change, as ``--model-overrides`` does:
            ``{"decoder_position_stride": 2}``.

    Raises:
        UserError: no dictionary is found, the file is no checkpoint, or it does not
            belong to the dictionary.
    """
    if not isinstance(overrides, (dict, type(None))):
        raise UserError(f"overrides takes a dict, not {overrides!r}")
    paths = str(path).split(":")
    for each in paths:
        if not Path(each).is_file():
            raise UserError(f"there is no checkpoint {each}")
    if data is None:
        trained = checkpoint_utils.load_checkpoint_to_cpu(paths[0])["cfg"].task.data
        data = utils.split_paths(trained)[0] if trained else Path(paths[0]).parent
        if not (Path(data) / "dict.txt").is_file():
            data = Path(paths[0]).parent
    if not (Path(data) / "dict.txt").is_file():
        raise UserError(
            f"there is no dict.txt in {data}; give the folder of the binarised data as data="
        )
    models, cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        paths, arg_overrides={**(overrides or {}), "data": str(data)}
    )
    found = manifest.read(data)
    if found is not None and found.subword is not None:
        with open_dict(cfg):
            cfg.bpe = {
                "_name": "sentencepiece",
                "sentencepiece_model": str(Path(data, found.subword["file"])),
            }
    return LanguageModel(cfg, task, models)
