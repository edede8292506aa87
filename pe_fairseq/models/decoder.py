"""fairseq's Transformer decoder with our positions and our self-attention."""

import logging
import sys
import zlib
from argparse import Namespace
from typing import List, Optional

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig, TransformerDecoder
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor

from .. import attention, positions
from ..errors import UserError
from .linear_self_attention import LinearSelfAttention
from .self_attention import SelfAttention

logger = logging.getLogger(__name__)

# fairseq drops what is longer than the model's limit from training and evaluation, and
# takes the minimum over models; no scheme's limit is told to it. A table refuses instead.
MAX_POSITIONS = 10**9


class DecoderLayer(TransformerDecoderLayerBase):
    """fairseq's decoder layer with our self-attention."""

    def build_self_attention(self, embed_dim, cfg, add_bias_kv=False, add_zero_attn=False):
        options = {
            "dropout": cfg.attention_dropout,
            "add_bias_kv": add_bias_kv,
            "add_zero_attn": add_zero_attn,
            "q_noise": self.quant_noise,
            "qn_block_size": self.quant_noise_block_size,
            "causal": True,
        }
        heads = cfg.decoder.attention_heads
        if cfg.attention.linear:
            return LinearSelfAttention(embed_dim, heads, linear=cfg.attention, **options)
        return SelfAttention(embed_dim, heads, **options)


