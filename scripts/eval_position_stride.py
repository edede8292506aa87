#!/usr/bin/env python
"""Perplexity with strided and shifted position ids; --help says more."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # it may not be installed

from pe_fairseq.evaluation.position_stride import main

if __name__ == "__main__":
    main()
