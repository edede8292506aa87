"""What fairseq 0.12 needs on today's Python, torch and numpy.

Each module is one repair or guard, with its reason; ``apply`` is idempotent. A
plug-in is imported after ``import fairseq`` and before its tasks, data and main
function run, early enough for all of them.
"""

from .. import logs, user_dir
from . import (
    checkpoints,
    commands,
    data_threads,
    distributed,
    evaluation,
    memory,
    numpy_names,
    precision,
    tensorboard,
    training,
)


def apply():
    """Install every repair and guard, once."""
    for module in (
        logs,
        memory,
        numpy_names,
        checkpoints,
        data_threads,
        distributed,
        precision,
        evaluation,
        commands,
        training,
        tensorboard,
        user_dir,
    ):
        module.install()
