"""fairseq-preprocess on the splits of one language."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Optional

from ..errors import UserError
from ..user_dir import package_dir
from . import progress

# more than there may be cores: the first has its share to do when the others are done
WORKERS = 8


def binarise(splits: Dict[str, Path], folder: Path, dictionary: Optional[Path] = None):
    """Write the binary files and the dictionary of ``splits`` into ``folder``.

    Args:
        splits: the text of train, valid and test, words apart by blanks.
        dictionary: the dictionary to use; by default it has all words of train.

    Raises:
        UserError: fairseq-preprocess failed; the message has the last line it said.
    """
    command = [
        *(sys.executable, "-m", "fairseq_cli.preprocess", "--user-dir", str(package_dir())),
        *("--only-source", "--destdir", str(folder), "--workers", str(WORKERS)),
    ]
    if dictionary is not None:
        command += ["--srcdict", str(dictionary)]
    for split, text in splits.items():
        command += [f"--{split}pref", str(text)]
    with progress.during("binarising"), tempfile.TemporaryFile() as output:
        # a session of its own, so that its worker processes can be ended with it
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        output.seek(0)
        said = output.read().decode(errors="replace").strip().splitlines()
    if status:
        raise UserError(
            f"fairseq-preprocess failed with status {status}: {said[-1] if said else ''}"
        )
    (folder / "preprocess.log").unlink()
