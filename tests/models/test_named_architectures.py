"""One architecture per scheme, pe_lm but for the scheme."""

import pickle

import pytest
from build import build
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY

from pe_fairseq.errors import UserError
from pe_fairseq.models.config import PeLanguageModelConfig
from pe_fairseq.positions import SCHEMES

# pe_lm's attention is softmax, which has no decay
SCHEMES = [name for name, scheme in SCHEMES.items() if not scheme().decays]


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


@pytest.mark.parametrize(
    "name, attention, position",
    [
        ("performer_lm", "performer", "sinusoidal"),
        ("permuteformer_lm", "performer", "permute"),
        ("permuteformer_lm_no_permutation", "performer", "permute(permutation=false)"),
        ("permuteformer_lm_no_decay", "performer", "permute(decay=false)"),
        (
            "permuteformer_lm_released",
            "performer(normalize=false)",
            f"sinusoidal+permute(seed={0xDEADBEEFDEADBEEF})",
        ),
    ],
)
def test_linear_attention_by_name(name, attention, position):
    named = build(name)
    assert str(named.decoder.attention) == attention
    assert str(named.decoder.scheme) == position
    plain = build(decoder_attention=attention, decoder_position=position)
    for a, b in zip(named.state_dict().values(), plain.state_dict().values()):
        assert (a == b).all()


@pytest.mark.parametrize("name", ["performer_lm", "permuteformer_lm"])
def test_linear_attention_at_the_size_of_wiki103(name):
    large = MODEL_DATACLASS_REGISTRY[name + "_wiki103"]()
    softmax, small = (
        MODEL_DATACLASS_REGISTRY["pe_lm_wiki103"](),
        MODEL_DATACLASS_REGISTRY[name](),
    )
    changed = {key for key, value in vars(large).items() if value != getattr(softmax, key)}
    assert changed - {"decoder_position"} == {"decoder_attention", "attention_dropout"}
    assert (large.decoder_attention, large.decoder_position, large.attention_dropout) == (
        small.decoder_attention,
        small.decoder_position,
        0,
    )


def test_the_name_of_a_permuteformer_is_kept():
    built = build("permuteformer_lm", decoder_position="learned+permute(decay=false)")
    assert str(built.decoder.scheme) == "learned+permute(decay=false)"
    with pytest.raises(UserError, match="permuteformer_lm is performer_lm with 'permute'"):
        build("permuteformer_lm", decoder_position="rope")
    with pytest.raises(
        UserError, match="performer_lm has 'performer' attention; for 'softmax'"
    ):
        build("performer_lm", decoder_attention="softmax")
