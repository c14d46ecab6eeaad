"""Runs a program on a device and writes down what came of it.

A record is a tuple whose first item says what it is:

    ("error", where, line, type, text)   a line that raised
    ("values", where, {name: facts})     what all names hold
    ("memory", where, line, text)        out of memory, and where it ended
    ("ours", text)                       what chameleon alone had to say
"""

import functools
import gc
import hashlib
import random
import re

import torch
import torch_chameleon
from support import packed
from torch_chameleon import _C, _testing

from random_programs import toolbox
from random_programs.models import Task
from random_programs.program import OURS
from random_programs.toolbox import flat

# Such a line only makes a new tensor, so it may be tried again.
_MAKES_ONE = re.compile(r"t\d+ = (?!train|evaluate|box|ways)[^;]*$")
_AMPLE_BYTES = 256 << 20
_MOST_ELEMENTS = 40_000  # of what goes over to the next round
_MOST_BYTES = 400_000


@functools.cache
def _compiled(line):
    return compile(line, "<line>", "exec")


def execute_line(line, names):
    """Runs a line; the exception it raised."""
    try:
        exec(_compiled(line), names)
    except Exception as error:
        # The traceback would keep tensors of frames alive.
        return error.with_traceback(None)
    finally:
        torch.set_grad_enabled(True)
    return None


def _answer(ask):
    """What a tensor says, or that it does not say it."""
    try:
        return ask()
    except RuntimeError as error:
        return type(error).__name__


def facts_of(tensor):
    """All that can be seen of a tensor: (facts, bytes)."""
    if tensor.layout != torch.strided:
        return {"layout": str(tensor.layout)}, b""
    plain = tensor.detach()
    facts = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": tuple(tensor.shape),
        "strides": tuple(tensor.stride()),
        "offset": tensor.storage_offset(),
        "requires_grad": _answer(lambda: tensor.requires_grad),
        "is_leaf": _answer(lambda: tensor.is_leaf),
        "conj": tensor.is_conj(),
        "neg": tensor.is_neg(),
        "storage": _answer(lambda: tensor.untyped_storage().nbytes()),
    }
    try:
        plain = plain.resolve_conj().resolve_neg().cpu()
    except RuntimeError:  # it shows more than its storage has
        return facts | {"values": "unreadable"}, b""
    return facts, packed(plain).view(torch.uint8).numpy().tobytes()


def _seen(tensors):
    return [facts_of(tensor) for tensor in tensors]


def values(names):
    """{name: [(facts, bytes), ...]} of all that a program's lines made."""
    found = {}
    for name, value in names.items():
        if name != "bag" and not name[1:].isdigit():
            continue
        if isinstance(value, torch.Tensor):
            found[name] = _seen([value])
            if _answer(lambda value=value: value.is_leaf) is True:
                found[name + ".grad"] = _seen(flat([value.grad]))
        elif isinstance(value, Task):
            found[name] = _seen(value.model.state_dict().values())
            grads = [p.grad for p in value.model.parameters()]
            found[name + ".grad"] = _seen(flat(grads))
        elif isinstance(value, torch.optim.Optimizer):
            states = [list(state.values()) for state in value.state.values()]
            found[name] = _seen(flat(states))
        elif isinstance(value, (list, tuple, dict)) and flat(value):
            found[name] = _seen(flat(value))
        elif value is not None:
            found[name] = [({"value": repr(value)}, b"")]
    for name, state in {
        "random numbers": torch.get_rng_state(),
        "G": names["G"].get_state().cpu(),
    }.items():
        digest = hashlib.blake2b(state.numpy().tobytes()).hexdigest()
        found[name] = [({"state": digest}, b"")]
    return found


