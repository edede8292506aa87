"""One architecture per scheme, pe_lm but for the scheme."""

import pickle

import pytest
from build import build
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from pe_fairseq.errors import UserError
from pe_fairseq.models.config import PeLanguageModelConfig
from pe_fairseq.positions import SCHEMES


def name_of(scheme):
    return "pe_lm_" + scheme.replace("-", "_")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_is_pe_lm_with_the_scheme(scheme):
    assert name_of(scheme) in ARCH_MODEL_REGISTRY
    named, plain = build(name_of(scheme)), build(decoder_position=scheme)
    assert named.decoder.scheme.name == scheme
    for a, b in zip(named.parameters(), plain.parameters()):
        assert (a == b).all()
    changed = {
        key
        for key, value in vars(MODEL_DATACLASS_REGISTRY[name_of(scheme)]()).items()
        if value != getattr(PeLanguageModelConfig(), key)
    }
    assert changed <= {"decoder_position"}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_its_config_can_be_pickled(scheme):
    config = MODEL_DATACLASS_REGISTRY[name_of(scheme)]()
    assert pickle.loads(pickle.dumps(config)) == config


def test_options_may_be_given_and_another_scheme_not():
    assert build("pe_lm_shaw", decoder_position="shaw(clip=3)").decoder.scheme.options.clip == 3
    for other in ("rope", "learned+shaw"):
        with pytest.raises(UserError, match="--arch pe_lm_shaw is pe_lm with 'shaw'"):
            build("pe_lm_shaw", decoder_position=other)
