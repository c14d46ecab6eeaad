"""Random orders of models, optimizers and all that comes between: the bits.

Two optimizers share parameters of one model, under a budget that holds a part
of their state. For more seeds:

    python tests/integration/training/test_random_updates.py FIRST LAST
"""

import contextlib
import copy
import gc
import io
import random
import sys
import threading
import traceback

import pytest
import torch
import torch_chameleon
from support import same_bits
from torch import nn
from torch_chameleon import _C, _testing

WIDTH = 32
WORDS = 24

OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    lambda p: torch.optim.Adam(p, lr=0.01, foreach=True, amsgrad=True),
    lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    lambda p: torch.optim.AdamW(p, lr=0.01, fused=True, amsgrad=True),
    lambda p: torch.optim.AdamW(
        p, lr=torch.tensor(0.01, device=p[0].device), fused=True
    ),
    lambda p: torch.optim.RMSprop(
        p, lr=0.01, momentum=0.5, centered=True, foreach=True
    ),
    lambda p: torch.optim.NAdam(p, lr=0.01, foreach=True),
    lambda p: torch.optim.RAdam(p, lr=0.01, foreach=True),
    lambda p: torch.optim.Rprop(p, lr=0.01, foreach=True),
    lambda p: torch.optim.Adagrad(p, lr=0.01, foreach=True),
]


