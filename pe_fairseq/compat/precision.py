"""Repair 6: ``--bf16`` off TPUs, and ``--fp16`` on CPU.

``--bf16`` sets ``tpu`` in stock fairseq, which then looks for a TPU even where a GPU
is. ``--fp16`` keeps its float32 copy of the parameters per CUDA device, and asks for
the current one.
"""

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin

from .patching import replace


def without_tpu(args):
    """Take back ``tpu`` where there is none: torch_xla is not installed."""
    if distributed_utils.xm is None:
        args.tpu = False
    return args


def _build_fp32_params(stock_build):
    def build_fp32_params(cls, args, params, flatten=True):
        params = list(params)
        if not flatten or params[0].device.type != "cpu":
            return stock_build(cls, args, params, flatten)
        flat = torch.cat([p.detach().float().view(-1) for p in params])
        flat = torch.nn.Parameter(flat)
        flat.grad = torch.zeros_like(flat)
        return {None: flat}

    return build_fp32_params


def install():
    """Let parameters on CPU have their float32 copy under the device index None."""
    replace(_FP16OptimizerMixin, "build_fp32_params", _build_fp32_params)
