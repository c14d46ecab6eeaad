"""Samples of an entry of an operator database."""

import itertools
import random

import numpy as np
import torch


def samples_of(op, dtype, *, make=None, requires_grad=False):
    """All samples, each of a seed of its own.

    OpInfo.sample_inputs() would look through the stack for the running test,
    and seed devices that are not there; both take longer than most ops.
    """
    make = make or op.sample_inputs_func
    return seeded(make(op, "cpu", dtype, requires_grad))


def seeded(samples):
    """The same, each made with a seed of its own."""
    samples = iter(samples)
    for number in itertools.count():
        torch.default_generator.manual_seed(number)
        random.seed(number)
        np.random.seed(number)
        try:
            yield next(samples)
        except StopIteration:
            return
