"""Repairs 3, 4 and 5: several processes without a GPU, and spawned ones that know us.

Stock fairseq counts GPUs to count processes. With none, torchrun divides by zero, its
own spawning asserts, and with an explicit init method it trains nothing and exits 0.
"""

import logging
import os

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from omegaconf import open_dict
from torch.nn.parallel import DistributedDataParallel

from ..errors import UserError, one_line_errors
from . import training
from .patching import replace

logger = logging.getLogger(__name__)


def on_cpu(cfg):
    """True where a run with ``cfg`` uses no GPU and no TPU."""
    return (cfg.common.cpu or not torch.cuda.is_available()) and not cfg.common.tpu


def run_in_process(rank, main, cfg, kwargs):
    """``distributed_main`` in a spawned process.

    Being in this package, it makes the child import the plug-in, and thereby repair
    fairseq and register our models, before it unpickles or reads the config. The module
    of ``main`` is imported after that.
    """
    training.install()
    with one_line_errors():
        stock_distributed_main(rank, main, cfg, kwargs)


def _call_main(stock_call_main):
    def call_main(cfg, main, **kwargs):
        with one_line_errors():
            notice_launcher(cfg.distributed_training)
            try:
                if on_cpu(cfg):
                    call_on_cpu(cfg, main, **kwargs)
                else:
                    stock_call_main(cfg, main, **kwargs)
            except torch.multiprocessing.ProcessExitedException as error:
                # the child has said why
                raise SystemExit(error.exit_code or 1) from None

    return call_main


LAUNCHED = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK")


def notice_launcher(training):
    """Count the processes that torchrun started.

    Stock fairseq counts GPUs first: with one or none in each process it takes itself
    for the only one, and all of them train alone and write to one folder.
    """
    if all(name in os.environ for name in LAUNCHED) and training.distributed_world_size == 1:
        training.distributed_world_size = int(os.environ["WORLD_SIZE"])


def call_on_cpu(cfg, main, **kwargs):
    """Run ``main(cfg)`` in as many CPU processes as ``cfg`` asks for.

    Processes are started by torchrun, by SLURM with one task each, or, with neither,
    spawned here: ``--distributed-world-size`` of them, all on this machine.
    """
    training = cfg.distributed_training
    spawn = False
    if training.distributed_world_size > 1 and training.distributed_init_method is None:
        spawn = infer_cpu_init(training)
    elif training.distributed_init_method is not None:
        spawn = not training.distributed_no_spawn
    if training.distributed_init_method is None:
        main(cfg, **kwargs)
        return
    if training.distributed_backend == "nccl":
        logger.info("no GPU: the distributed backend is gloo instead of nccl")
        training.distributed_backend = "gloo"
    if not spawn:
        run_in_process(0, main, cfg, kwargs)
        return
    if training.distributed_rank > 0:
        raise UserError(
            f"--distributed-rank {training.distributed_rank} with spawned processes on "
            "CPU: start each process yourself with --distributed-no-spawn, or all with "
            "torchrun"
        )
    with open_dict(training):
        training.distributed_num_procs = training.distributed_world_size
        training.distributed_rank = None  # each child takes its own
    torch.multiprocessing.spawn(
        run_in_process,
        args=(main, cfg, {**kwargs, "start_rank": 0}),
        nprocs=training.distributed_world_size,
    )


def infer_cpu_init(training):
    """Fill in the init method of ``training``; True if the processes must be spawned."""
    if all(name in os.environ for name in LAUNCHED):
        training.distributed_init_method = "env://"
        training.distributed_world_size = int(os.environ["WORLD_SIZE"])
        training.distributed_rank = int(os.environ["RANK"])
    elif int(os.environ.get("SLURM_NTASKS", 1)) > 1:
        if training.distributed_port <= 0:
            raise UserError("SLURM tasks need --distributed-port to find each other")
        distributed_utils._infer_slurm_init(training, None)
    else:
        training.distributed_init_method = f"tcp://localhost:{_free_port()}"
        return True
    training.device_id = 0
    training.distributed_no_spawn = True
    return False


def _free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def data_parallel(module, device_ids=None, output_device=None, **kwargs):
    """``DistributedDataParallel``, which takes device ids only of a model on a GPU."""
    refuse_shared_checkpoints(module)
    if next(module.parameters()).device.type == "cpu":
        device_ids = output_device = None
    return DistributedDataParallel(
        module, device_ids=device_ids, output_device=output_device, **kwargs
    )


def refuse_shared_checkpoints(module):
    """Raise UserError if layers that recompute their activations share a parameter.

    ``DistributedDataParallel`` sees such a parameter become ready twice, and stops.
    """
    seen = set()
    for layer in module.modules():
        if hasattr(layer, "precheckpoint_forward"):
            own = {id(parameter) for parameter in layer.parameters()}
            if own & seen:
                raise UserError(
                    "--checkpoint-activations with a position table that layers share needs "
                    "--ddp-backend legacy_ddp, or per_layer=true in the spec"
                )
            seen |= own


def _all_gather_list(stock_gather):
    def all_gather_list(data, group=None, max_size=16384):
        if not torch.cuda.is_available():
            # stock makes its buffer on a GPU, unless a large enough one is there
            if group is None:
                group = distributed_utils.get_global_group()
            size = max_size * distributed_utils.get_world_size(group)
            gather = distributed_utils.all_gather_list
            if not hasattr(gather, "_buffer") or gather._buffer.numel() < size:
                gather._buffer = torch.zeros(size, dtype=torch.uint8)
                gather._cpu_buffer = torch.zeros(max_size, dtype=torch.uint8)
        return stock_gather(data, group, max_size)

    return all_gather_list


def install():
    """Replace fairseq's process handling where it counts on a GPU."""
    global stock_distributed_main
    main = distributed_utils.distributed_main
    if main is not run_in_process:
        stock_distributed_main = main
        distributed_utils.distributed_main = run_in_process
    replace(distributed_utils, "call_main", _call_main)
    replace(distributed_utils, "all_gather_list", _all_gather_list)
    distributed_fairseq_model.DistributedDataParallel = data_parallel
