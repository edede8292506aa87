#!/usr/bin/env python
"""Results of eval_extrapolation.py as a table, a CSV file and a plot; --help says more."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # it may not be installed

from pe_fairseq.evaluation.report import main

if __name__ == "__main__":
    main()
