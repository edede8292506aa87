"""``pe_lm``: a decoder-only language model with any position scheme."""

import ast
import hashlib
import logging
from argparse import Namespace

from fairseq import utils
from fairseq.models import register_model
from fairseq.models.transformer import Embedding
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.modules import AdaptiveInput, CharacterTokenEmbedder
from omegaconf import OmegaConf, open_dict

import pe_fairseq

from ..errors import UserError
from .config import add_arguments, complete
from .decoder import PositionDecoder
from .named import ARCHITECTURES

logger = logging.getLogger(__name__)


class PeLanguageModel(TransformerLanguageModel):
    """fairseq's Transformer language model on ``PositionDecoder``.

    Attributes:
        config_class: the dataclass of its options.
        architecture: what its name promises.
    """

    @classmethod
    def add_args(cls, parser):
        add_arguments(parser, cls.config_class())
        super().add_args(parser)

    @classmethod
    def build_model(cls, cfg, task):
        """Build from a config that fairseq merged with ``config_class``, or a Namespace.

        Raises:
            UserError: an option cannot be meant, or the task's dictionary is not the
                one that the checkpoint was trained with.
        """
        if not OmegaConf.is_config(cfg):
            cfg = OmegaConf.structured(cfg)
        cls.architecture.refuse_other(cls.__name__, cfg)
        sha256 = check_dictionary(cfg, task.source_dictionary)
        config = complete(
            Namespace(**OmegaConf.to_container(cfg, resolve=True, enum_to_str=True)),
            vocabulary=len(task.source_dictionary),
        )
        check_start(config, task)
        logger.info(
            f"pe-fairseq {pe_fairseq.__version__}: --decoder-position "
            f"'{config.decoder_position}' --decoder-attention "
            f"'{config.decoder_attention}', dictionary sha256 {sha256}"
        )
        embed_tokens = cls.build_embed_tokens(config, task.source_dictionary)
        decoder = PositionDecoder(
            config, task.target_dictionary, embed_tokens, no_encoder_attn=True
        )
        return cls(decoder)

    @classmethod
    def build_embed_tokens(cls, config, dictionary):
        """The token embedding: plain, adaptive, or by characters."""
        if config.character_embeddings:
            return CharacterTokenEmbedder(
                dictionary,
                ast.literal_eval(config.character_filters),
                config.character_embedding_dim,
                config.decoder_embed_dim,
                config.char_embedder_highway_layers,
            )
        if config.adaptive_input:
            return AdaptiveInput(
                len(dictionary),
                dictionary.pad(),
                config.decoder_input_dim,
                config.adaptive_input_factor,
                config.decoder_embed_dim,
                utils.eval_str_list(config.adaptive_input_cutoff, type=int),
                config.quant_noise_pq,
                config.quant_noise_pq_block_size,
            )
        return Embedding(len(dictionary), config.decoder_input_dim, dictionary.pad())

    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):
        """Load weights; UserError in one line where torch has a page of them."""
        try:
            return super().load_state_dict(state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            faults = [line.strip() for line in str(error).splitlines()[1:]]
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            raise UserError(
                f"the checkpoint's weights do not fit this model: {faults[0]}{more}"
            ) from error

    @classmethod
    def hub_models(cls):
        return {}


def check_start(config, task):
    """Raise UserError if the task starts texts with another symbol than training did."""
    asked = getattr(getattr(task, "args", None), "add_bos_token", config.add_bos_token)
    if asked != config.add_bos_token:
        how = (
            "with --add-bos-token; add it"
            if config.add_bos_token
            else "without it; leave it out"
        )
        raise UserError(f"--add-bos-token: the checkpoint was trained {how} here too")


def dictionary_sha256(dictionary):
    """A hash of the dictionary's symbols in their order."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode()).hexdigest()


def check_dictionary(config, dictionary):
    """Compare with the dictionary that the config names, or write this one into it.

    Returns its hash. A dictionary of the same size and other words would give wrong
    numbers in silence.
    """
    found = dictionary_sha256(dictionary)
    if config.dictionary_sha256 is None:
        _remember(config, found)
    elif config.dictionary_sha256 != found:
        raise UserError(
            f"the dictionary of the data ({len(dictionary)} symbols) is not the one that "
            "the checkpoint was trained with; binarise the data with "
            "fairseq-preprocess --srcdict and the training data's dict.txt"
        )
    return found


def _remember(config, found):
    """Write the hash where the trainer will save it: the config that fairseq passed on
    is a merged copy, whose parent is the whole config."""
    whole = config._get_parent()
    if whole is not None and OmegaConf.is_config(whole.model):
        with open_dict(whole.model):
            whole.model.dictionary_sha256 = found


for _name, _architecture in ARCHITECTURES.items():
    _members = {"config_class": _architecture.config, "architecture": _architecture}
    register_model(_name, dataclass=_architecture.config)(
        type(_name, (PeLanguageModel,), _members)
    )
