#!/usr/bin/env python
"""Results of eval_extrapolation.py as a table, a CSV file and a plot; --help says more."""

from pe_fairseq.evaluation.report import main

if __name__ == "__main__":
    main()
