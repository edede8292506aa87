"""Repair 2: names that numpy has dropped and fairseq still uses.

``np.compat.long`` (numpy 2) stands in the ``eos`` break mode and in batches of
translation pairs, ``np.int`` and ``np.float`` (numpy 1.24) in masking and CRF
modules. Only those modules see the old names; numpy itself stays as it is, so that
no other library takes it for an old one.
"""

import importlib
import types

import numpy

OLD_NAMES = {
    "compat": types.SimpleNamespace(long=numpy.int64),
    "int": int,
    "float": float,
}
MODULES = (
    "fairseq.data.token_block_dataset",
    "fairseq.data.language_pair_dataset",
    "fairseq.data.data_utils",
    "fairseq.modules.dynamic_crf_layer",
)


class _NumpyWithOldNames(types.ModuleType):
    def __getattr__(self, name):
        return getattr(numpy, name)


def install():
    """Give ``MODULES`` a view of numpy that still has the names it lacks."""
    missing = {name: value for name, value in OLD_NAMES.items() if not hasattr(numpy, name)}
    if not missing:
        return
    view = _NumpyWithOldNames("numpy")
    vars(view).update(missing)
    for name in MODULES:
        module = importlib.import_module(name)
        if module.np is numpy:
            module.np = view
