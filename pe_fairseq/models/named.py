"""The named architectures: a size with other defaults, and what the name promises."""

from dataclasses import dataclass
from typing import Optional

from .. import attention, positions
from ..errors import UserError
from ..positions.permute import RELEASED_SEED
from ..positions.scheme import EMBEDDING
from .config import (
    PeLanguageModelConfig,
    PeLanguageModelTinyConfig,
    PeLanguageModelWiki103Config,
    with_defaults,
)


@dataclass(frozen=True)
class Architecture:
    """
    Attributes:
        config: the dataclass of its options.
        attention: the attention that the name promises; None for any.
        scheme: the position scheme that the name promises; None for any.
        embeddings: position embeddings may be added to that scheme.
    """

    config: type
    attention: Optional[str] = None
    scheme: Optional[str] = None
    embeddings: bool = False

    def refuse_other(self, name, config):
        """Raise UserError if ``config`` leaves out what the architecture's name promises."""
        kind = attention.parse(config.decoder_attention)
        if self.attention not in (None, kind.name):
            raise UserError(
                f"--arch {name} has '{self.attention}' attention; for '{kind}' write "
                "--arch pe_lm beside it"
            )
        if self.scheme is None:
            return
        scheme = positions.parse(config.decoder_position)
        names = [
            part.name
            for part in scheme.parts
            if not (self.embeddings and part.family == EMBEDDING)
        ]
        if names != [self.scheme]:
            other = "pe_lm" if self.attention is None else f"{self.attention}_lm"
            raise UserError(
                f"--arch {name} is {other} with '{self.scheme}' positions; for '{scheme}' "
                f"write --arch {other} beside it"
            )


def _performer(name, base, attention="performer", **defaults):
    return with_defaults(name, base, decoder_attention=attention, **defaults)


def _permuteformer(name, base, positions, **defaults):
    config = _performer(name, base, decoder_position=positions, **defaults)
    return Architecture(config, "performer", "permute", embeddings=True)


_BASE, _WIKI103 = PeLanguageModelConfig, PeLanguageModelWiki103Config
_NO_WEIGHTS = {"attention_dropout": 0.0}  # linear attention forms none to drop

ARCHITECTURES = {
    "pe_lm": Architecture(PeLanguageModelConfig),
    "pe_lm_tiny": Architecture(PeLanguageModelTinyConfig),
    "pe_lm_wiki103": Architecture(_WIKI103),
    "performer_lm": Architecture(_performer("performer", _BASE), "performer"),
    "performer_lm_wiki103": Architecture(
        _performer("performer", _WIKI103, **_NO_WEIGHTS), "performer"
    ),
    "permuteformer_lm": _permuteformer("permuteformer", _BASE, "permute"),
    "permuteformer_lm_wiki103": _permuteformer(
        "permuteformer", _WIKI103, "permute", **_NO_WEIGHTS
    ),
    "permuteformer_lm_no_permutation": _permuteformer(
        "no_permutation", _BASE, "permute(permutation=false)"
    ),
    "permuteformer_lm_no_decay": _permuteformer("no_decay", _BASE, "permute(decay=false)"),
    # what Chen 2021 published for WikiText-103: sinusoidal embeddings stay on, no denominator
    "permuteformer_lm_released": _permuteformer(
        "released",
        _BASE,
        f"sinusoidal+permute(seed={RELEASED_SEED})",
        attention="performer(normalize=false)",
    ),
    # pe_lm but for the scheme; its softmax attention has no decay
    **{
        "pe_lm_" + scheme.replace("-", "_"): Architecture(
            with_defaults(scheme, _BASE, decoder_position=scheme), scheme=scheme
        )
        for scheme, cls in positions.SCHEMES.items()
        if not cls().decays
    },
}
