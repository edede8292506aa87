"""Corpora: text from what is installed, or one's own, ready for fairseq-train."""
