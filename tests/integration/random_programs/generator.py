"""Makes a program of a seed.

Lines are tried natively as they are made, so most of them work; some that do
not stay in, since errors have to be the same too.
"""

import random
import re

import torch

from random_programs import models, templates, toolbox
from random_programs.interpreter import execute_line
from random_programs.modes import MODES
from random_programs.program import OURS, Program

_BUDGETS = (1 << 20, 1 << 20, 3 << 19, 2 << 20, 3 << 20, 8 << 20)
_MOST_ELEMENTS = 40_000
_MOST_BYTES = 400_000
_MOST_ALIVE = 70
_SAMPLE_BYTES = 200_000
_SHAPES = (
    *((7,), (16,), (64,), (257,), (4, 5), (8, 8), (16, 16), (32, 48)),
    *((64, 64), (100, 100), (3, 4, 5), (2, 8, 8), (4, 16, 16)),
    *((2, 3, 8, 8), (4, 4, 8, 8), (2, 4, 5, 7), (1,), (0,), (3, 0, 2), ()),
)
_LARGE_SHAPES = (
    *((100, 100), (64, 64), (16, 16), (4, 16, 16), (160, 200), (2, 3, 8, 8)),
)
_DTYPES = {
    **{"float32": 50, "float64": 6, "bfloat16": 6, "float16": 4, "int64": 6},
    **{"bool": 3, "complex64": 4, "int32": 2, "uint8": 2},
}
_SCALARS = ("0.5", "-1.25", "2.0", "0.0", "1", "3e-3", "-0.0")
_CLOCKS = (
    "h200",
    "rtx4090",
    "a100-40gb",
    "base=h200, link_in=1e9, link_out=1e9, link_both=2e9",
)

# (lines of a body, rounds of a body) to choose among.
SIZES = {
    "small": ((10, 25, 40), (1, 2, 3)),
    "large": ((10, 25, 60, 120, 120, 200), (1, 3, 5, 8, 12)),
}


def is_tensor_name(name):
    """Of a line's own: p1 outlives a round, t1 does not."""
    return name[0] in "pt" and name[1:].isdigit()


class _NothingFitsError(Exception):
    """A template asks for what is not there."""


