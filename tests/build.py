"""Small models for the tests, built the way fairseq builds them."""

from argparse import Namespace

import torch
from fairseq import models
from fairseq.data import Dictionary
from fairseq.models import MODEL_DATACLASS_REGISTRY
from fairseq.models.transformer_lm import (
    TransformerLanguageModel,
    TransformerLanguageModelConfig,
)
from omegaconf import OmegaConf

import pe_fairseq  # noqa: F401  registers the models
from pe_fairseq import positions
from pe_fairseq.positions import SCHEMES

WORDS = 40
LENGTH = 24
PAD = Dictionary().pad()

# every scheme, as softmax attention takes it
SOFTMAX = [f"{name}(decay=false)" if cls().decays else name for name, cls in SCHEMES.items()]
# schemes that linear attention takes
LINEAR = [name for name, cls in SCHEMES.items() if not cls.needs_scores]

SMALL = {
    "decoder_embed_dim": 16,
    "decoder_ffn_embed_dim": 32,
    "decoder_layers": 2,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
    "tokens_per_sample": LENGTH,
    "max_target_positions": None,
    "add_bos_token": False,
    "tpu": False,
}


def longest(position):
    """How many positions the scheme has in a small model; infinity without a limit."""
    size = positions.ModelSize(SMALL["decoder_embed_dim"], LENGTH)
    return positions.parse(position).longest(size) or float("inf")


class Task:
    """As much of a fairseq task as building a model needs."""

    def __init__(self, words=WORDS):
        self.source_dictionary = self.target_dictionary = Dictionary()
        for index in range(words):
            self.source_dictionary.add_symbol(f"word{index}")


def build(name="pe_lm", seed=1, task=None, **options):
    """A model of ours with small sizes, in evaluation mode."""
    config = OmegaConf.structured(MODEL_DATACLASS_REGISTRY[name](_name=name))
    for key, value in {**SMALL, **options}.items():
        config[key] = value
    torch.manual_seed(seed)
    return models.build_model(config, task or Task()).eval()


def build_stock(seed=1, task=None, **options):
    """Stock fairseq's transformer_lm, pre-norm, with the same sizes."""
    options = {
        "decoder_normalize_before": True,
        "decoder_input_dim": SMALL["decoder_embed_dim"],
        "decoder_output_dim": SMALL["decoder_embed_dim"],
        **options,
    }
    config = OmegaConf.structured(TransformerLanguageModelConfig(_name="transformer_lm"))
    # as a Namespace: of a DictConfig, stock silently ignores the scale_* options
    plain = OmegaConf.to_container(OmegaConf.merge(config, SMALL, options), enum_to_str=True)
    torch.manual_seed(seed)
    return TransformerLanguageModel.build_model(Namespace(**plain), task or Task()).eval()


def tokens(batch=3, length=20, seed=0, words=WORDS):
    """Random real tokens ``(batch, length)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, 4 + words, (batch, length), generator=generator)


def pad_left(rows, count):
    return torch.nn.functional.pad(rows, (count, 0), value=PAD)


def pad_right(rows, count):
    return torch.nn.functional.pad(rows, (0, count), value=PAD)
