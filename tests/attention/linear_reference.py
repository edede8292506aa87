"""Linear attention from its formula, one pair of tokens at a time, in float64."""

import math


def by_loops(query, key, value, *, decay=None, log_scale=None, padding=None, causal, normalize):
    """Σ_j r^distance (φ(q_i) · φ(k_j)) v_j over the keys that i sees, by the weights' sum.

    Args:
        query, key: features, lists ``[batch][head][length][features]`` of numbers.
        value: ``[batch][head][length][head_dim]``.
        decay: r of each head, or None for 1. The distance counts real tokens.
        log_scale: keys are multiplied by exp of this, ``[batch][head][length]``, or None.
        padding: ``[batch][length]``, true at padding, or None.

    Returns:
        ``[batch][head][length][head_dim]``; 0 where no key is seen.
    """
    return [
        [
            [
                _output(
                    i,
                    query[b][h],
                    key[b][h],
                    value[b][h],
                    decay=1.0 if decay is None else decay[h],
                    log_scale=None if log_scale is None else log_scale[b][h],
                    padding=[False] * len(key[b][h]) if padding is None else padding[b],
                    causal=causal,
                    normalize=normalize,
                )
                for i in range(len(query[b][h]))
            ]
            for h in range(len(query[b]))
        ]
        for b in range(len(query))
    ]


def _output(i, query, key, value, *, decay, log_scale, padding, causal, normalize):
    total = 0.0
    output = [0.0] * len(value[0])
    for j in range(i + 1 if causal else len(key)):
        if padding[j]:
            continue
        distance = sum(not padding[n] for n in range(j + 1, i + 1))
        weight = sum(a * b for a, b in zip(query[i], key[j])) * decay**distance
        if log_scale is not None:
            weight *= math.exp(log_scale[j])
        total += weight
        output = [o + weight * v for o, v in zip(output, value[j])]
    return [o / total for o in output] if normalize and total else output
