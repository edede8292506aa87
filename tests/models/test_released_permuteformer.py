"""``permuteformer_lm_released`` against the formulas that Chen 2021 published as code."""

import math

import torch
from build import build

LENGTH, HEADS, HEAD_DIM = 513, 8, 64


def released(q, k, v):
    """One head at a time, one position at a time, in float64; ``(H, N, D)`` each.

    φ(x) = ReLU(x) + 0.001, permuted and decayed at absolute positions, and no denominator:

        output_i = Σ_{j ≤ i} (r^i P^i φ(q_i)) · (r^(−j) P^j φ(k_j)) v_j
    """
    generator = torch.Generator().manual_seed(0xDEADBEEFDEADBEEF)
    permutations = [torch.randperm(HEAD_DIM, generator=generator) for _ in range(HEADS)]
    output = torch.zeros_like(v)
    for head, permutation in enumerate(permutations):
        r = 1 / (1 + math.exp(-(2 + 3 * head / HEADS)))
        queries, keys, power = [], [], torch.arange(HEAD_DIM)
        for i in range(LENGTH):
            queries.append((q[head, i].clamp(min=0) + 1e-3)[power] * r**i)
            keys.append((k[head, i].clamp(min=0) + 1e-3)[power] * r**-i)
            power = power[permutation]
        for i in range(LENGTH):
            weights = torch.stack([queries[i] @ key for key in keys[: i + 1]])
            output[head, i] = weights @ v[head, : i + 1]
    return output


def test_it_is_the_published_formula_up_to_position_512():
    model = build(
        "permuteformer_lm_released",
        decoder_embed_dim=HEADS * HEAD_DIM,
        decoder_attention_heads=HEADS,
        decoder_layers=1,
        tokens_per_sample=LENGTH,
    )
    layer = model.decoder.layers[0].self_attn
    x = torch.randn(LENGTH, 1, HEADS * HEAD_DIM, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        got, _ = layer(x, x, x, need_weights=False)
        x = x.double()
        layer.double()
        q, k, v = (
            projection(x).view(LENGTH, HEADS, HEAD_DIM).transpose(0, 1)
            for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        joined = released(q, k, v).transpose(0, 1).reshape(LENGTH, 1, -1)
        want = layer.out_proj(joined)
    assert (got - want).abs().max() < 1e-5 * want.abs().max()
    # unnormalised sums grow with the position: each position is as near by itself
    by_position = (got - want).abs().amax(-1) / want.abs().amax(-1)
    assert by_position.max() < 1e-5


def test_every_layer_has_the_same_permutations_and_embeddings_stay():
    model = build("permuteformer_lm_released")
    first, second = (layer.self_attn.positions for layer in model.decoder.layers)
    assert first.query_key_map is second.query_key_map
    assert model.decoder.embed_positions is not None
    assert not model.decoder.layers[0].self_attn.linear.normalize
