"""PyTorch's fused optimizers on the CPU beside those on CUDA: bits and speed.

    python optimizer_ops.py PLACE

Could the state of an optimizer stay on the host, and its step be made there,
without a bit changing? The same parameters, gradients and state take some steps
on each; what differs afterwards is counted. Then steps are timed: bytes that
they read and write, over the time. Each optimizer is one JSON line.
"""

import json
import statistics
import sys
import time

import places
import torch

SIZES = {"cuda": (16, 1 << 22), "emulated": (4, 1 << 12)}  # tensors, elements
COMPARED_STEPS = 3
TIMED_STEPS = 5
DTYPES = (torch.float32, torch.bfloat16)


def _adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, fused=True)


def _sgd(parameters):
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True)


# The optimizer, and how often a step reads or writes as much as a parameter.
OPTIMIZERS = {"adamw": (_adamw, 7), "sgd_momentum": (_sgd, 5)}


class Side:
    """An optimizer over random parameters, the same on every device."""

    def __init__(self, make, dtype, place, device):
        tensors, elements = SIZES[place]
        self._device, self._draws = device, torch.Generator().manual_seed(1)
        self._shape, self._dtype = (elements,), dtype
        self.parameters = [
            torch.nn.Parameter(self._random()) for _ in range(tensors)
        ]
        self._optimizer = make(self.parameters)

    def _random(self):
        numbers = torch.randn(self._shape, generator=self._draws)
        return numbers.to(self._device, self._dtype)

    def draw(self):
        """New gradients."""
        for parameter in self.parameters:
            parameter.grad = self._random()

    def step_s(self):
        """Seconds of a step."""
        self._wait()
        start = time.perf_counter()
        self._optimizer.step()
        self._wait()
        return time.perf_counter() - start

    def _wait(self):
        if self._device != "cpu":
            torch.cuda.synchronize()

    def values(self):
        """What it has now, by name; of each parameter a tensor on the CPU."""
        found = {"parameter": [p.detach().cpu() for p in self.parameters]}
        for parameter in self.parameters:
            for name, value in self._optimizer.state[parameter].items():
                if value is not None and name != "step":
                    found.setdefault(name, []).append(value.cpu())
        return found


def differences(one, other):
    """By name: how many elements differ, and by how much of their value."""
    found = {}
    for name, values in one.items():
        pairs = list(zip(values, other[name], strict=True))
        count = sum(int((a != b).sum()) for a, b in pairs)
        shares = [
            ((a.double() - b.double()).abs() / a.double().abs().clamp(1e-30))
            for a, b in pairs
        ]
        most = max(float(share.max()) for share in shares)
        found[name] = {"different": count, "most_relative": most}
    return found


def compared(place, name, dtype):
    """An optimizer's row."""
    make, times = OPTIMIZERS[name]
    devices = ("cpu", places.NATIVE[place])
    sides = [Side(make, dtype, place, device) for device in devices]
    for _ in range(COMPARED_STEPS):
        for side in sides:
            side.draw()
            side.step_s()
    differ = differences(*(side.values() for side in sides))
    tensors, elements = SIZES[place]
    moved = times * tensors * elements * dtype.itemsize
    seconds = [
        statistics.median(side.step_s() for _ in range(TIMED_STEPS))
        for side in sides
    ]
    return {
        "finding": "optimizer_ops",
        "optimizer": name,
        "dtype": str(dtype).removeprefix("torch."),
        "elements": tensors * elements,
        "are_bits_equal": not any(x["different"] for x in differ.values()),
        "differ": differ,
        "cpu_gb_s": moved / seconds[0] / 1e9,
        "cpu_threads": torch.get_num_threads(),
        "cuda_gb_s": moved / seconds[1] / 1e9,
    }


def main():
    [place] = sys.argv[1:]
    places.begin_native(place)
    for name in OPTIMIZERS:
        for dtype in DTYPES:
            print(json.dumps(compared(place, name, dtype)), flush=True)


if __name__ == "__main__":
    main()
