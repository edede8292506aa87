"""How a trained model behaves: beyond its training length, and with other position ids."""
