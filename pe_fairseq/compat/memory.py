"""Repair: on a CPU, the memory of one update is kept for the next.

glibc gives every large block back to the kernel, which then clears its pages anew: for the
scores over a vocabulary that can take longer than computing them. Kept memory is faster, at
the price of a somewhat larger peak.
"""

import ctypes
import os
import sys

import torch

from ..errors import under_fairseq_command

# <malloc.h>
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
KEPT_BYTES = 2**31 - 1


def keep():
    """Let glibc keep what is freed, unless there is a GPU or the user has said otherwise."""
    said = any(name.startswith("MALLOC_") for name in os.environ) or any(
        name in os.environ for name in ("GLIBC_TUNABLES", "LD_PRELOAD")
    )
    if said or not sys.platform.startswith("linux") or torch.cuda.is_available():
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    # one arena, since those of threads are too small for a large block
    for option, value in (
        (M_ARENA_MAX, 1),
        (M_MMAP_MAX, 0),
        (M_TRIM_THRESHOLD, KEPT_BYTES),
    ):
        mallopt(option, value)


def install():
    """Keep memory under a fairseq command, not in a program that imports us."""
    if under_fairseq_command():
        keep()
