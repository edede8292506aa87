#!/usr/bin/env python
"""Perplexity at lengths beyond the training length; --help says more."""

from pe_fairseq.evaluation.extrapolation import main

if __name__ == "__main__":
    main()
