#!/usr/bin/env python
"""Perplexity with strided and shifted position ids; --help says more."""

from pe_fairseq.evaluation.position_stride import main

if __name__ == "__main__":
    main()
