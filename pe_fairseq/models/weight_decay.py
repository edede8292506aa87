"""No weight decay on parameters that say so: it would pull frequencies towards 0."""

from fairseq import optim
from fairseq.optim.fp16_optimizer import FP16Optimizer, _FP16OptimizerMixin

from ..compat.patching import replace
from ..errors import UserError


def exempt(parameter):
    """True for a parameter that weight decay must leave alone."""
    return getattr(parameter, "no_weight_decay", False)


def _build(stock_build):
    def build_optimizer(cfg, params, *args, **kwargs):
        free = [parameter for parameter in params if exempt(parameter)]
        if free:
            decayed = [parameter for parameter in params if not exempt(parameter)]
            params = [{"params": decayed}, {"params": free, "weight_decay": 0.0}]
        return stock_build(cfg, params, *args, **kwargs)

    return build_optimizer


def _build_fp16(stock_build):
    def build_optimizer(cls, cfg, params, **kwargs):
        flat = not (cfg.common.fp16_no_flatten_grads or cfg.common.bf16)
        decay = getattr(cfg.optimizer, "weight_decay", 0)
        if flat and decay and any(map(exempt, params)):
            raise UserError(
                f"--fp16 keeps all parameters in one vector, so --weight-decay {decay} would "
                "pull the learned frequencies to 0; add --fp16-no-flatten-grads"
            )
        return stock_build(cls, cfg, params, **kwargs)

    return build_optimizer


def _copies(stock_copies):
    def build_fp32_params(cls, args, params, flatten=True):
        params = list(params)
        copies = stock_copies(cls, args, params, flatten=flatten)
        if not flatten:
            for parameter, copy in zip(params, copies):
                copy.no_weight_decay = exempt(parameter)
        return copies

    return build_fp32_params


def install():
    """Give exempt parameters a group of their own in every optimizer."""
    replace(optim, "_build_optimizer", _build)
    replace(FP16Optimizer, "build_optimizer", _build_fp16)
    replace(_FP16OptimizerMixin, "build_fp32_params", _copies)
