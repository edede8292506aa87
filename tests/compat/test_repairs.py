"""Repairs 2 to 6 and the guards, each against the fault itself."""

import subprocess
import sys
from types import SimpleNamespace

import numpy
import pytest
import torch
from build import build
from fairseq import options
from fairseq.data import Dictionary, TokenBlockDataset, data_utils
from fairseq.data.language_pair_dataset import LanguagePairDataset
from fairseq.distributed import utils as distributed_utils
from fairseq.models import DistributedFairseqModel
from fairseq.optim.fp16_optimizer import FP16Optimizer
from fairseq.tasks.language_modeling import LanguageModelingTask

from pe_fairseq import compat
from pe_fairseq.compat import distributed
from pe_fairseq.errors import UserError, describe


def test_applying_twice_changes_nothing():
    patched = (
        distributed_utils.call_main,
        distributed_utils.distributed_main,
        options.parse_args_and_arch,
        FP16Optimizer.build_fp32_params.__func__,
    )
    compat.apply()
    assert patched == (
        distributed_utils.call_main,
        distributed_utils.distributed_main,
        options.parse_args_and_arch,
        FP16Optimizer.build_fp32_params.__func__,
    )


LINES = [torch.tensor([5, 6, 2]), torch.tensor([7, 2])]


def test_numpy_blocks_by_sentence():
    blocks = TokenBlockDataset(LINES, [3, 2], None, pad=1, eos=2, break_mode="eos")
    assert [block.tolist() for block in blocks] == [[5, 6, 2], [7, 2]]


def test_numpy_pairs():
    pairs = LanguagePairDataset(
        LINES, numpy.array([3, 2]), Dictionary(), LINES, numpy.array([3, 2]), Dictionary()
    )
    assert pairs.filter_indices_by_size(numpy.array([0, 1]), (2, 2))[0].tolist() == [1]
    batches = pairs.batch_by_size(numpy.array([0, 1]), max_tokens=3)
    assert [list(batch) for batch in batches] == [[0], [1]]


def test_numpy_masks():
    numpy.random.seed(0)
    mask = data_utils.compute_mask_indices((2, 20), None, 0.5, 2, min_masks=1)
    assert mask.any()


def test_numpy_itself_is_left_alone():
    assert not hasattr(numpy, "int") and not hasattr(numpy, "compat")
    assert data_utils.np.zeros is numpy.zeros