class Interpreter:
    """One run of a program on one device; `run()` returns its records."""

    def __init__(self, program, device, factor=1):
        self.program, self.device = program, device
        self.names = toolbox.names(device, program.seed)
        self.names["box"].factor = factor
        self.records = []
        self.retries = 0
        self.current = ""

    def run(self):
        program = self.program
        torch.default_generator.manual_seed(program.seed)
        draws = random.Random(program.seed + 2)
        for number, line in enumerate(program.setup):
            if not self._line(line, f"setup {number}"):
                return self.records
        self._look("setup")
        for part, (name, times) in enumerate(program.schedule):
            for again in range(times):
                where = f"{part} {name} round {again}"
                for number, line in enumerate(program.bodies[name]):
                    if not self._line(line, f"{where} line {number}"):
                        return self.records
                self._trim()
                is_last = again == times - 1
                if draws.random() < program.settings["check"] or is_last:
                    self._look(where)
        return self.records

    def _look(self, where):
        self.records.append(("values", where, values(self.names)))

    def _line(self, line, where):
        """Runs a line; False ends the program."""
        self.current = f"{where}: {line}"
        if line.startswith(OURS):
            self._line_of_ours(line.removeprefix(OURS))
            return True
        before = self._draws() if self.device != "cpu" else None
        error = execute_line(line, self.names)
        if isinstance(error, torch.OutOfMemoryError):
            if _MAKES_ONE.match(line):
                error = None
                error = self._with_room(line, before)
            if isinstance(error, torch.OutOfMemoryError):
                self.records.append(("memory", where, line, str(error)))
                return False
        if error is not None:
            row = ("error", where, line, type(error).__name__, str(error))
            self.records.append(row)
            if "out=" in line:  # native resizes it before it looks further
                for name in re.findall(r"[pt]\d+", line.partition("out=")[2]):
                    self.names[name] = None
        return True

    def _line_of_ours(self, line):
        if self.device == "cpu":
            return
        error = execute_line(line, self.names)
        if error is not None:
            text = f"{type(error).__name__}: {error}"
            self.records.append(("ours", self.current, text))

    def _draws(self):
        names = self.names
        return (
            torch.get_rng_state(),
            names["G"].get_state(),
            names["R"].getstate(),
        )

    def _with_room(self, line, draws):
        """Runs a line again that did not fit, with the same random numbers."""
        self.retries += 1
        torch.set_rng_state(draws[0])
        self.names["G"].set_state(draws[1])
        self.names["R"].setstate(draws[2])
        with torch_chameleon.config.patch(hbm_budget=_AMPLE_BYTES):
            return execute_line(line, self.names)

    def _trim(self):
        """Nothing grows from round to round."""
        for name, value in list(self.names.items()):
            if name[0] not in "pt" or not name[1:].isdigit():
                continue
            if isinstance(value, torch.Tensor):
                if value.layout == torch.strided and (
                    value.numel() > _MOST_ELEMENTS
                    or value.untyped_storage().nbytes() > _MOST_BYTES
                ):
                    self.names[name] = torch.zeros(8, device=self.device)
            elif sum(t.numel() for t in flat(value)) > 2 * _MOST_ELEMENTS:
                self.names[name] = None


def configure(settings, factor=1):
    """Before the device's first use."""
    config = torch_chameleon.config
    if settings["adversary"]:
        _testing.set_cpu_adversary(settings["adversary"])
    elif settings["clock"]:
        _testing.set_cpu_clock(settings["clock"])
    config.hbm_budget = settings["hbm_budget"] * factor
    config.oversubscription = 64
    config.policy = settings["policy"]
    config.recompute = settings["recompute"]
    torch.chameleon.init()
    seed = 1 + factor
    _testing.set_stress(settings["evict"], seed)
    _testing.set_drop_stress(settings["drop"], seed)
    if settings["collect"]:
        gc.set_threshold(settings["collect"], 5, 5)


def finish(largest_budget):
    """After a program: what is wrong with the device, and its counters."""
    _testing.set_stress("never", 0)
    _testing.set_drop_stress("never", 0)
    wrong = []
    try:
        torch.chameleon.synchronize()
        _C.check_invariants(0, 3)
    except RuntimeError as error:
        wrong.append(str(error))
    stats = torch_chameleon.swap_stats()
    if stats["peak_resident_bytes"] > largest_budget:
        wrong.append(
            f"{stats['peak_resident_bytes']} bytes were resident, "
            f"the largest budget is {largest_budget}"
        )
    for name in ("pinned_bytes", "foreign_bytes"):
        if stats[name]:
            wrong.append(f"{name} {stats[name]} when all is done")
    return wrong, stats
