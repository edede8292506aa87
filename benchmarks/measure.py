"""Time and peak memory of calls, for the benchmarks."""

import multiprocessing
import statistics
import sys
import time
from pathlib import Path


def medians(calls, repeats):
    """Milliseconds of each call, the calls taking turns; the first round does not count."""
    seconds = {name: [] for name in calls}
    for round in range(repeats + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if round:
                seconds[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(values) for name, values in seconds.items()}


def peak_mib(make_call, name, length):
    """Peak memory of ``make_call(name, length)()`` in a fork, in MiB, beyond what was held.

    None where the system does not tell. A fork has no threads of a parent that used them, so
    memory is to be measured before time.
    """
    if not Path("/proc/self/clear_refs").exists():
        return None
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=_send_peak, args=(sender, make_call, name, length))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError:
        sys.exit(f"{name}, {length} tokens: the process ended without a result")
    finally:
        process.join()


def _send_peak(sender, make_call, name, length):
    make_call(name, 64)()  # what kernels and threads need once
    call = make_call(name, length)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins at what is held now
    held = _status("VmRSS")
    call()
    sender.send((_status("VmHWM") - held) / 1024)


def _status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))
