"""Where a step ends: at a mark, or at the end of an optimizer's step."""

import gc

import pytest
import torch
import torch.utils.checkpoint
import torch_chameleon
from support import MIB, same_bits
from torch_chameleon import _C, _steps, _testing
from torch_chameleon._optimizer_group import OptimizerGroup


def an_optimizer(device="cpu"):
    return torch.optim.SGD([torch.ones(2, device=device)], lr=0.1)


def ends(program):
    """Which of the steps of a program such as "DDG" end one."""
    group = OptimizerGroup()
    optimizers = {name: an_optimizer() for name in sorted(set(program))}
    found = (group.ends_step(optimizers[name]) for name in program)
    return "".join("x" if end else "." for end in found)


@pytest.mark.parametrize(
    ("first", "cycle", "expected"),
    [
        ("A", "A", "x"),
        ("AB", "AB", ".x"),
        ("DG", "DDDDDG", ".....x"),
        ("DDG", "DDG", "..x"),
        ("D" * 20 + "G", "DG", ".x"),  # the critic alone, at first
        ("D" * 20 + "G", "DDDDDG", ".....x"),
        ("abcdefghijklmnopqrstuvwxyz", "abcdefghijklmnopqrstuvwxyz",
         "." * 25 + "x"),
        ("AB" * 9, "AAB", "..x"),
        ("ABABAB" + "A" * 9, "A", "x"),  # B's phase is over
        ("ABABAB" + "A" * 9, "AB", ".x"),  # and comes again
        ("A" * 40 + "X", "A", "x"),  # a stranger came once
        ("ABABA" + "AB", "AB", ".x"),  # a loss scale made B skip one
    ],
)  # fmt: skip
def test_the_last_of_a_group_ends_it(first, cycle, expected):
    warm_up = first + 80 * cycle
    program = warm_up + 5 * cycle
    assert ends(program)[len(warm_up) :] == 5 * expected


def test_a_critic_steps_a_hundred_times_at_times():
    group = "D" * 100 + "G" + 20 * "DDDDDG"
    found = ends(3 * group)[-20 * 6 :]
    assert found == 20 * ".....x"


def test_optimizers_are_not_kept_alive():
    group = OptimizerGroup()
    optimizer = an_optimizer()
    group.ends_step(optimizer)
    del optimizer
    gc.collect()
    assert not list(group._steps)
    assert group.ends_step(an_optimizer())


@pytest.fixture
def marks(monkeypatch):
    """Counts the ends of steps that the profiler is told."""
    monkeypatch.setattr(_steps, "_since_mark", _steps._UNMARKED)
    monkeypatch.setattr(_steps, "_optimizers", OptimizerGroup())
    monkeypatch.setattr(_steps, "_backwards", 0)
    monkeypatch.setattr(_steps, "_usual_backwards", 0)
    found = []
    monkeypatch.setattr(_C, "step", found.append)
    with torch_chameleon.config.patch(step_marks="auto"):
        yield found


def test_an_optimizer_marks(marks):
    optimizer = an_optimizer("chameleon")
    for _ in range(3):
        optimizer.step()
    assert marks == [0, 0, 0]


def test_parameters_elsewhere_are_no_step(marks):
    an_optimizer("cpu").step()
    torch.optim.SGD([torch.ones(2, device="meta")]).step()
    assert marks == []


def test_marks_of_the_program_win(marks):
    optimizer = an_optimizer("chameleon")
    for _ in range(3):
        optimizer.step()
        optimizer.step()  # two a step
        torch_chameleon.step()
    assert len(marks) == 2 + 3  # the first two came before any mark
    for _ in range(2 * _steps._UNMARKED):  # it marks no longer
        optimizer.step()
    assert len(marks) == 2 + 3 + _steps._UNMARKED


@pytest.mark.parametrize(
    ("setting", "by_optimizer", "by_program"),
    [("auto", 1, 1), ("manual", 0, 1), ("off", 0, 0)],
)
def test_setting(marks, setting, by_optimizer, by_program):
    with torch_chameleon.config.patch(step_marks=setting):
        an_optimizer("chameleon").step()
        assert len(marks) == by_optimizer
        torch_chameleon.step()
        assert len(marks) == by_optimizer + by_program


