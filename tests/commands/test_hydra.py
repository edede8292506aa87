"""fairseq-hydra-train: a yaml file, and hydra's own command line."""

import shlex

import torch
from conftest import SCRIPTS

YAML = """
# @package _group_
common:
  user_dir: {user_dir}
  seed: 7
  log_format: simple
  log_interval: 1
task:
  _name: language_modeling
  data: {data}
  tokens_per_sample: 64
dataset:
  max_tokens: 512
  num_workers: 0
criterion:
  _name: cross_entropy
optimizer:
  _name: adam
  adam_betas: (0.9,0.98)
lr_scheduler:
  _name: fixed
optimization:
  max_update: 3
  lr: [0.003]
checkpoint:
  save_dir: {save_dir}
model:
  _name: pe_lm_tiny
  decoder_position: sinusoidal(layout=interleaved)
  decoder_embed_dim: 32
"""


def config(folder, data, user_dir):
    folder.mkdir()
    text = YAML.format(user_dir=user_dir, data=data, save_dir=folder / "model")
    (folder / "mine.yaml").write_text(text)
    return (
        *("--config-dir", folder, "--config-name", "mine"),
        f"hydra.run.dir={folder / 'run'}",
    )


def test_a_yaml_file_names_the_model(fairseq, data, user_dir, tmp_path):
    arguments = config(tmp_path / "hydra", data, user_dir)
    fairseq("hydra-train", *arguments, user_dir=None)
    checkpoint = tmp_path / "hydra" / "model" / "checkpoint_last.pt"
    saved = torch.load(checkpoint)["cfg"]["model"]
    assert saved["decoder_position"] == "sinusoidal(layout=interleaved)"
    assert saved["decoder_layers"] == 2, "the size's own default, not the base model's"
    assert saved["decoder_normalize_before"] is True
    out = fairseq(
        "eval-lm",
        data,
        *("--path", checkpoint, "--tokens-per-sample", 64, "--max-tokens", 2000),
    ).stdout
    assert "Perplexity" in out


def test_quoting_on_hydra_s_command_line(program, data, user_dir, tmp_path):
    """As the README writes it for a shell: inner quotes, or hydra parses the spec."""
    words = config(tmp_path / "hydra", data, user_dir)
    command = shlex.join(map(str, (SCRIPTS / "fairseq-hydra-train", *words)))
    spec = "sinusoidal(layout=interleaved,base=500)"
    program("bash", "-c", f"{command} model.decoder_position='\"{spec}\"'")
    checkpoint = tmp_path / "hydra" / "model" / "checkpoint_last.pt"
    assert torch.load(checkpoint)["cfg"]["model"]["decoder_position"] == spec
    unquoted = program("bash", "-c", f"{command} model.decoder_position='{spec}'", check=False)
    assert unquoted.returncode != 0
