"""fairseq models with our positions and attention."""