@pytest.mark.skipif(torch.cuda.is_available(), reason="a machine without a GPU is meant")
class TestWithoutGpu:
    def test_gathering_lists(self, monkeypatch):
        monkeypatch.setattr(distributed_utils, "get_rank", lambda group: 0)
        monkeypatch.setattr(distributed_utils, "get_world_size", lambda group: 1)
        monkeypatch.setattr(distributed_utils, "all_reduce", lambda tensor, group: tensor)
        for size in (100, 4000):
            data = {"x": list(range(size // 40))}
            assert distributed_utils.all_gather_list(data, group=1, max_size=size) == [data]

    def test_data_parallel_takes_no_device_ids(self, tmp_path):
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", world_size=1, rank=0
        )
        try:
            args = SimpleNamespace(
                tpu=False,
                ddp_backend="pytorch_ddp",
                device_id=0,
                broadcast_buffers=False,
                bucket_cap_mb=25,
                find_unused_parameters=False,
                gradient_as_bucket_view=False,
                ddp_comm_hook="none",
                heartbeat_timeout=-1,
            )
            model = DistributedFairseqModel(args, build(), None, torch.device("cpu"))
            assert model(torch.tensor([[4, 5]]))[0].shape[:2] == (1, 2)
        finally:
            torch.distributed.destroy_process_group()

    @pytest.mark.parametrize("spec", ["t5", "shaw(per_layer=false)"])
    def test_a_shared_table_in_recomputed_layers(self, spec):
        model = build(decoder_position=spec, checkpoint_activations=True)
        with pytest.raises(UserError, match="--ddp-backend legacy_ddp"):
            distributed.data_parallel(model)
        distributed.refuse_shared_checkpoints(build(decoder_position=spec))
        separate = build(decoder_position="shaw", checkpoint_activations=True)
        distributed.refuse_shared_checkpoints(separate)

    def test_float32_copy_of_half_parameters(self):
        params = [torch.nn.Parameter(torch.full((n,), float(n)).half()) for n in (2, 3)]
        copy = FP16Optimizer.build_fp32_params(None, params)
        assert copy[None].dtype == torch.float32
        assert copy[None].tolist() == [2, 2, 3, 3, 3]
        assert copy[None].grad.tolist() == [0] * 5

    def training(self, **options):
        return SimpleNamespace(
            **{
                "distributed_world_size": 2,
                "distributed_rank": 0,
                "distributed_port": -1,
                "distributed_init_method": None,
                "distributed_no_spawn": False,
                "device_id": 3,
                **options,
            }
        )

    def test_torchrun(self, monkeypatch):
        for name, value in (
            ("MASTER_ADDR", "host"),
            ("MASTER_PORT", "1"),
            ("WORLD_SIZE", "4"),
            ("RANK", "3"),
        ):
            monkeypatch.setenv(name, value)
        training = self.training()
        assert distributed.infer_cpu_init(training) is False
        assert training.distributed_init_method == "env://"
        assert (training.distributed_world_size, training.distributed_rank) == (4, 3)
        assert training.device_id == 0 and training.distributed_no_spawn

    def test_own_spawning(self, monkeypatch):
        for name in ("MASTER_ADDR", "SLURM_NTASKS"):
            monkeypatch.delenv(name, raising=False)
        training = self.training()
        assert distributed.infer_cpu_init(training) is True
        assert training.distributed_init_method.startswith("tcp://localhost:")

    def test_slurm_tasks_need_a_port(self, monkeypatch):
        monkeypatch.setenv("SLURM_NTASKS", "2")
        with pytest.raises(UserError, match="--distributed-port"):
            distributed.infer_cpu_init(self.training())


def parse(*arguments):
    parser = options.get_training_parser()
    return options.parse_args_and_arch(parser, ["data", "--arch", "pe_lm_tiny", *arguments])


def test_bf16_asks_for_no_tpu():
    args = parse("--bf16")
    assert args.bf16 and not args.tpu


class Long:
    """A data set whose sizes alone matter."""

    def __init__(self, sizes):
        self.sizes = numpy.array(sizes)

    def size(self, index):
        return int(self.sizes[index])

    def filter_indices_by_size(self, indices, limit):
        return indices[self.sizes <= limit], list(indices[self.sizes > limit])


def test_an_evaluation_that_would_skip_is_an_error(monkeypatch):
    task = LanguageModelingTask(SimpleNamespace(tokens_per_sample=9), Dictionary())
    data = Long([4, 9, 9])

    def load(dataset, max_positions, ignore_invalid_inputs, **kwargs):
        indices = numpy.arange(3)
        kept = task.filter_indices_by_size(
            indices, dataset, max_positions, ignore_invalid_inputs
        )
        return SimpleNamespace(next_epoch_itr=lambda shuffle: kept)

    monkeypatch.setattr(task, "get_batch_iterator", load)
    assert len(task.eval_lm_dataloader(data, max_positions=9)) == 3
    with pytest.raises(UserError, match="2 of 3 blocks would be left out.*up to 9.*takes 8"):
        task.eval_lm_dataloader(data, max_positions=8)
    # training that was told to skip goes on
    assert len(task.filter_indices_by_size(numpy.arange(3), data, 8, True)) == 1


def test_a_dataloader_that_does_not_fit_is_one_line():
    error = RuntimeError("Cannot resume training due to dataloader mismatch, please report")
    assert "add --reset-dataloader" in describe(error)
    assert describe(RuntimeError("another")) is None


def test_logging_of_a_program_that_imports_us_stays_as_it_was():
    program = (
        "import logging; root = logging.getLogger(); before = (root.level, root.handlers[:]);"
        "import pe_fairseq; assert before == (root.level, root.handlers), root.handlers"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
