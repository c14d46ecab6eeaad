"""PyTorch's own databases of operators, modules and optimizers."""
