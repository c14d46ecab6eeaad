"""What test_faults.py runs on an emulated GPU: each kind of failure.

cuDNN is not emulated, so CUDA's own convolutions and cells take its place; that
their bits are those of the CPU, oneDNN's stay away there. Prints, as JSON in
the last line, how many failures were met.
"""

import itertools
import json
import os

import emulated_cuda
import test_faults as faults
import torch
import torch_chameleon

EVERY = "CHAMELEON_TEST_EVERY_FAULT" in os.environ
NAME = os.environ["CHAMELEON_TEST_TRAINING"]

torch.set_num_threads(1)
torch.backends.cudnn.enabled = False
torch.backends.mkldnn.enabled = False
torch_chameleon.config.hbm_budget = "8MiB"
emulated_cuda.install()
torch.chameleon.init()
assert torch_chameleon._C.physical_device() == "cuda"
met = 0
with faults.short_of_memory_for(NAME):
    expected = faults.losses(NAME, 4)
    for point, for_ever in itertools.product(faults.POINTS, (False, True)):
        counts = itertools.count(1)
        if not EVERY:
            counts = [faults.drawn(NAME, point, for_ever)]
        for nth in counts:
            if not faults.fail(NAME, point, nth, for_ever, expected):
                break
            met += 1
print(json.dumps(met))