class PositionDecoder(TransformerDecoder):
    """A decoder whose positions come from ``config.decoder_position``.

    Its self-attention is ``config.decoder_attention``. With softmax attention and
    ``sinusoidal`` or ``learned`` positions, its parameter names, their order, and its outputs
    equal stock fairseq's.
    """

    def __init__(self, config, dictionary, embed_tokens, no_encoder_attn=False):
        self.attention = attention.parse(config.decoder_attention)
        # the stock table would draw from the global random generator
        stock = Namespace(**{**vars(config), "no_token_positional_embeddings": True})
        super().__init__(stock, dictionary, embed_tokens, no_encoder_attn=no_encoder_attn)
        self.scheme = positions.parse(config.decoder_position)
        self.position_ids = positions.PositionIds(
            config.decoder_position_stride, config.decoder_position_offset
        )
        self.beyond = self._build_beyond(config)
        size = positions.ModelSize(
            embed_dim=self.embed_dim,
            max_positions=config.max_target_positions,
            heads=config.decoder_attention_heads,
            layers=config.decoder_layers,
            causal=True,
            unused_rows=self.padding_idx + 1,
            features=self._set_feature_maps(config),
        )
        caution = self.scheme.caution(size)
        if caution is not None:
            logger.warning(caution)
        embedding = positions.build_embedding(self.scheme, size, position_generator)
        if embedding is not None:
            self._set_embed_positions(embedding)
        layers = positions.build_layers(self.scheme, size, position_generator)
        # children() has them all; iterating over the list would skip some under layer drop
        for layer, layer_positions in zip(self.layers.children(), layers, strict=True):
            if layer_positions is not None:
                layer.self_attn.set_positions(layer_positions, self.position_ids)

    def _set_feature_maps(self, config):
        """Give linear attention its feature maps; return how many features, None without."""
        if not self.attention.linear:
            return None
        head_dim = self.embed_dim // config.decoder_attention_heads
        generator = position_generator("feature map")
        for layer in self.layers.children():
            layer.self_attn.feature_map = self.attention.feature_map(head_dim, generator)
        return layer.self_attn.feature_map.size

    def _build_beyond(self, config):
        rule = config.decoder_position_beyond
        if self.scheme.bounded:
            return positions.Beyond(
                config.max_target_positions, rule, config.decoder_position_length
            )
        if rule != "error" or config.decoder_position_length is not None:
            raise UserError(
                f"decoder_position_beyond={rule} with decoder_position_length="
                f"{config.decoder_position_length}: '{self.scheme}' has no table of one vector "
                "per position; leave both out"
            )
        return None

    def _set_embed_positions(self, embedding):
        """Register ``embedding`` where stock fairseq has it, before the layers.

        An optimizer's state is kept by the order of the parameters, so a stock
        training run can be continued only if the order is the same.
        """
        later = list(self._modules)
        later = later[later.index("embed_tokens") + 1 :]
        self.embed_positions = embedding
        for name in later:
            if name not in ("quant_noise", "project_in_dim"):
                self._modules[name] = self._modules.pop(name)

    def build_decoder_layer(self, args, no_encoder_attn=False):
        cfg = TransformerConfig.from_namespace(args)
        cfg.attention = attention.parse(args.decoder_attention)
        layer = DecoderLayer(cfg, no_encoder_attn)
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        wrap_from = 0 if cfg.checkpoint_activations else cfg.min_params_to_wrap
        return fsdp_wrap(layer, min_num_params=wrap_from)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out=None,
        incremental_state=None,
        full_context_alignment: bool = False,
        alignment_layer: Optional[int] = None,
        alignment_heads: Optional[int] = None,
    ):
        """Return the features of all tokens that the state does not hold yet.

        Stock fairseq takes only the last token beside a state; here any number of new
        tokens may come at once, causal among themselves.

        Args:
            prev_output_tokens: ``(batch, length)``, the whole prefix, whatever part of
                it the state holds already.
            full_context_alignment: let every token see every other.
            alignment_layer: the layer whose encoder attention is returned (default: last).
            alignment_heads: average the first so many heads (default: all).

        Returns:
            features ``(batch, new, output_dim)``, and a dict of ``attn`` (a list of one:
            encoder attention or None) and ``inner_states``, each ``(new, batch, D)``.

        Raises:
            UserError: a position is beyond a learned table, or beyond an image.
            ValueError: the prefix is no longer than what the state holds; or
                ``full_context_alignment`` under linear attention.
        """
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        encoder_states, encoder_padding = _unpack(encoder_out)
        seen = self._count_tokens(incremental_state, prev_output_tokens)
        causal_alone = incremental_state is None and not full_context_alignment
        padding = self._padding_mask(prev_output_tokens, causal_alone)

        tokens = prev_output_tokens[:, seen:].contiguous()
        x = self._embed(tokens, prev_output_tokens, padding).transpose(0, 1)
        mask = x.new_zeros(1, 1) if full_context_alignment else None

        encoder_attention = None
        inner_states: List[Optional[Tensor]] = [x]
        for index, layer in enumerate(self.layers):
            wanted = index == alignment_layer
            x, layer_attention, _ = layer(
                x,
                encoder_states,
                encoder_padding,
                incremental_state,
                self_attn_mask=mask,
                self_attn_padding_mask=None if padding is None else padding[:, seen:],
                need_attn=wanted,
                need_head_weights=wanted,
            )
            inner_states.append(x)
            if wanted and layer_attention is not None:
                encoder_attention = layer_attention[:alignment_heads].float().mean(dim=0).to(x)

        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [encoder_attention], "inner_states": inner_states}

    def _embed(self, tokens, prefix, padding):
        """Token and position vectors of ``tokens``, the end of ``prefix``: ``(B, L, D)``."""
        x = self.embed_scale * self.embed_tokens(tokens)
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if self.embed_positions is not None:
            length = prefix.size(1)
            largest = self.position_ids.last(length)
            ids = self.position_ids(length, padding, tokens.device)[:, -tokens.size(1) :]
            if self.beyond is not None:
                ids = self.beyond(ids, largest)
            x = x + self.embed_positions(ids).to(x.dtype)
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x)

    def _padding_mask(self, tokens, causal_alone):
        """``(batch, length)``, True at padding; None where it can have no effect.

        The causal rule alone hides padding after the last token of a row, and the fused
        causal kernel serves it, as long as no later call adds tokens behind.
        """
        padding = tokens.eq(self.padding_idx)
        if causal_alone:
            matters = (padding[:, :-1] & ~padding[:, 1:]).any()
        else:
            matters = padding.any()
        return padding if matters else None

    def _count_tokens(self, incremental_state, tokens):
        """Return how many tokens the state holds, and note that it now holds ``tokens``."""
        if incremental_state is None:
            return 0
        held = self.get_incremental_state(incremental_state, "tokens") or {"count": 0}
        if tokens.size(1) <= held["count"]:
            raise ValueError(
                f"the prefix has {tokens.size(1)} tokens, of which the incremental state "
                f"holds {held['count']} already; pass the whole prefix with new tokens"
            )
        self.set_incremental_state(incremental_state, "tokens", {"count": tokens.size(1)})
        return held["count"]

    def set_position_ids(self, position_ids: positions.PositionIds):
        """Change the rule for ids in the embedding and in every layer."""
        self.position_ids = position_ids
        for layer in self.layers.children():
            layer.self_attn.position_ids = position_ids

    def refusal(self, length: int) -> Optional[str]:
        """Why the positions of a row of ``length`` tokens have no meaning, or None."""
        if self.beyond is not None:
            refusal = self.beyond.refusal(self.position_ids.last(length))
            if refusal is not None:
                return refusal
        return self.scheme.refusal(self.position_ids.of(length - 1))

    def max_positions(self):
        """A large number: positions are limited inside the model, with an error."""
        return MAX_POSITIONS

    def upgrade_state_dict_named(self, state_dict, name):
        """Drop what old fairseq checkpoints saved of a sinusoidal table."""
        for old in ("weights", "_float_tensor"):
            state_dict.pop(f"{name}.embed_positions.{old}", None)
        return super().upgrade_state_dict_named(state_dict, name)


def position_generator(scheme):
    """A random generator of its own for the parameters of the scheme called ``scheme``.

    Seeded from the global seed, it leaves the global generator alone: models that
    differ in their scheme alone start with equal shared parameters.
    """
    seed = torch.initial_seed() + zlib.crc32(scheme.encode())
    return torch.Generator().manual_seed(seed % sys.maxsize)


def _unpack(encoder_out):
    """The encoder's states and padding mask, each None where there is none."""
    if encoder_out is None:
        return None, None
    return tuple(
        encoder_out[key][0] if len(encoder_out[key]) > 0 else None
        for key in ("encoder_out", "encoder_padding_mask")
    )
