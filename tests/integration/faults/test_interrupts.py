"""Ctrl-C, exits, forks and garbage collections at any moment."""

import gc
import random
import signal
import sys

import pytest
import torch
import torch_chameleon
from support import MIB, same_bits
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch_chameleon import _C
from trainings import budget

SEED = 11


class Session:
    """A small training that can be put back to where it began."""

    def __init__(self, device):
        self.device = device
        draws = torch.Generator().manual_seed(1)
        torch.manual_seed(1)
        self.model = nn.Sequential(
            nn.Linear(256, 256),
            nn.LayerNorm(256),
            nn.GELU(),
            nn.Linear(256, 256),
            nn.Dropout(0.1),
            nn.Linear(256, 64),
        ).to(device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), foreach=True
        )
        self.x = torch.randn(64, 256, generator=draws).to(device)
        self.step()
        copy = torch.clone
        self.begin = {k: copy(v) for k, v in self.model.state_dict().items()}
        self.states = [
            {k: copy(v) for k, v in state.items()}
            for state in self.optimizer.state.values()
        ]

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(self.x).square().mean()
        loss = loss + F.dropout(self.x, 0.5).mean()
        loss.backward()
        self.optimizer.step()

    def again(self):
        """A step from the beginning; what it leaves."""
        self.model.load_state_dict(self.begin)
        with torch.no_grad():
            for state, old in zip(
                self.optimizer.state.values(), self.states, strict=True
            ):
                for key, value in old.items():
                    state[key].copy_(value)
        torch.manual_seed(2)
        self.step()
        left = [p.detach().cpu() for p in self.model.parameters()]
        return left + [
            s["exp_avg"].cpu() for s in self.optimizer.state.values()
        ]


def assert_all_is_well():
    torch.chameleon.synchronize()
    stats = torch_chameleon.swap_stats()
    assert stats["pinned_bytes"] == stats["foreign_bytes"] == 0
    _C.check_invariants(0, 3)


class After:
    """Raises KeyboardInterrupt at the nth call that Python code makes."""

    def __init__(self, nth):
        self.left = nth
        self.calls = 0

    def __call__(self, frame, event, argument):
        if event not in ("call", "c_call"):
            return
        self.calls += 1
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    def run(self, action):
        sys.setprofile(self)
        try:
            action()
        except KeyboardInterrupt:
            torch.set_grad_enabled(True)  # no_grad() may have left it off
            return True
        finally:
            sys.setprofile(None)
        return False


@pytest.fixture
def expected():
    return Session("cpu").again()


@pytest.fixture
def session():
    with budget(MIB, oversubscription=16.0):
        session = Session("chameleon")
        yield session
        assert torch_chameleon.swap_stats()["evictions"] > 0
        vars(session).clear()  # pytest still has it
        gc.collect()


