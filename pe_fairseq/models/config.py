"""The options of our language models, as fairseq dataclass fields.

A named size is a dataclass that changes defaults, registered as a model of its own.
fairseq then fills every missing field from it, on the command line, in hydra yaml
and when an older checkpoint loads; an architecture function would come too late
under hydra, which fills in the base model's defaults first.
"""

import argparse
import ast
import re
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from fairseq.models.transformer_lm import TransformerLanguageModelConfig

from .. import attention, positions
from ..errors import UserError
from ..positions.beyond import CHOICES as BEYOND_CHOICES

BEYOND = ChoiceEnum(list(BEYOND_CHOICES))


@dataclass
class PeLanguageModelConfig(TransformerLanguageModelConfig):
    """Everything that ``transformer_lm`` has, and the position scheme.

    Pre-norm by default under every name. (Stock fairseq is post-norm under the bare
    name ``transformer_lm`` and pre-norm under its other names.)
    """

    decoder_normalize_before: bool = field(
        default=True,
        metadata={"help": "layer norm before each block (pre-norm) instead of after it"},
    )
    decoder_input_dim: Optional[int] = field(
        default=None,
        metadata={"help": "decoder input dimension (default: --decoder-embed-dim)"},
    )
    decoder_output_dim: Optional[int] = field(
        default=None,
        metadata={"help": "decoder output dimension (default: --decoder-embed-dim)"},
    )
    decoder_position: str = field(
        default="sinusoidal",
        metadata={
            "help": "position scheme and its options, e.g. learned or "
            "'sinusoidal(layout=interleaved)'; one of: " + ", ".join(positions.SCHEMES)
        },
    )
    decoder_attention: str = field(
        default="softmax",
        metadata={
            "help": "softmax, or linear attention: performer, 'performer(features=favor)'; "
            "features are relu, elu, favor or favor-relu"
        },
    )
    decoder_position_stride: int = field(
        default=1,
        metadata={"help": "the n-th token's position is offset + stride * n"},
    )
    decoder_position_offset: int = field(
        default=0, metadata={"help": "the first token's position"}
    )
    decoder_position_beyond: BEYOND = field(
        default="error",
        metadata={
            "help": "positions past a learned table: refuse them, give them the last "
            "trained position, or squeeze --decoder-position-length into the table"
        },
    )
    decoder_position_length: Optional[int] = field(
        default=None,
        metadata={"help": "with interpolate: how many positions the table is stretched to"},
    )
    dictionary_sha256: Optional[str] = field(
        default=None,
        metadata={
            "help": "set by training: the dictionary that the model was trained with; "
            "another one is refused when the checkpoint loads"
        },
    )


@dataclass
class PeLanguageModelTinyConfig(PeLanguageModelConfig):
    """2 layers of 128: for tests and first steps on a laptop."""

    decoder_embed_dim: int = 128
    decoder_ffn_embed_dim: int = 512
    decoder_layers: int = 2
    decoder_attention_heads: int = 4


@dataclass
class PeLanguageModelWiki103Config(PeLanguageModelConfig):
    """Baevski & Auli 2019 on WikiText-103: 16 layers of 1024, adaptive input and softmax."""

    decoder_layers: int = 16
    decoder_embed_dim: int = 1024
    decoder_ffn_embed_dim: int = 4096
    decoder_attention_heads: int = 8
    dropout: float = 0.3
    attention_dropout: float = 0.1
    activation_dropout: float = 0.1
    adaptive_input: bool = True
    adaptive_input_cutoff: Optional[str] = "20000,60000"
    adaptive_softmax_cutoff: Optional[str] = "20000,60000"
    adaptive_softmax_dropout: float = 0.2
    tie_adaptive_weights: bool = True
    tie_adaptive_proj: bool = True
    no_decoder_final_norm: bool = True


def with_defaults(name, base, **defaults):
    """The config ``base`` with other defaults, a dataclass that pickle finds in this module."""
    fields = []
    for option, default in defaults.items():
        of_base = base.__dataclass_fields__[option]
        changed = field(default=default, metadata=dict(of_base.metadata))
        fields.append((option, of_base.type, changed))
    name = base.__name__ + "_" + name.replace("-", "_")
    cls = make_dataclass(name, fields, bases=(base,), namespace={"__module__": __name__})
    globals()[name] = cls
    return cls


def add_arguments(parser, config):
    """Add to ``parser`` what fairseq's own generator of flags gets wrong or cannot know.

    fairseq turns a bool whose default is True into a flag that switches it *off*
    under the name that says on. Such a field gets ``--name`` and ``--no-name``. The
    specs are checked while the command line is read, before any data loads.
    """
    for option in fields(config):
        if option.type is bool and option.default is True:
            parser.add_argument(
                "--" + option.name.replace("_", "-"),
                action=argparse.BooleanOptionalAction,
                help=config._get_help(option.name),
            )
    for name, parse in (("position", positions.parse), ("attention", attention.parse)):
        parser.add_argument(
            f"--decoder-{name}",
            type=_checked_by(parse),
            metavar="SPEC",
            help=config._get_help(f"decoder_{name}"),
        )


def _checked_by(parse):
    def checked(text):
        parse(text)
        return text

    return checked


