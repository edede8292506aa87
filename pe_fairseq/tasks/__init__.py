"""fairseq tasks: what stock fairseq's own lack."""
