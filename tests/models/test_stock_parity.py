"""The same weights give the same function as stock fairseq."""

import numpy
import pytest
import torch
from build import LENGTH, build, build_stock, pad_left, pad_right, tokens

POSITIONS = {
    "sinusoidal": {},
    "learned": {"decoder_learned_pos": True},
    "none": {"no_token_positional_embeddings": True},
}
VARIANTS = {
    "plain": {},
    "tied": {"share_decoder_input_output_embed": True},
    "narrow input": {"decoder_input_dim": 8, "decoder_output_dim": 12},
    "normformer": {
        "scale_fc": True,
        "scale_attn": True,
        "scale_heads": True,
        "scale_resids": True,
        "layernorm_embedding": True,
    },
    "post-norm": {"decoder_normalize_before": False},
    "adaptive": {
        "adaptive_input": True,
        "adaptive_input_cutoff": "10,20",
        "adaptive_softmax_cutoff": "10,20",
        "tie_adaptive_weights": True,
        "tie_adaptive_proj": True,
        "no_decoder_final_norm": True,
    },
    "characters": {"character_embeddings": True, "character_embedding_dim": 4},
    "gelu, unscaled": {"activation_fn": "gelu", "no_scale_embedding": True},
    "quant noise": {"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 4},
    "layer drop": {"decoder_layerdrop": 0.5},
    "checkpointed": {"checkpoint_activations": True},
}


def pair(position, **options):
    stock = build_stock(**POSITIONS[position], **options)
    ours = build(decoder_position=position, **options)
    return stock, ours


def log_probs(model, rows, **kwargs):
    return model.get_normalized_probs(model(rows, **kwargs), log_probs=True)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_full_pass(position, variant):
    stock, ours = pair(position, **VARIANTS[variant])
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in stock.named_parameters()]
    ours.load_state_dict(stock.state_dict())
    rows = tokens()
    for batch in (rows, pad_left(rows, 3), pad_right(rows, 3)):
        real = batch.ne(ours.decoder.padding_idx)
        difference = log_probs(ours, batch) - log_probs(stock, batch)
        assert difference[real].abs().max() < 1e-5


@pytest.mark.parametrize("position", POSITIONS)
def test_training_step(position):
    """One backward pass gives stock's gradients."""
    stock, ours = pair(position)
    ours.load_state_dict(stock.state_dict())
    rows = tokens()
    for model in (stock, ours):
        model.train()
        log_probs(model, rows).gather(2, rows.unsqueeze(2)).sum().backward()
    for (name, p), q in zip(ours.named_parameters(), stock.parameters()):
        assert torch.allclose(p.grad, q.grad, atol=1e-4), name


@pytest.mark.parametrize("position", POSITIONS)
def test_unpadded_decoding(position):
    stock, ours = pair(position)
    ours.load_state_dict(stock.state_dict())
    rows, ours_state, stock_state = tokens(), {}, {}
    for n in range(1, rows.size(1) + 1):
        a = log_probs(ours, rows[:, :n], incremental_state=ours_state)
        b = log_probs(stock, rows[:, :n], incremental_state=stock_state)
        assert (a - b).abs().max() < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_with_one_seed_ours_starts_where_stock_starts(variant):
    stock, ours = pair("sinusoidal", **VARIANTS[variant])
    theirs = stock.state_dict()
    assert list(ours.state_dict()) == list(theirs)
    for name, value in ours.state_dict().items():
        if not name.endswith("_float_tensor"):  # never initialised, never read
            assert torch.equal(value, theirs[name]), name


def test_layers_drop_as_in_stock():
    stock, ours = pair("sinusoidal", decoder_layers=6, decoder_layerdrop=0.5)
    results = []
    for model in (stock, ours):
        model.train()
        torch.manual_seed(4)
        numpy.random.seed(4)
        results.append(log_probs(model, tokens()))
    assert torch.allclose(*results, atol=1e-5)
    assert not torch.allclose(results[1], log_probs(ours.eval(), tokens()), atol=1e-2)


def test_dropout_falls_where_it_falls_in_stock():
    stock, ours = pair("sinusoidal", dropout=0.2, attention_dropout=0.2, activation_dropout=0.1)
    results = []
    for model in (stock, ours):
        model.train()
        torch.manual_seed(4)
        results.append(log_probs(model, tokens()))
    assert torch.allclose(*results, atol=1e-5)


def test_old_sinusoidal_tables_in_checkpoints_are_dropped():
    stock, ours = pair("sinusoidal")
    state = stock.state_dict()
    state["decoder.embed_positions._float_tensor"] = torch.zeros(1)
    state["decoder.embed_positions.weights"] = torch.zeros(LENGTH, 16)
    ours.load_state_dict(state)


def test_head_weights_are_stock_weights():
    stock, ours = pair("sinusoidal")
    ours.load_state_dict(stock.state_dict())
    x = torch.randn(7, 3, 16)
    mask = torch.full((7, 7), float("-inf")).triu(1)
    module, theirs = ours.decoder.layers[0].self_attn, stock.decoder.layers[0].self_attn
    _, averaged = module(x, x, x, need_weights=True)
    expected = theirs(x, x, x, need_weights=True, attn_mask=mask)[1]
    assert torch.allclose(averaged, expected, atol=1e-6)
    output, per_head = module(x, x, x, need_head_weights=True)
    assert per_head.shape == (2, 3, 7, 7)
    assert torch.allclose(per_head.mean(0), averaged, atol=1e-6)
    assert torch.allclose(output, module(x, x, x, need_weights=False)[0], atol=1e-6)


def test_full_context():
    """Without the causal rule, on request, every token sees every other."""
    stock, ours = pair("sinusoidal")
    ours.load_state_dict(stock.state_dict())
    rows = tokens()
    got = ours.decoder(rows, full_context_alignment=True)[0]
    assert torch.allclose(got, stock.decoder(rows, full_context_alignment=True)[0], atol=1e-5)
    padded = ours.decoder(pad_right(rows, 3), full_context_alignment=True)[0][:, :-3]
    assert torch.allclose(padded, got, atol=1e-5)
    assert not torch.allclose(got, ours.decoder(rows)[0], atol=1e-2)
