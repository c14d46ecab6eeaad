"""Generations in the memory of other machines: `--partner`."""
