"""What test_training_benchmark.py runs on an emulated GPU: one point.

CHAMELEON_TEST_POINT has the arguments of point.measure() as JSON; prints what
it gives, as JSON in the last line. Times mean nothing there. Of the other ways
only the limit can be tried: plain CUDA tensors are not computed with there.
"""

import json
import os
import pathlib
import sys

import emulated_cuda
import torch

BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS / "training"))
from point import limit, measure  # noqa: E402

arguments = json.loads(os.environ["CHAMELEON_TEST_POINT"])
torch.set_num_threads(1)
limit("cuda", 4 << 20)
try:
    torch.empty(8 << 20, dtype=torch.uint8, device="cuda")
    sys.exit("the limit of the other ways does not hold")
except torch.OutOfMemoryError:
    limit("cuda", 1 << 50)  # more than there is
for kernels in ("cudnn", "flash", "mem_efficient"):  # only math is computed
    getattr(torch.backends.cuda, f"enable_{kernels}_sdp")(False)
import torch_chameleon  # noqa: E402, F401  (its own kernels are computed too)

emulated_cuda.install()
print(json.dumps(measure(**arguments)))
