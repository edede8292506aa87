"""``positions`` and ``attention`` need torch alone."""

import subprocess
import sys

PROGRAM = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fairseq", "hydra", "omegaconf"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hide())
import torch
import pe_fairseq
from pe_fairseq.attention import softmax_attention
from pe_fairseq.positions import ModelSize, parse

table = parse("learned").embedding(ModelSize(8, 16), torch.Generator())
x = table(torch.arange(4)[None]).unflatten(-1, (2, 4)).transpose(1, 2)
softmax_attention(x, x, x, causal=True)
assert "fairseq" not in sys.modules
assert isinstance(pe_fairseq.FAIRSEQ_ERROR, ModuleNotFoundError)
try:
    pe_fairseq.load
except pe_fairseq.errors.UserError as error:
    assert "run pe-fairseq doctor" in str(error)
print("works")
"""


def test_positions_and_attention_import_torch_only():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "works"
