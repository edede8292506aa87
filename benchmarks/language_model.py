"""``pe_lm`` against stock fairseq's ``transformer_lm``, in one run: training and decoding.

    python benchmarks/language_model.py --lengths 128,512,1024

Each figure is the median of ``--repeats`` rounds in which all models take turns; a ratio
is stock's time over ours, so more than 1 is faster than stock. Float32, dropout 0.
"""

import argparse
from argparse import Namespace
from functools import partial

import torch
from fairseq import models
from fairseq.data import Dictionary
from fairseq.models.transformer_lm import TransformerLanguageModelConfig
from fairseq.sequence_generator import EnsembleModel, SequenceGenerator
from measure import medians
from omegaconf import OmegaConf
from rich.console import Console
from rich.table import Table

import pe_fairseq
from pe_fairseq.models.config import PeLanguageModelConfig
from pe_fairseq.positions import SCHEMES

STOCK = "stock transformer_lm"


def build(name, dataclass, task, options, **changes):
    sizes = {
        "decoder_layers": options.layers,
        "decoder_embed_dim": options.dim,
        "decoder_input_dim": options.dim,
        "decoder_output_dim": options.dim,
        "decoder_ffn_embed_dim": 4 * options.dim,
        "decoder_attention_heads": options.heads,
        "decoder_normalize_before": True,
        "share_decoder_input_output_embed": True,
        "dropout": 0.0,
        "tokens_per_sample": max(options.lengths),
        "max_target_positions": None,
        "add_bos_token": False,
        "tpu": False,
    }
    config = OmegaConf.structured(dataclass(_name=name))
    for key, value in {**sizes, **changes}.items():
        config[key] = value
    torch.manual_seed(1)
    return models.build_model(config, task)


def training_step(model, tokens):
    model.train()
    logits = model(tokens[:, :-1])[0]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    model.zero_grad()


def decoding(model, tokens, dictionary, new=32):
    """Beam search of 5 over a prefix of the given length."""
    model.eval()
    generator = SequenceGenerator(
        EnsembleModel([model]), dictionary, beam_size=5, max_len_a=1, max_len_b=new
    )
    sample = {"net_input": {"src_tokens": tokens}, "id": torch.arange(len(tokens))}
    with torch.no_grad():
        generator.generate([model], sample, prefix_tokens=tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", default="128,512", help="tokens per row")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per batch")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dim", type=int, default=512, help="embedding dimension")
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--words", type=int, default=8000, help="size of the vocabulary")
    parser.add_argument("--repeats", type=int, default=5)
    softmax = [name for name, scheme in SCHEMES.items() if not scheme().decays]
    parser.add_argument("--schemes", default=",".join(softmax))
    options = parser.parse_args()
    options.lengths = [int(length) for length in options.lengths.split(",")]

    dictionary = Dictionary()
    for index in range(options.words):
        dictionary.add_symbol(str(index))
    task = Namespace(source_dictionary=dictionary, target_dictionary=dictionary)
    built = {STOCK: build("transformer_lm", TransformerLanguageModelConfig, task, options)}
    for scheme in options.schemes.split(","):
        built[scheme] = build(
            "pe_lm", PeLanguageModelConfig, task, options, decoder_position=scheme
        )

    table = Table(
        title=f"pe-fairseq {pe_fairseq.__version__}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {options.layers} layers of {options.dim}, "
        f"{options.tokens} tokens a batch"
    )
    for column in ("length", "model", "training tokens/s", "ratio", "decoding s", "ratio"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for length in options.lengths:
        rows = torch.randint(4, options.words, (max(1, options.tokens // length), length))
        prefix = rows[:1, :-33] if length > 64 else rows[:1, : length // 2]
        train = medians(
            {name: partial(training_step, model, rows) for name, model in built.items()},
            options.repeats,
        )
        decode = medians(
            {name: partial(decoding, m, prefix, dictionary) for name, m in built.items()},
            repeats=1,
        )
        for name in built:
            table.add_row(
                str(length),
                name,
                f"{1000 * rows.numel() / train[name]:,.0f}",
                f"{train[STOCK] / train[name]:.2f}",
                f"{decode[name] / 1000:.2f}",
                f"{decode[STOCK] / decode[name]:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
