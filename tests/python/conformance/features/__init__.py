"""What PyTorch has no database of."""
