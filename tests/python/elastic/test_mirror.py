"""A commit has the values of its moment, and copies what has changed."""

import mmap

import pytest
import torch
import torch_chameleon
from returning_rank import rank_fixture  # noqa: F401
from support import same_bits, values
from torch_chameleon import _C
from torch_chameleon.elastic._copies import UNKNOWN, Copies

MIB = 1 << 20


def mirrored_bytes():
    return torch_chameleon.swap_stats()["mirrored_bytes"]


def test_what_is_written_after_a_commit_is_not_in_it(rank):
    layer = torch.nn.Linear(64, 64).to("chameleon")
    expected = {k: v.cpu() for k, v in layer.state_dict().items()}
    state = rank.state(layer=layer, step=0)
    state.step = 1
    state.commit()
    with torch.no_grad():
        layer.weight.add_(1)
        layer.bias.zero_()
    rank.settle()
    other = torch.nn.Linear(64, 64).to("chameleon")
    assert rank.state(layer=other, step=0).step == 1
    for name, value in other.state_dict().items():
        assert same_bits(value, expected[name])


@pytest.mark.parametrize("evicted", [False, True])
def test_only_what_changed_is_copied_again(rank, evicted):
    layer = torch.nn.Linear(64, 64).to("chameleon")
    state = rank.state(layer=layer, step=0)
    both = layer.weight.nbytes + layer.bias.nbytes
    made = []
    for step in range(1, 6):
        with torch.no_grad():
            layer.bias.add_(1)
        if evicted:
            _C.evict_all(-1)
        before = mirrored_bytes()
        state.step = step
        state.commit()
        rank.settle()
        made.append(mirrored_bytes() - before)
    # Two generations have all of it, and then the weight.
    assert made == [both, both] + [layer.bias.nbytes] * 3
    other = torch.nn.Linear(64, 64).to("chameleon")
    assert rank.state(layer=other, step=0).step == 5
    assert same_bits(other.weight, layer.weight)
    assert same_bits(other.bias, layer.bias)


def test_a_step_says_what_went_out_for_commits(rank):
    layer = torch.nn.Linear(64, 64).to("chameleon")
    state = rank.state(layer=layer, step=0)
    for _ in range(3):
        with torch.no_grad():
            layer.weight.add_(1)
        state.step += 1
        state.commit()
        rank.settle()
        torch_chameleon.step()
    figures = torch_chameleon.profiler.last_step()
    assert figures["mirror_bytes_out"] == layer.weight.nbytes
    assert figures["bytes_out"] == 0


def test_tensors_that_are_not_in_one_piece(rank):
    kept = values("chameleon", 8, 6)
    state = rank.state(
        turned=Named(x=kept.t()),
        part=Named(x=kept[2:4]),
        empty=Named(x=kept[:0]),
    )
    state.commit()
    kept.zero_()
    rank.settle()
    names = ("turned", "part", "empty")
    back = rank.state(**{name: Named() for name in names})
    wanted = values("chameleon", 8, 6)
    assert same_bits(back.turned.state["x"], wanted.t())
    assert same_bits(back.part.state["x"], wanted[2:4])
    assert back.empty.state["x"].shape == (0, 6)


class Named:
    """Anything with a state_dict()."""

    def __init__(self, **state):
        self.state = state

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = state


def test_an_update_that_was_deferred_is_in_it(rank):
    def make():
        torch.manual_seed(0)
        return torch.nn.Sequential(
            *(torch.nn.Linear(128, 128) for _ in range(4))
        ).to("chameleon")

    def train(model, optimizer, after):
        for step in range(4):
            x = values("chameleon", 4, 128, seed=step)
            model(x).square().mean().backward()
            optimizer.step()
            after()
            optimizer.zero_grad()

    native = make()
    adamw = torch.optim.AdamW(native.parameters(), foreach=True)
    train(native, adamw, lambda: None)
    expected = [each.cpu() for each in native.parameters()]
    del native, adamw

    with torch_chameleon.config.patch(hbm_budget=MIB // 2, oversubscription=8):
        model = make()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        state = rank.state(model=model, optimizer=optimizer)
        train(model, optimizer, state.commit)
        rank.settle()
        assert torch_chameleon.swap_stats()["evictions"] > 0
        other = make()
        rank.state(
            model=other,
            optimizer=torch.optim.AdamW(other.parameters(), foreach=True),
        )
        for value, wanted in zip(other.parameters(), expected, strict=True):
            assert same_bits(value, wanted)


def test_blocks_get_values_and_say_which():
    copies = Copies()
    tensor = values("chameleon", 16)
    block = torch.zeros(tensor.nbytes, dtype=torch.uint8)
    (first,) = copies.begin([block], [tensor], [UNKNOWN])
    copies.finish()
    assert same_bits(block.view(tensor.dtype), tensor)
    assert copies.begin([block], [tensor], [first]) == [first]
    tensor.add_(1)
    expected = tensor.cpu()
    (second,) = copies.begin([block], [tensor], [first])
    tensor.add_(1)
    copies.finish()
    assert second not in (first, UNKNOWN)
    assert same_bits(block.view(tensor.dtype), expected)


def test_what_the_device_does_not_know_has_no_value():
    copies = Copies()
    block = torch.zeros(64, dtype=torch.uint8)
    assert copies.begin([block], [torch.ones(16)], [UNKNOWN]) == [UNKNOWN]
    assert block.view(torch.float32).tolist() == [1] * 16


def test_the_memory_is_pinned_until_it_is_mapped_anew(rank, monkeypatch):
    pinned = []

    def pin(device, address, size):
        assert address % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
        pinned.append((device, address, size))

    monkeypatch.setattr(_C, "pin_memory", pin)
    monkeypatch.setattr(_C, "unpin_memory", lambda *each: pinned.remove(each))
    kept = Named(x=values("chameleon", 8, 6))
    state = rank.state(kept=kept)
    for _ in range(4):
        state.commit()
        rank.settle()
    assert len(pinned) == 2
    kept.state["y"] = values("chameleon", 4096)
    for _ in range(2):
        state.commit()
        rank.settle()
    assert len(pinned) == 2
    assert all(size > 4096 * 4 for _, _, size in pinned)


def test_a_commit_after_a_failed_one_copies_all(rank):
    layer = torch.nn.Linear(64, 64).to("chameleon")
    state = rank.state(layer=layer)
    copies, both = rank.training.generations.copies, 0
    for _ in range(2):
        state.commit()
        rank.settle()
        both += layer.weight.nbytes + layer.bias.nbytes

    class Dies:
        def begin(self, blocks, tensors, had):
            blocks[0].zero_()
            raise KeyboardInterrupt

    rank.training.generations.copies = Dies()
    with pytest.raises(KeyboardInterrupt):
        state.commit()
    rank.training.generations.copies = copies
    before = mirrored_bytes()
    state.commit()
    rank.settle()
    assert mirrored_bytes() - before == both // 2
    other = torch.nn.Linear(64, 64).to("chameleon")
    rank.state(layer=other)
    assert same_bits(other.weight, layer.weight)
