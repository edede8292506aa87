#!/usr/bin/env python
"""Perplexity at lengths beyond the training length; --help says more."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # it may not be installed

from pe_fairseq.evaluation.extrapolation import main

if __name__ == "__main__":
    main()
