"""Every operator, module and optimizer against the native device, bit for bit.

harness    what runs cases natively and here, and compares
databases  PyTorch's own, entry by entry
features   what has no database
"""