class Words(nn.Module):
    """With tied weights, and blocks that may be run again for backward."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()
            )
            for _ in range(4)
        )
        self.again = False

    def forward(self, x):
        h = self.words(x)
        for block in self.blocks:
            if self.again:
                h = h + torch.utils.checkpoint.checkpoint(
                    block, h, use_reentrant=False
                )
            else:
                h = h + block(h)
        return h @ self.words.weight.t()


class Program:
    """What lines of a program act on; `draws` are the same on any device."""

    def __init__(self, seed, device):
        self.draws = random.Random(seed)
        self.device = device
        torch.manual_seed(seed)
        dtype = self.draws.choice([torch.float32, torch.float32, torch.float64])
        self.model = Words().to(dtype).to(device)
        first = list(self.model.parameters())
        second = self.draws.sample(first, 6)
        self.optimizers = [
            self.draws.choice(OPTIMIZERS)(parameters)
            for parameters in (first, second)
        ]
        self.average = torch.optim.swa_utils.AveragedModel(
            self.model,
            multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9),
        )
        self.seen = []
        self.held = []

    def parameters(self):
        return list(self.model.parameters())

    def parameter(self):
        return self.draws.choice(self.parameters())

    def gradients(self):
        return [p.grad for p in self.parameters() if p.grad is not None]

    def states(self):
        return [
            value
            for optimizer in self.optimizers
            for state in optimizer.state.values()
            for value in state.values()
            if isinstance(value, torch.Tensor)
        ]

    def optimizer(self):
        return self.draws.choice(self.optimizers)

    def see(self, *tensors):
        self.seen.extend(tensor.detach().cpu().clone() for tensor in tensors)

    def input(self):
        draws = torch.Generator().manual_seed(self.draws.randrange(1 << 30))
        x = torch.randint(WORDS, (2, 6), generator=draws)
        return x.to(self.device)

    def only_here(self, action):
        """What native has no word for."""
        if self.device == "chameleon":
            action()

    def left(self):
        self.see(*self.parameters(), *self.gradients(), *self.states())
        self.see(*self.average.parameters(), *self.held)
        return self.seen


def backward(p):
    x = p.input()
    p.model.again = p.draws.random() < 0.3
    loss = nn.functional.cross_entropy(p.model(x).flatten(0, 1), x.flatten())
    loss.backward()
    if p.draws.random() < 0.3:
        p.see(loss)


def step(p):
    p.optimizer().step()


def whole_step(p):
    backward(p)
    optimizer = p.optimizer()
    optimizer.step()
    optimizer.zero_grad(set_to_none=p.draws.random() < 0.8)


def step_on_a_thread(p):
    on_a_thread(p.optimizer().step)


def on_a_thread(action):
    errors = []

    def run():
        try:
            action()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def clip(p):
    if p.gradients():
        p.see(nn.utils.clip_grad_norm_(p.parameters(), 0.1, foreach=True))


def scaled(p):
    scaler = torch.amp.GradScaler(p.device, init_scale=4.0)
    p.model.zero_grad()
    loss = p.model(p.input()).square().mean()
    if p.draws.random() < 0.3:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    optimizer = p.optimizers[0]
    if p.draws.random() < 0.5:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def write(p):
    parameter = p.parameter()
    with torch.no_grad():
        p.draws.choice(
            [
                lambda: parameter.mul_(0.5),
                lambda: parameter.view(-1)[3:9].fill_(0.25),
                lambda: parameter.t().add_(0.125),
                lambda: torch.mul(parameter, 2.0, out=parameter),
                lambda: parameter.copy_(torch.ones(parameter.shape)),
                lambda: parameter.copy_(parameter.clone()),
                lambda: parameter.untyped_storage().fill_(0),
                lambda: parameter[0].zero_(),
                lambda: parameter.view(-1).index_fill_(
                    0, torch.tensor([1, 2], device=p.device), 0.5
                ),
            ]
        )()


def exchange(p):
    parameter = p.parameter()
    old = parameter.detach()
    how = p.draws.randrange(6)
    with torch.no_grad():
        if how == 0:
            parameter.data = torch.full_like(parameter, 0.01)
        elif how == 1:
            parameter.set_(parameter.clone())
        elif how == 2:
            other = torch.full_like(parameter, 0.02)
            torch.utils.swap_tensors(parameter.data, other)
        elif how == 3:
            storage = parameter.untyped_storage()
            size = storage.nbytes()
            storage.resize_(size // 2)
            storage.resize_(size)
            parameter.view(-1)[parameter.numel() // 2 :].zero_()
        elif how == 4:
            storage = parameter.untyped_storage()
            size = storage.nbytes()
            storage.resize_(0)
            storage.resize_(size)
            parameter.fill_(0.03)
        else:
            parameter.grad = torch.full_like(parameter, 0.1)
    p.held = [*p.held[-3:], *([] if how in (3, 4) else [old])]


def read(p):
    parameter = p.parameter()
    reads = [
        lambda: p.see(parameter),
        lambda: p.see(torch.tensor(parameter.view(-1)[0].item())),
        lambda: p.see(parameter.view(-1)[2:5]),
        lambda: p.see(parameter.detach().t() + 1),
        lambda: p.see(torch.cat([x.flatten() for x in p.parameters()[:3]])),
        lambda: p.see(*torch._foreach_norm(p.parameters())),
        lambda: p.see(*p.states()),
        lambda: p.see(*p.gradients()),
        lambda: p.see(torch.tensor(parameter.tolist())),
        lambda: p.see(torch.frombuffer(
            bytearray(bytes(parameter.untyped_storage().cpu())),
            dtype=parameter.dtype)),
    ]  # fmt: skip
    p.draws.choice(reads)()


def read_on_a_thread(p):
    on_a_thread(lambda: read(p))


def lists(p):
    parameters = [x.detach() for x in p.parameters()]
    some = p.draws.sample(parameters, p.draws.randrange(2, len(parameters)))
    others = [torch.full_like(x, 0.01) for x in some]
    actions = [
        lambda: torch._foreach_mul_(some, 0.75),
        lambda: torch._foreach_add_(some, others, alpha=2),
        lambda: torch._foreach_lerp_(some, others, 0.1),
        lambda: torch._foreach_copy_(some, others),
        lambda: torch._foreach_zero_(some),
        lambda: torch._foreach_addcmul_(some, others, others, 0.5),
        lambda: torch._foreach_add_(some, [some[0]] * len(some))
        if len({x.shape for x in some}) == 1
        else None,
        lambda: p.gradients() and torch._foreach_neg_(p.gradients()),
        lambda: p.held.extend(torch._foreach_add(some, others)[:2]),
        lambda: p.held.extend(torch._foreach_sqrt(others)[1:]),
    ]  # fmt: skip
    p.draws.choice(actions)()
    p.held = p.held[-6:]


def save(p):
    file = io.BytesIO()
    optimizer = p.optimizer()
    torch.save((p.model.state_dict(), optimizer.state_dict()), file)
    if p.draws.random() < 0.5:
        file.seek(0)
        model, state = torch.load(file)
        p.model.load_state_dict(model)
        optimizer.load_state_dict(state)


def copies(p):
    with torch.no_grad():
        p.see(copy.deepcopy(p.model)(p.input()))


def rates(p):
    for group in p.optimizer().param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].mul_(0.9)
        else:
            group["lr"] *= 0.9


def evaluate(p):
    around = p.draws.choice([torch.no_grad, torch.inference_mode])
    with around():
        p.see(p.model(p.input()))


def functional(p):
    values = {name: x.detach() for name, x in p.model.named_parameters()}
    x = p.input()

    def loss(values):
        return torch.func.functional_call(p.model, values, x).square().mean()

    p.model.again = False
    p.see(*torch.func.grad(loss)(values).values())


def hook_that_fails(p):
    block = p.draws.choice(list(p.model.blocks))

    def fail(*_):
        raise KeyboardInterrupt

    handle = block.register_forward_hook(fail)
    with contextlib.suppress(KeyboardInterrupt):
        backward(p)
    handle.remove()


def settings(p):
    which = p.draws.randrange(8)
    value = p.draws.choice([1, 1, 2])
    seed = p.draws.randrange(99)
    mode = p.draws.choice(["never", "random", "all"])
    drop = p.draws.choice(["never", "record", "random"])
    parameter = p.parameter()
    actions = [
        lambda: _C.evict_all(0),
        torch.chameleon.synchronize,
        torch.chameleon.empty_cache,
        lambda: setattr(
            torch_chameleon.config, "hbm_budget", p.hbm_budget * value
        ),
        lambda: _testing.set_stress(mode, seed),
        lambda: _testing.set_drop_stress(drop, seed),
        torch_chameleon.step,
        lambda: _C.evict(parameter),
    ]
    p.only_here(actions[which])


def resident(p):
    parameter = p.parameter().detach()
    with contextlib.ExitStack() as stack:
        native = parameter
        if p.device == "chameleon":
            (native,) = stack.enter_context(torch_chameleon.resident(parameter))
        native.mul_(0.5)
        if p.draws.random() < 0.5:
            p.optimizer().step()
        native.add_(0.125)
        p.see(native)


def without_room(p):
    """What was deferred finds no room, and stays deferred."""
    parameter = p.parameter()

    def read_beside_pins():
        size = torch_chameleon.config.hbm_budget - p.left_bytes
        with contextlib.suppress(torch.OutOfMemoryError):
            pins = torch.zeros(size, dtype=torch.uint8, device="chameleon")
            with torch_chameleon.resident(pins):
                parameter.cpu()

    p.left_bytes = p.draws.choice([0, 1 << 10, 4 << 10, 16 << 10])
    p.only_here(read_beside_pins)


def step_in_backward(p):
    optimizer = torch.optim.AdamW(p.parameters()[:4], lr=0.01, fused=True)
    handles = [
        parameter.register_post_accumulate_grad_hook(
            lambda _: optimizer.step() or optimizer.zero_grad()
        )
        for parameter in p.parameters()[:4]
    ]
    backward(p)
    for handle in handles:
        handle.remove()


def on_a_stream(p):
    stream = p.device == "chameleon" and torch.Stream("chameleon")
    optimizer = p.optimizer()
    with stream or contextlib.nullcontext():
        optimizer.step()
    p.only_here(stream and torch.chameleon.synchronize)
    if p.draws.random() < 0.5:
        read(p)


def sparse(p):
    words = p.draws.sample(range(WORDS), 3)
    weight = p.model.words.weight
    gradient = torch.sparse_coo_tensor(
        [words], torch.ones(3, WIDTH, dtype=weight.dtype), weight.shape
    ).to(p.device)
    with torch.no_grad():
        weight.add_(gradient, alpha=0.1)
        p.see(torch.sparse.mm(gradient.to_dense().to_sparse(), weight.t()))


LINES = {
    whole_step: 30,
    backward: 12,
    step: 12,
    step_on_a_thread: 4,
    clip: 3,
    scaled: 5,
    write: 10,
    exchange: 8,
    read: 10,
    read_on_a_thread: 4,
    lists: 12,
    save: 2,
    copies: 2,
    rates: 4,
    evaluate: 5,
    functional: 3,
    hook_that_fails: 3,
    settings: 14,
    resident: 5,
    without_room: 4,
    on_a_stream: 4,
    sparse: 4,
    step_in_backward: 4,
    (lambda p: p.average.update_parameters(p.model)): 4,
    (lambda p: p.optimizer().zero_grad()): 4,
}


def run(seed, device, hbm_budget=0, lines=40):
    """What is left, and how many ops were deferred after all lines."""
    program = Program(seed, device)
    program.hbm_budget = hbm_budget
    deferred = 0
    for _ in range(lines):
        line = program.draws.choices(list(LINES), list(LINES.values()))[0]
        line(program)
        if device == "chameleon":
            deferred += _testing.deferred_op_count()
    return program.left(), deferred


def check(seed):
    expected, _ = run(seed, "cpu")
    size = 64 << 10
    try:
        with torch_chameleon.config.patch(
            hbm_budget=size, oversubscription=64.0
        ):
            results, deferred = run(seed, "chameleon", size)
    finally:
        _testing.set_stress("never", 0)
        _testing.set_drop_stress("never", 0)
    assert len(results) == len(expected)
    assert all(map(same_bits, results, expected))
    assert deferred > 0
    _C.check_invariants(0, 3)


@pytest.mark.parametrize("seed", range(8))
def test_bits(seed):
    check(seed)


if __name__ == "__main__":
    torch_chameleon.config.physical_device = "cpu"
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        try:
            check(number)
        except Exception:
            print("seed", number, flush=True)
            traceback.print_exc()
        gc.collect()
