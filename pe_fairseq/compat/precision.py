"""Repair 6: ``--bf16`` off TPUs, and ``--fp16`` on CPU.

``--bf16`` sets ``tpu`` in stock fairseq, which then looks for a TPU even where a GPU
is. ``--fp16`` keeps its float32 copy of the parameters per CUDA device, and asks for
the current one.
"""

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin


def without_tpu(args):
    """Take back ``tpu`` where there is none: torch_xla is not installed."""
    if distributed_utils.xm is None:
        args.tpu = False
    return args


def install():
    """Let parameters on CPU have their float32 copy under the device index None."""
    stock_build = _FP16OptimizerMixin.build_fp32_params
    if hasattr(stock_build, "replaced_by_pe_fairseq"):
        return

    def build_fp32_params(cls, args, params, flatten=True):
        params = list(params)
        if not flatten or params[0].device.type != "cpu":
            return stock_build.__func__(cls, args, params, flatten)
        flat = torch.cat([p.detach().float().view(-1) for p in params])
        flat = torch.nn.Parameter(flat)
        flat.grad = torch.zeros_like(flat)
        return {None: flat}

    build_fp32_params.replaced_by_pe_fairseq = stock_build
    _FP16OptimizerMixin.build_fp32_params = classmethod(build_fp32_params)