def refuse_misfit(config):
    """Raise UserError if attention, positions and attention dropout do not go together."""
    kind = attention.parse(config.decoder_attention)
    scheme = positions.parse(config.decoder_position)
    if not kind.linear:
        if scheme.decays:
            raise UserError(
                f"'{scheme}' lets weights decay from token to token, which softmax attention "
                "does not do; add --decoder-attention performer, or leave the decay out with "
                "permute(decay=false)"
            )
        return
    if scheme.needs_scores:
        fits = [name for name, cls in positions.SCHEMES.items() if not cls.needs_scores]
        raise UserError(
            f"'{scheme}' positions act on the matrix of scores, which linear attention "
            f"('{kind}') never forms; with it go: {', '.join(fits)}"
        )
    if config.attention_dropout:
        raise UserError(
            f"--attention-dropout {config.attention_dropout:g} drops weights, which linear "
            f"attention ('{kind}') never forms; set it to 0 (--dropout acts as ever)"
        )


def complete(config, vocabulary):
    """Fill in what depends on other fields, and refuse what cannot be meant.

    ``vocabulary`` is the size of the dictionary.

    Cut-offs and character filters are checked here because fairseq evaluates them
    as Python, and a checkpoint's config may come from anywhere.

    Raises:
        UserError: an option is out of range, or stands beside one that it contradicts.
    """
    if config.decoder_learned_pos:
        raise UserError(
            "--decoder-learned-pos is stock fairseq's option; write --decoder-position "
            "learned instead"
        )
    if config.no_token_positional_embeddings:
        raise UserError(
            "--no-token-positional-embeddings is stock fairseq's option; write "
            "--decoder-position none instead"
        )
    if config.decoder_xformers_att_config:
        raise UserError(
            "--decoder-xformers-att-config is not served: the attention is our own; "
            "leave it out"
        )
    for name in ("adaptive_softmax_cutoff", "adaptive_input_cutoff"):
        _check_cutoff(name, getattr(config, name), vocabulary)
    if config.adaptive_input and config.adaptive_input_cutoff is None:
        raise UserError("--adaptive-input needs --adaptive-input-cutoff, such as 20000,60000")
    _check_filters(config.character_filters)
    _check_ranges(config)
    refuse_misfit(config)
    if config.decoder_embed_dim % config.decoder_attention_heads:
        raise UserError(
            f"--decoder-embed-dim {config.decoder_embed_dim} does not divide into "
            f"{config.decoder_attention_heads} attention heads"
        )
    if config.decoder_layers_to_keep:
        if not re.fullmatch(r"\d+(,\d+)*", config.decoder_layers_to_keep):
            raise UserError(
                "decoder_layers_to_keep takes layer numbers joined by commas, such as 0,2,4, "
                f"not '{config.decoder_layers_to_keep}'"
            )
        config.decoder_layers = len(config.decoder_layers_to_keep.split(","))
    if config.decoder_input_dim is None:
        config.decoder_input_dim = config.decoder_embed_dim
    if config.decoder_output_dim is None:
        config.decoder_output_dim = config.decoder_embed_dim
    if config.max_target_positions is None:
        config.max_target_positions = config.tokens_per_sample
    if config.max_target_positions < 1:
        raise UserError(f"max_target_positions={config.max_target_positions} must be 1 or more")
    if (
        config.share_decoder_input_output_embed
        and config.decoder_input_dim != config.decoder_output_dim
    ):
        raise UserError(
            "--share-decoder-input-output-embed needs equal decoder_input_dim "
            f"({config.decoder_input_dim}) and decoder_output_dim ({config.decoder_output_dim})"
        )
    if config.offload_activations:
        config.checkpoint_activations = True
    if config.tie_adaptive_weights:
        _check_tied(config)
    return config


def _check_ranges(config):
    if config.decoder_attention_heads < 1:
        raise UserError(
            f"decoder_attention_heads={config.decoder_attention_heads} must be 1 or more"
        )
    for name, value in vars(config).items():
        if name.endswith("dropout") and not 0 <= value < 1:
            raise UserError(
                f"{name}={value:g} is no probability: it must be 0 or more, below 1"
            )


def _check_cutoff(name, text, vocabulary):
    if text is None:
        return
    if not re.fullmatch(r"[1-9][0-9]*( *, *[1-9][0-9]*)*", text):
        raise UserError(
            f"{name} takes whole numbers joined by commas, such as 20000,60000, not '{text}'"
        )
    numbers = [int(number) for number in text.split(",")]
    if sorted(set(numbers)) != numbers or numbers[-1] >= vocabulary:
        raise UserError(
            f"{name}={text} must rise and stay below the {vocabulary} symbols of the dictionary"
        )


def _check_filters(text):
    try:
        filters = ast.literal_eval(text)
        well_formed = all(
            isinstance(number, int) for pair in filters for number in pair
        ) and all(len(pair) == 2 for pair in filters)
    except (ValueError, SyntaxError, TypeError):
        well_formed = False
    if not well_formed:
        raise UserError(f"character_filters takes a list of (width, count) pairs, not '{text}'")


def _check_tied(config):
    if not config.adaptive_input:
        raise UserError("--tie-adaptive-weights needs --adaptive-input")
    for ours, theirs in (
        ("adaptive_input_factor", "adaptive_softmax_factor"),
        ("adaptive_input_cutoff", "adaptive_softmax_cutoff"),
        ("decoder_input_dim", "decoder_output_dim"),
    ):
        if getattr(config, ours) != getattr(config, theirs):
            raise UserError(
                f"--tie-adaptive-weights needs equal {ours} ({getattr(config, ours)}) "
                f"and {theirs} ({getattr(config, theirs)})"
            )