def check_after(session, expected):
    assert_all_is_well()
    for one, other in zip(session.again(), expected, strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize(
    "times", [20, pytest.param(1000, marks=pytest.mark.slow)]
)
def test_interrupted_at_any_call(session, expected, times):
    counter = After(0)
    counter.run(session.step)
    draws = random.Random(SEED)
    fewest = counter.calls * 9 // 10  # a later step makes a few less
    for _ in range(times):
        nth = draws.randrange(1, fewest)
        print(f"the call number {nth} of {counter.calls}")
        assert After(nth).run(session.step)
        check_after(session, expected)


def raise_interrupt(number, frame):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "times", [10, pytest.param(300, marks=pytest.mark.slow)]
)
def test_interrupted_by_a_timer(session, expected, times):
    """Anywhere, also while threads wait: the signal comes when it comes."""
    draws = random.Random(SEED)
    before = signal.signal(signal.SIGALRM, raise_interrupt)
    interrupted = 0
    try:
        while interrupted < times:
            try:
                signal.setitimer(signal.ITIMER_REAL, draws.uniform(1e-4, 0.02))
                while True:
                    session.step()
            except KeyboardInterrupt:
                torch.set_grad_enabled(True)
                interrupted += 1
            check_after(session, expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class AtDeath:
    """Uses the device when it dies."""

    def __init__(self, tensor, log):
        self.tensor, self.log = tensor, log
        self.circle = self  # the collector is to find it

    def __del__(self):
        self.log.append(self.tensor.add_(1).sum().item())


class Through(torch.autograd.Function):
    """Python inside of autograd's threads, where collections happen, too."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        made = [[] for _ in range(50)]
        made.append(made)
        return gradient * 2


def test_collections_at_any_moment(tight):
    """Tensors die, and ops run, wherever the collector is called."""
    tight(MIB)
    log = []
    before = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for i in range(30):
            x = torch.full((256, 256), float(i), device="chameleon")
            AtDeath(x.clone(), log)
            y = x.requires_grad_()
            for _ in range(4):
                y = Through.apply(y)
            y.sum().backward()
            assert x.grad.cpu().eq(16).all()
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert sorted(log) == [(i + 1) * 65536.0 for i in range(30)]
    assert_all_is_well()


# ---- the end of a process, and its children

PROGRAM = """
import atexit, gc, os, sys, threading, torch, torch_chameleon
torch_chameleon.config.hbm_budget = 1 << 20
torch_chameleon.config.oversubscription = 16
def make():
    return [torch.full((256, 256), float(i), device="chameleon")
            for i in range(12)]
def right(tensors):
    return all(t.cpu().eq(i).all() for i, t in enumerate(tensors))
kept = make()  # three times the budget
"""


ENDS = {
    "exit": "sys.exit(3)",
    "circle": "kept.append(kept); del kept; sys.exit(3)",
    "at exit": "atexit.register(lambda: print(right(kept))); sys.exit(3)",
    "modules": "sys.modules['kept'] = kept; sys.exit(3)",
    "attribute": "torch.kept = kept; sys.exit(3)",
    "daemons": """
def held():
    ours = make()
    started.set()
    threading.Event().wait()  # for ever
started = threading.Event()
for _ in range(3):
    threading.Thread(target=held, daemon=True).start()
    started.wait()
    started.clear()
sys.exit(3)""",
    "hook": """
x = kept[0].requires_grad_()
x.register_hook(lambda gradient: sys.exit(3))
(x * 2).sum().backward()""",
    "thread": """
def leave():
    ours = make()
    raise SystemExit  # ends the thread alone
thread = threading.Thread(target=leave)
thread.start()
thread.join()
assert right(kept)
sys.exit(3)""",
}

# Each in a child that was forked before the device is used.
EXITS = """
import os, sys, tempfile, torch, torch_chameleon
for name, code in {ends!r}.items():
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            exec(code, globals())
        status = os.waitpid(child, 0)[1]
        output.seek(0)
        # Or the next child has it in its buffer, and prints it too.
        print(name, status >> 8, status & 255, output.read(), flush=True)
"""


def test_exits(fresh):
    ends = {name: PROGRAM + end for name, end in ENDS.items()}
    assert fresh(EXITS.format(ends=ends)).splitlines() == [
        f"{name} 3 0 " + (r"b'True\n'" if name == "at exit" else "b''")
        for name in ENDS
    ]


FORK = """
zeros = torch.zeros(256, 256)  # here: OpenMP's threads are lost in a child
uses = {
    "factory": lambda: torch.ones(3, device="chameleon"),
    "op": lambda: kept[0] + 1,
    "copy": lambda: kept[11].cpu(),
    "write": lambda: kept[3].copy_(zeros),
    "resident": lambda: torch_chameleon.resident(kept[2]).__enter__(),
    "view": lambda: kept[1][0].sum(),
    "synchronize": torch.chameleon.synchronize,
    "step": lambda: torch.nn.Linear(2, 2).to("chameleon"),
}
for t in kept[4:8]:
    t.mul_(1)  # copies are in flight
children = []
for how in ("exit", "_exit", "kill"):
    pid = os.fork()
    if pid == 0:
        errors = set()
        for name, use in uses.items():
            try:
                use()
            except RuntimeError as error:
                assert "fork" in str(error), error
                errors.add(name)
        assert errors == set(uses), set(uses) - errors
        del kept[::2]
        gc.collect()
        torch.ones(3).add_(1)  # the CPU's own goes on
        if how == "kill":
            os.kill(os.getpid(), 9)
        if how == "_exit":
            os._exit(5)
        sys.exit(5)
    children.append(pid)
    for t in kept:
        t.mul_(1)
ends = [os.waitpid(pid, 0)[1] for pid in children]
print(ends == [5 << 8, 5 << 8, 9], ends)
for t in kept:
    t.mul_(1)
assert right(kept)
torch_chameleon._C.check_invariants(0, 3)
assert torch_chameleon.swap_stats()["pinned_bytes"] == 0
"""


def test_a_forked_child_gets_errors_and_its_parent_is_unharmed(fresh):
    assert fresh(PROGRAM + FORK).startswith("True ")