class Generator:
    """Makes one program, of `program()`."""

    def __init__(self, seed, mode="mixed", size="large"):
        self.seed, self.mode, self.size = seed, mode, size
        self.random = random.Random(seed)
        self.names = toolbox.names("cpu", seed)
        self.tasks = []
        self.made = 0

    # ---- operands ----------------------------------------------------------
    def _tensors(self, fits=lambda tensor: True):
        return [
            name
            for name, value in self.names.items()
            if is_tensor_name(name)
            and isinstance(value, torch.Tensor)
            and fits(value)
        ]

    def _pick(self, fits):
        found = self._tensors(fits)
        if not found:
            raise _NothingFitsError
        young = self.random.random() < 0.6
        return self.random.choice(found[-12:] if young else found)

    def _like(self, name):
        """A tensor to go with another one."""
        other = self.names.get(name)
        if other is not None and self.random.random() < 0.85:
            same = self._tensors(
                lambda t: t.shape == other.shape and t.dtype == other.dtype
            )
            if same:
                return self.random.choice(same)
        if other is not None and self.random.random() < 0.7:
            broadcast = self._tensors(
                lambda t: _is_float(t) and _broadcast(t.shape, other.shape)
            )
            if broadcast:
                return self.random.choice(broadcast)
        return self._pick(_is_float)

    def _list(self, chosen):
        """A list, or one that matches the first."""
        draws = self.random
        if "L" not in chosen:
            found = [
                self._pick(_is_listed) for _ in range(draws.randrange(1, 9))
            ]
            if draws.random() < 0.8:
                found = list(dict.fromkeys(found))
        else:
            found = []
            for name in chosen["L"][1:-1].split(", "):
                other = self.names[name]
                same = self._tensors(
                    lambda t, other=other: (
                        t.shape == other.shape and t.dtype == other.dtype
                    )
                )
                if not same:
                    raise _NothingFitsError
                found.append(draws.choice(same))
        return "[" + ", ".join(found) + "]"

    def _shape(self, name):
        count = self.names[name].numel() if name else 12
        shapes = [(count,), (1, count)] + ([(-1,)] if name else [])
        for k in (2, 3, 4, 5, 8):
            if count and count % k == 0:
                shapes += [(k, count // k), (count // k, k)]
        return str(self.random.choice(shapes))

    def _operand(self, key, chosen):
        draws = self.random
        if key == "r":
            self.made += 1
            return f"t{self.made}"
        if key in ("A", "C"):
            any_ = draws.random() >= 0.9
            return self._pick(_is_small if any_ else _is_float)
        if key == "B":
            return self._like(chosen.get("A"))
        if key == "X":
            return self._pick(_is_small)
        if key == "T":
            name = self._pick(lambda tensor: True)
            if name[0] == "p" and draws.random() < 0.9:
                raise _NothingFitsError
            return name
        if key in ("F2", "F3", "F4"):
            return self._pick(lambda t: _is_float(t) and t.dim() == int(key[1]))
        if key == "G2":
            rows = self.names[chosen["F2"]].shape[1]
            return self._pick(
                lambda t: _is_float(t) and t.dim() == 2 and t.shape[0] == rows
            )
        if key == "I":
            return self._pick(
                lambda t: t.dtype == torch.int64 and t.numel() < 2000
            )
        if key in ("L", "L2"):
            return self._list(chosen)
        if key == "shp":
            return self._shape(chosen.get("X") or chosen.get("A"))
        if key in ("m", "o"):
            if not self.tasks:
                raise _NothingFitsError
            chosen["m"], chosen["o"] = draws.choice(self.tasks)
            return chosen[key]
        choices = {
            "d": (0, -1, -1, 0, 1),
            "n": range(1, 9),
            "f": _SCALARS,
            "dt": (*_DTYPES, "complex64", "int32"),
            "how": tuple(models.STEPS),
            "budget": _BUDGETS,
        }
        return str(draws.choice(choices[key]))

    def _fill(self, template):
        chosen = {}

        def operand(match):
            key = match.group(1)
            if key not in chosen:
                chosen[key] = self._operand(key, chosen)
            return chosen[key]

        return re.sub(r"\{(\w+)\}", operand, template)

    # ---- lines -------------------------------------------------------------
    def _beside_native(self):
        draws = self.random
        steps = [
            self._fill(draws.choice(templates.BESIDE_NATIVE))
            for _ in range(draws.randrange(1, 4))
        ]
        name = self._pick(lambda t: _is_float(t) and 0 < t.numel() < 20_000)
        steps = [
            f"n_.{draws.choice(templates.ON_NATIVE)}",
            *steps,
            f"n_.{draws.choice(templates.ON_NATIVE)}",
        ]
        return f"with native({name}) as n_: " + "; ".join(steps)

    def _operator(self):
        draws = self.random
        for _ in range(20):
            name, variant = key = draws.choice(list(toolbox.OPERATORS))
            op = toolbox.OPERATORS[key]
            how = draws.choice(
                ["forward", "forward", "backward", "backward", "inplace"]
            )
            dtypes = (
                op.supported_backward_dtypes("cpu")
                if how == "backward"
                else op.supported_dtypes("cpu")
            )
            dtypes = sorted(str(d).removeprefix("torch.") for d in dtypes)
            if not dtypes:
                continue
            if "float32" in dtypes:
                dtypes += ["float32"] * 3
            dtype = draws.choice(dtypes)
            found = toolbox.samples(name, variant, dtype, how == "backward")
            if not found:
                continue
            number = draws.randrange(len(found))
            one = found[number]
            operands = toolbox.flat([one.input, list(one.args), one.kwargs])
            if sum(t.nbytes for t in operands) > _SAMPLE_BYTES:
                continue
            return self._fill(
                f"{{r}} = box.operator('{name}', '{variant}', '{dtype}', "
                f"{number}, '{how}')"
            )
        raise _NothingFitsError

    def _line(self):
        draws = self.random
        weights = MODES[self.mode]
        (kind,) = draws.choices(list(weights), list(weights.values()))
        if kind == "native":
            return self._beside_native()
        if kind == "operators":
            return self._operator()
        line = self._fill(draws.choice(templates.KINDS[kind]))
        if kind == "settings" or line.startswith("with"):
            return line
        chance = draws.random()
        if chance < 0.04:
            return f"if R.random() < 0.7: {line}"
        if chance < 0.06:
            return f"for _ in range({draws.randrange(2, 5)}): {line}"
        return line

    def _try(self, line):
        """Runs a line natively; whether it went well."""
        if line.startswith(OURS):
            return True
        return execute_line(line, self.names) is None

    def _is_too_large(self):
        large = self._tensors(
            lambda t: (
                t.layout == torch.strided
                and t.untyped_storage().nbytes() > _MOST_BYTES
            )
        )
        for name in large:
            del self.names[name]
        return bool(large)

    # ---- the whole ---------------------------------------------------------
    def _setup(self):
        draws = self.random
        lines = []
        for number in range(draws.randrange(10, 40)):
            (dtype,) = draws.choices(list(_DTYPES), list(_DTYPES.values()))
            shape = draws.choice(draws.choice([_SHAPES, _LARGE_SHAPES]))
            seed = draws.randrange(1000)
            line = f"p{number} = rnd({shape}, {seed}, torch.{dtype})"
            if draws.random() < 0.1 and len(shape) == 2:
                line += ".t()"
            elif dtype == "float32" and draws.random() < 0.15:
                line += ".requires_grad_()"
            lines.append(line)
        if "training" in MODES[self.mode]:
            most = 1 if self.size == "small" else 2
            for number in range(draws.randrange(most + 1)):
                lines += self._task(number)
        for line in lines:
            self._try(line)
        return lines

    def _task(self, number):
        draws = self.random
        kind = draws.choice(models.MODELS)
        name = draws.choice(models.OPTIMIZERS)
        how = draws.choice(["foreach", "foreach", "loop", "fused"])
        if how == "fused" and name not in models.FUSED:
            how = "foreach"
        self.tasks.append((f"m{number}", f"o{number}"))
        return [
            f"m{number} = Task('{kind}', {draws.randrange(99)}, D)",
            f"o{number} = optimizer(m{number}, '{name}', '{how}')",
        ]

    def _body(self):
        draws = self.random
        lines = []

        def add(line):
            self._try(line)
            lines.append(line)

        length = draws.choice(SIZES[self.size][0])
        for _ in range(6 * length):
            if len(lines) >= length:
                break
            try:
                line = self._line()
            except _NothingFitsError:
                continue
            went_well = self._try(line)
            if self._is_too_large() and draws.random() < 0.7:
                continue
            if went_well or draws.random() < 0.06:
                lines.append(line)
            if len(self._tensors()) > _MOST_ALIVE:
                young = [name for name in self._tensors() if name[0] == "t"]
                for name in draws.sample(young, min(8, len(young))):
                    add(f"del {name}")
        for _ in range(draws.randrange(6)):  # goes over to the next round
            old = [name for name in self._tensors() if name[0] == "p"]
            new = self._tensors(lambda t: t.numel() <= 20_000)
            if old and new:
                how = draws.choice(["detach()", "detach().clone()"])
                add(f"{draws.choice(old)} = {draws.choice(new)}.{how}")
        young = [name for name in self._tensors() if name[0] == "t"]
        kept = draws.sample(young, min(len(young), draws.randrange(8)))
        for name in young:
            if name not in kept:
                add(f"{name} = None")
        add("bag = []")
        return lines

    def _changed(self, lines):
        """A body that is not quite the one before."""
        draws = self.random
        changed = list(lines)
        for _ in range(draws.randrange(1, 4)):
            place = draws.randrange(len(changed))
            if draws.random() < 0.5 and len(changed) > 1:
                del changed[place]
                continue
            try:
                changed.insert(place, self._line())
            except _NothingFitsError:
                continue
        return changed

    def _settings(self):
        draws = self.random
        settings = {
            "hbm_budget": draws.choice(_BUDGETS),
            "policy": draws.choice(["forecast"] * 6 + ["lru"]),
            "recompute": draws.choice(["auto", "auto", "off"]),
            "adversary": None,
            "clock": None,
            "evict": draws.choice(["never"] * 6 + ["all", "random"]),
            "drop": draws.choice(
                ["never"] * 8 + ["record", "record", "random", "random"]
            ),
            "check": draws.choice([0.0, 0.2, 1.0]),
            "collect": draws.choice([None, None, 1, 20]),
        }
        # Without a clock the order checker is on.
        if draws.random() < 0.25:
            settings["clock"] = draws.choice(_CLOCKS)
        else:
            copies = draws.choice(["late", "reordered", "on_await", "on_await"])
            delay = draws.choice([0, draws.randrange(1, 9)])
            poison = draws.choice([0, 0, 1])
            seed = draws.randrange(99)
            settings["adversary"] = (
                f"copies={copies},compute_delay={delay},poison={poison},"
                f"seed={seed}"
            )
        return settings

    def program(self):
        draws = self.random
        torch.default_generator.manual_seed(self.seed)
        setup = self._setup()
        count = draws.choice([1, 1, 2, 2, 3] if self.size == "large" else [1])
        bodies = {f"b{number}": self._body() for number in range(count)}
        rounds = SIZES[self.size][1]
        schedule = []
        for _ in range(draws.randrange(1, 4)):
            name = draws.choice([f"b{number}" for number in range(count)])
            schedule.append((name, draws.choice(rounds)))
            if draws.random() < 0.25:
                other = name + "x"
                bodies[other] = self._changed(bodies[name])
                schedule.append((other, draws.choice([1, 2])))
                schedule.append((name, draws.choice([1, 2])))
        used = {name for name, _ in schedule}
        bodies = {name: lines for name, lines in bodies.items() if name in used}
        return Program(self.seed, setup, bodies, schedule, self._settings())


def _is_small(tensor):
    return tensor.numel() <= _MOST_ELEMENTS


def _is_float(tensor):
    return tensor.is_floating_point() and _is_small(tensor)


def _is_listed(tensor):
    """Of inference tensors a list op refuses some, or all, or the later."""
    return _is_float(tensor) and not tensor.is_inference()


def _broadcast(one, other):
    try:
        torch.broadcast_shapes(one, other)
    except RuntimeError:
        return False
    return True
