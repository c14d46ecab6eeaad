"""What trainers of other projects need to be told about the device.

None of it is imported by `torch_chameleon` itself, and none of it changes
another library: `accelerate`, `transformers` and `lightning` are one module
each, for the library of that name.
"""
