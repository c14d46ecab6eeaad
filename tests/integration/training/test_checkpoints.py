"""Checkpoints of a training that is mostly swapped out.

They are read where the bytes are: nothing comes into device memory, and host
memory grows by what each way of saving needs, exactly. Whoever resumes, within
another budget or natively, goes on with the same bits.
"""

import itertools
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch_chameleon
from support import MIB, cpu_peak_bytes, moved, same_bits
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves
from torch_chameleon import _C
from trainings import adamw, budget, gpt, text, token_loss

safetensors_torch = pytest.importorskip("safetensors.torch")

DATA = text(4)


class Session:
    """A training that can stop after any step and go on elsewhere."""

    def __init__(self, device):
        self.device = device
        self.model = gpt(device)
        self.optimizer = adamw(self.model)
        torch.manual_seed(5)

    def run(self, first, last):
        for x, y in DATA[first:last]:
            self.optimizer.zero_grad()
            logits = self.model(x.to(self.device))
            logits = F.dropout(logits, 0.1)
            token_loss(logits, y.to(self.device)).backward()
            self.optimizer.step()
        return self

    def state(self):
        here = torch.chameleon if self.device == "chameleon" else torch
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": here.get_rng_state(),
        }

    def load(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        here = torch.chameleon if self.device == "chameleon" else torch
        here.set_rng_state(state["random"].cpu())
        return self


def tensors_of(state):
    return [x for x in tree_leaves(state) if isinstance(x, torch.Tensor)]


def assert_same(one, other):
    one, how = tree_flatten(one)
    other, how_other = tree_flatten(other)
    assert how == how_other
    for a, b in zip(one, other, strict=True):
        if isinstance(a, torch.Tensor):
            assert same_bits(a, b)
        else:
            assert a == b


def through_torch_save(state, path, device):
    torch.save(state, path / "state.pt")
    return torch.load(path / "state.pt", weights_only=True, map_location=device)


def through_dcp(state, path, device):
    """Loads into tensors that exist: those of a training that has begun."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it runs in one process
        dcp.save(state, checkpoint_id=path / "state", no_dist=True)
        into = Session(device).run(0, 1).state()
        dcp.load(into, checkpoint_id=path / "state", no_dist=True)
    return into


OURS, NATIVE = "chameleon", "cpu"


@pytest.mark.parametrize(
    ("through", "legs"),
    [
        (through_torch_save, ((OURS, 3), (OURS, 1.5), (OURS, None))),
        (through_torch_save, ((OURS, 3), (NATIVE, None), (OURS, 3))),
        (through_torch_save, ((NATIVE, None), (OURS, 3), (NATIVE, None))),
        (through_dcp, ((OURS, 3), (NATIVE, None), (OURS, 1.5))),
    ],
)
def test_a_training_goes_on_elsewhere(tmp_path, through, legs):
    expected = Session("cpu").run(0, 4).state()
    with budget(1 << 30):
        Session("chameleon").run(0, 2)
        peak = torch_chameleon.swap_stats()["peak_logical_bytes"]
    state = None
    for first, (device, k) in enumerate(legs):
        size = 1 << 30 if k is None else int(peak / k)
        with budget(size, oversubscription=8.0):
            session = Session(device)
            if state is not None:
                session.load(state)
            state = session.run(first, first + 1 + (first == 2)).state()
            if device == "chameleon":
                _C.evict_all(0)
            if first == 2:
                assert_same(state, expected)
            else:
                path = tmp_path / str(first)
                path.mkdir()
                state = through(state, path, torch.device("cpu"))
            del session
            if first == 2:
                del state


# ---- what a save costs


class HostCopies(TorchDispatchMode):
    """The largest number of bytes that ops' results had on the CPU at once."""

    def __init__(self):
        super().__init__()
        self.peak_bytes = 0
        self._storages = {}  # weak references and sizes

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for x in tree_leaves(result):
            if isinstance(x, torch.Tensor) and x.device.type == "cpu":
                storage = x.untyped_storage()
                reference = torch.multiprocessing.reductions.StorageWeakRef(
                    storage
                )
                self._storages[reference] = storage.nbytes()
        self._storages = {
            reference: size
            for reference, size in self._storages.items()
            if not reference.expired()
        }
        level_bytes = sum(self._storages.values())
        self.peak_bytes = max(self.peak_bytes, level_bytes)
        return result


SIZES = [MIB, 3 * MIB, MIB, 2 * MIB, 2 * MIB, MIB]  # the budget is 4 MiB


@pytest.fixture
def swapped_out(tight, monkeypatch):
    """Tensors on the host, 2.5 times the budget; saving moves none of them."""
    tight(4 * MIB)
    monkeypatch.setattr(torch_chameleon.config, "oversubscription", 8.0)
    tensors = {
        str(i): torch.zeros(size // 4, device="chameleon").add_(i)
        for i, size in enumerate(SIZES)
    }
    _C.evict_all(0)
    torch_chameleon.reset_swap_stats()
    yield tensors
    for name, tensor in tensors.items():
        assert tensor.cpu().eq(int(name)).all()
    del tensor
    tensors.clear()  # pytest still has them


def assert_nothing_moves(save):
    change = moved(save)
    for key in ("bytes_in", "bytes_out", "faults", "evictions"):
        assert change[key] == 0
    for key in ("resident", "peak_resident", "host", "peak_host"):
        assert change[f"{key}_bytes"] == 0


def cost_of(save):
    """The peak that a save adds to torch's memory on the CPU."""
    peaks = []
    assert_nothing_moves(lambda: peaks.append(cpu_peak_bytes(save)))
    return peaks[0]


@pytest.mark.parametrize("to_file_object", [False, True])
def test_torch_save_needs_one_tensor(tmp_path, swapped_out, to_file_object):
    def save():
        if to_file_object:
            with open(tmp_path / "x", "wb") as file:
                torch.save(swapped_out, file)
        else:
            torch.save(swapped_out, tmp_path / "x")

    assert cost_of(save) == max(SIZES)


def test_save_safetensors_needs_one_buffer(tmp_path, swapped_out, monkeypatch):
    def save():
        torch_chameleon.save_safetensors(swapped_out, tmp_path / "x")

    assert cost_of(save) == max(SIZES)  # less than 16 MiB
    monkeypatch.setattr(torch_chameleon._safetensors, "_CHUNK_BYTES", 1 << 16)
    assert cost_of(save) == 1 << 16


def test_their_save_file_needs_all(tmp_path, swapped_out):
    def save():
        safetensors_torch.save_file(swapped_out, tmp_path / "x")

    assert cost_of(save) == sum(SIZES)


def dcp_peak(state, writer):
    with warnings.catch_warnings(), HostCopies() as copies:
        warnings.simplefilter("ignore")
        assert_nothing_moves(
            lambda: dcp.save(state, storage_writer=writer, no_dist=True)
        )
    return copies.peak_bytes


def test_dcp_needs_what_its_writer_keeps(tmp_path, swapped_out):
    """PyTorch's writer keeps each file's tensors, whatever the device."""
    state = {"model": swapped_out}
    one_file = FileSystemWriter(tmp_path / "one")
    assert dcp_peak(state, one_file) == sum(SIZES)
    files = FileSystemWriter(
        tmp_path / "each", single_file_per_rank=False, per_thread_copy_ahead=0
    )
    in_a_row = [a + b for a, b in itertools.pairwise(SIZES)]
    assert dcp_peak(state, files) == max(in_a_row)
    for folder in ("one", "each"):
        back = {k: torch.empty_like(x) for k, x in swapped_out.items()}
        _C.evict_all(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(
                {"model": back},
                storage_reader=FileSystemReader(tmp_path / folder),
                no_dist=True,
            )
        for name, tensor in back.items():
            assert same_bits(tensor, swapped_out[name])
        del back


def test_pinned_staging(tmp_path, swapped_out):
    """torch's option to copy through pinned memory."""
    with torch.utils.serialization.config.patch(
        {"save.use_pinned_memory_for_d2h": True}
    ):
        assert_nothing_moves(lambda: torch.save(swapped_out, tmp_path / "x"))
    loaded = torch.load(tmp_path / "x", map_location="cpu")
    assert all(same_bits(loaded[k], x) for k, x in swapped_out.items())


@pytest.mark.parametrize("mmap", [False, True])
def test_loading_streams_too(tmp_path, swapped_out, mmap):
    """One tensor at a time goes to the device, and on to the host."""
    torch.save(swapped_out, tmp_path / "x")
    loaded = None

    def load():
        nonlocal loaded
        loaded = torch.load(tmp_path / "x", map_location="chameleon", mmap=mmap)

    peak = cpu_peak_bytes(load)
    if mmap:  # the file's mapping counts, whole
        assert peak - (tmp_path / "x").stat().st_size < 4096
    else:
        assert peak == max(SIZES)
    stats = torch_chameleon.swap_stats()
    assert stats["peak_resident_bytes"] <= stats["hbm_budget"]
    for name, tensor in loaded.items():
        assert same_bits(tensor, swapped_out[name])


# ---- a training that is killed while it saves

KILLED = """
import os, random, signal, sys, time
sys.path[:0] = {paths!r}
import torch, torch_chameleon
from safetensors.torch import save_file

folder, how, seed = {folder!r}, {how!r}, {seed}
draws = random.Random(seed)
path = f"{{folder}}/state"

def save(number):
    tensors = {{
        str(i): torch.full((1 << 17,), float(number), device="chameleon")
        for i in range(8)
    }}
    if how == "safetensors":
        torch_chameleon.save_safetensors(tensors, path)
    else:
        with torch_chameleon.replace_file(path) as temporary:
            torch.save(tensors, temporary)

def saved():
    if how == "safetensors":
        from safetensors.torch import load_file
        tensors = load_file(path)
    else:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    numbers = {{x.unique().item() for x in tensors.values()}}
    assert len(tensors) == 8 and len(numbers) == 1, numbers
    return int(numbers.pop())

torch_chameleon.config.hbm_budget = 2 << 20
last, kept = 0, None
for run in range({runs}):
    read, write = os.pipe()
    child = os.fork()  # before the device is used
    if child == 0:
        torch.set_num_threads(1)
        for number in range(last, last + 10000):
            os.write(write, b"b")  # a save begins; all before it are done
            save(number)
    saves = draws.randrange(1, 4)
    for _ in range(saves):
        assert os.read(read, 1) == b"b"
    time.sleep(draws.random() * 0.02)  # anywhere in it, or later
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    os.close(write)
    rest = len(os.read(read, 1 << 16))
    os.close(read)
    begun = last + saves + rest - 1  # the one that may be lost
    before = begun - 1 if begun > last else kept
    kept = saved() if os.path.exists(path) else None
    assert kept in (begun, before), (kept, begun, before)
    for name in os.listdir(folder):
        if name != "state":
            assert name.startswith("state.") and name.endswith(".tmp")
            os.unlink(f"{{folder}}/{{name}}")
    last = begun + 1
print("runs", run + 1)
"""


@pytest.mark.parametrize(
    ("how", "runs"),
    [
        ("safetensors", 4),
        pytest.param("safetensors", 100, marks=pytest.mark.slow),
        pytest.param("torch.save", 100, marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(tmp_path, fresh, how, runs):
    """At most the save that ran is lost; a whole file is always there."""
    code = KILLED.format(
        paths=sys.path, folder=str(tmp_path), how=how, seed=runs, runs=runs
    )
    assert fresh(code) == f"runs {runs}"


def fails_while_writing(path):
    try:
        with torch_chameleon.replace_file(path) as temporary:
            Path(temporary).write_text("three")
            raise KeyboardInterrupt(5)
    except KeyboardInterrupt as error:
        return error.args[0]


def test_replace_file(tmp_path):
    path, link = tmp_path / "x", tmp_path / "link"
    link.symlink_to(path)
    for target, value in ((path, "one"), (link, "two")):
        with torch_chameleon.replace_file(target) as temporary:
            assert not path.exists() or path.read_text() == "one"
            Path(temporary).write_text(value)
    assert path.read_text() == "two"
    assert link.is_symlink()
    assert fails_while_writing(path) == 5
    assert path.read_text() == "two"
    assert sorted(os.listdir(tmp_path)) == ["link", "x"]
