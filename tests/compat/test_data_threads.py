"""No thread that prepares batches is left when the interpreter ends."""

import sys

PROGRAM = """
import sys, torch
import pe_fairseq
from fairseq.data.iterators import BufferedIterator

class Batches:
    def __len__(self):
        return 10**6
    def __iter__(self):
        while True:
            yield torch.ones(200, 200) @ torch.ones(200, 200)

batches = iter(BufferedIterator(4, Batches()))
next(batches)
import atexit, threading
from pe_fairseq.compat import data_threads
[thread] = data_threads._threads
assert thread.is_alive()
data_threads.stop()
print("alive" if thread.is_alive() else "ended")
"""


def test_it_ends_inside_an_epoch(program):
    assert program(sys.executable, "-c", PROGRAM).stdout.splitlines()[-1] == "ended"
    left_to_exit = PROGRAM.replace("data_threads.stop()\n", "")
    for _ in range(2):
        assert program(sys.executable, "-c", left_to_exit).returncode == 0