def test_scaler_that_skips(marks):
    optimizer = an_optimizer("chameleon")
    scaler = torch.amp.GradScaler("chameleon", init_scale=4.0)
    weight = optimizer.param_groups[0]["params"][0]
    for gradient in (1.0, float("inf"), 1.0):
        weight.grad = torch.full((2,), gradient, device="chameleon")
        scaler.scale(weight.sum())
        scaler.step(optimizer)
        scaler.update()
    assert len(marks) == 2


def test_one_optimizer_a_parameter_in_backward(marks):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5))).to(
        "chameleon"
    )
    hooks = []
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], lr=0.1)

        def update(parameter, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        hooks.append(parameter.register_post_accumulate_grad_hook(update))
    model(torch.ones(2, 4, device="chameleon")).sum().backward()
    marks.clear()
    for step in range(1, 4):
        model(torch.ones(2, 4, device="chameleon")).sum().backward()
        assert len(marks) == step
    for hook in hooks:  # or parameter and optimizer hold each other
        hook.remove()


def test_a_closure_evaluates_as_often_as_it_likes(marks):
    weight = torch.ones(2, device="chameleon", requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (weight * weight).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert len(marks) == 2


AT_FIRST = _steps._PATIENCE  # backward passes: an optimizer may yet follow


@pytest.mark.parametrize("marks_by", ["manual", "auto"])
def test_what_was_put_off_belongs_to_the_step_that_needs_it(tight, marks_by):
    tight(2 * MIB)

    def run(device):
        torch.manual_seed(0)
        weights = [torch.rand(128, 256).to(device) for _ in range(8)]
        optimizer = torch.optim.SGD(weights, lr=0.1, foreach=True)
        other = torch.ones(2, device=device)
        ops = []
        for _ in range(3):
            for weight in weights:
                weight.grad = weight.cos()
            optimizer.step()
            if device == "chameleon":
                if marks_by == "manual":
                    torch_chameleon.step()
                assert _testing.deferred_op_count() == 1
            optimizer.zero_grad()
            other += 1
            if device == "chameleon":
                ops.append(torch_chameleon.profiler.last_step()["ops"])
        return weights, ops

    with torch_chameleon.config.patch(step_marks=marks_by):
        ours, ops = run("chameleon")
    native, _ = run("cpu")
    assert all(map(same_bits, ours, native))
    update = ops[1] - len(native) - 1  # cosines, and `other` of the step before
    assert update > 1  # it ran in chunks
    assert ops[2] == ops[1]


def backward(weight):
    (weight * weight).sum().backward()


def test_weights_changed_by_hand(marks):
    """Without an optimizer each backward pass ends a step, before long."""
    weight = torch.ones(2, device="chameleon", requires_grad=True)
    for _ in range(20):
        backward(weight)
        with torch.no_grad():
            weight -= 0.01 * weight.grad
    assert len(marks) == 20 - AT_FIRST
    for _ in range(4):
        (gradient,) = torch.autograd.grad((weight * weight).sum(), weight)
        assert gradient is not None
    assert len(marks) == 20 - AT_FIRST + 4


def test_many_backward_passes_an_optimizer_step(marks):
    optimizer = an_optimizer("chameleon")
    (weight,) = optimizer.param_groups[0]["params"]
    weight.requires_grad_()
    for _ in range(2):
        for _ in range(32):
            backward(weight)
        optimizer.step()
    assert len(marks) == 32 - AT_FIRST + 1 + 1  # it was not known at first


def test_a_backward_pass_in_another_one(marks):
    weight = torch.ones(2, device="chameleon", requires_grad=True)

    def square(x):
        return torch.utils.checkpoint.checkpoint(
            lambda x: x * x, x, use_reentrant=True
        )

    for _ in range(AT_FIRST + 1):
        square(square(square(weight))).sum().backward()
    assert len(marks) == 1


def test_backward_elsewhere_is_no_step(marks):
    weight = torch.ones(2, device="cpu", requires_grad=True)
    for _ in range(20):
        backward(weight)
    assert marks == []
