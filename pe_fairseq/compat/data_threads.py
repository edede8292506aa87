"""Repair: the thread that prepares batches ends before the interpreter does.

fairseq leaves it running. Where training stops inside an epoch, it can be in the middle of a
tensor operation when Python ends its threads, and then the process aborts after all is done:
"terminate called without an active exception", status 134.
"""

import atexit
import queue
import time
import weakref

from fairseq.data.iterators import BackgroundConsumer

from .patching import replace

PATIENCE_SECONDS = 10

_threads = weakref.WeakSet()


def _init(stock_init):
    def __init__(self, *args, **kwargs):
        stock_init(self, *args, **kwargs)
        _threads.add(self)

    return __init__


def stop():
    """Let every such thread end with the batch that it has in hand."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    for thread in list(_threads):
        thread._max_len = 0
        while thread.is_alive() and time.monotonic() < deadline:
            try:
                thread._queue.get_nowait()  # it may wait for room in its queue
            except queue.Empty:
                thread.join(timeout=0.01)


def install():
    """Stop the threads when the interpreter is about to end."""
    replace(BackgroundConsumer, "__init__", _init)
    atexit.unregister(stop)
    atexit.register(stop)
