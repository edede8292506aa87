"""Large blocks that are freed are used again, unless the user has said how to allocate."""

import sys

import pytest

PROBE = """
import resource, torch
from pe_fairseq.compat import memory
if {keep}: memory.keep()
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**24)
before = faults()
for _ in range(10): torch.ones(2**24)
print("faults", faults() - before)
"""
PAGES = 2**24 * 4 // 4096


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc alone")
def test_freed_memory_is_used_again(program):
    def faults(keep, **env):
        out = program(sys.executable, "-c", PROBE.format(keep=keep), env=env).stdout
        return int(out.rsplit("faults ", 1)[1])

    plain = faults(False)
    if plain < 9 * PAGES:
        pytest.skip("this machine has huge pages or another allocator")
    assert faults(True) < 2 * PAGES
    assert faults(True, MALLOC_ARENA_MAX="2") > 9 * PAGES
