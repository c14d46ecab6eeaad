"""Other processes: they start, and tensors reach them through the CPU."""

import os
import queue
import sys
import threading
import time

import pytest
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset

MENTIONS_RESIDENT = r"between processes needs an address.*resident.*\.cpu\(\)"


def make():
    return torch.arange(3.0, device="chameleon")


def test_what_cuda_would_share_by_ipc_raises_one_sentence():
    ours = make()
    here, there = mp.Pipe()
    simple = mp.get_context("spawn").SimpleQueue()
    process = mp.get_context("spawn").Process(target=print, args=(ours,))
    for send in (here.send, simple.put):
        with pytest.raises(RuntimeError, match=MENTIONS_RESIDENT):
            send(ours)
    with pytest.raises(RuntimeError, match=MENTIONS_RESIDENT):
        process.start()
    for one in (here, there):
        one.close()


def test_queues_raise_in_their_reader():
    """A Queue pickles on a thread of its own, where nobody would catch it."""
    ours = make()
    tasks = mp.get_context("spawn").Queue()
    tasks.put(torch.ones(3))
    tasks.put({"a": [ours]})
    tasks.put("after")
    assert tasks.get(timeout=60).tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match=MENTIONS_RESIDENT):
        tasks.get(timeout=60)
    assert tasks.get(timeout=60) == "after"
    tasks.close()
    tasks.join_thread()


def test_a_bounded_queue_counts_right():
    tasks = mp.get_context("spawn").Queue(maxsize=1)
    for _ in range(3):
        tasks.put(make(), timeout=60)
        with pytest.raises(RuntimeError, match=MENTIONS_RESIDENT):
            tasks.get(timeout=60)
    assert tasks.empty()
    tasks.close()
    tasks.join_thread()


def _put_and_end(results):
    import torch_chameleon  # noqa: F401 (registers the device)

    results.put(torch.ones(3).to("chameleon"))


@pytest.mark.slow
def test_a_reader_is_told_by_a_process_that_ends():
    context = mp.get_context("spawn")
    results = context.Queue()
    worker = context.Process(target=_put_and_end, args=(results,))
    worker.start()
    with pytest.raises(RuntimeError, match="between processes"):
        results.get(timeout=120)
    worker.join()


def test_other_errors_in_a_queue_are_printed_as_ever(capfd):
    tasks = mp.get_context("spawn").Queue()
    tasks.put(lambda: None)  # cannot be pickled
    tasks.close()
    tasks.join_thread()
    assert "Traceback" in capfd.readouterr().err


def test_cpu_tensors_are_shared_as_ever():
    tasks = mp.get_context("spawn").SimpleQueue()
    tasks.put(torch.ones(3))
    assert tasks.get().tolist() == [1, 1, 1]
    assert torch.ones(3).share_memory_().is_shared()


def test_is_shared():
    ours = make()
    assert not ours.is_shared()
    assert not torch.nn.Parameter(ours).is_shared()


def test_forking_pickler_is_only_for_processes():
    """copy, pickle and torch.save are not concerned."""
    ours = make()
    import copy
    import pickle

    assert copy.deepcopy(ours).tolist() == [0, 1, 2]
    assert pickle.loads(pickle.dumps(ours)).tolist() == [0, 1, 2]


def _use_the_device(rank, results):
    import torch_chameleon  # noqa: F401 (registers the device)

    results.put((torch.ones(3, device="chameleon") * rank).sum().item())


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_use_devices_of_their_own(method):
    ours = make()
    context = mp.get_context(method)
    results = context.SimpleQueue()
    mp.start_processes(
        _use_the_device, (results,), nprocs=2, start_method=method
    )
    assert sorted(results.get() for _ in range(2)) == [0, 3]
    assert ours.sum().item() == 3


def _double(tasks, results):
    import torch_chameleon  # noqa: F401

    results.put((tasks.get().to("chameleon") * 2).cpu())
    tasks.get()  # keeps the shared memory until it was read


@pytest.mark.slow
def test_tensors_go_through_the_cpu():
    context = mp.get_context("spawn")
    tasks, results = context.Queue(), context.Queue()
    worker = context.Process(target=_double, args=(tasks, results))
    worker.start()
    tasks.put(torch.arange(3.0))
    assert results.get(timeout=120).tolist() == [0, 2, 4]
    tasks.put(None)
    worker.join()
    assert worker.exitcode == 0


# ---- data loaders


class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return {"x": torch.full((2,), float(index)), "y": index, "z": "text"}


class OnDevice(Numbers):
    def __getitem__(self, index):
        import torch_chameleon  # noqa: F401 (the first in a spawned worker)

        return torch.ones(2, device="chameleon") * index


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers, pin_memory):
    loader = DataLoader(
        Numbers(),
        batch_size=4,
        num_workers=workers,
        pin_memory=pin_memory,
        multiprocessing_context="fork" if workers else None,
    )
    total = 0
    for batch in loader:
        assert batch["x"].is_pinned() == pin_memory
        assert batch["y"].is_pinned() == pin_memory
        moved = batch["x"].to("chameleon", non_blocking=True)
        total += moved.sum().item()
    assert total == 2 * sum(range(12))


def test_early_end_of_a_pinning_loader():
    before = threading.active_count()
    loader = DataLoader(
        Numbers(),
        pin_memory=True,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    for _ in range(2):
        for index, _batch in enumerate(loader):
            if index == 2:
                break
    del loader, _batch
    deadline = time.monotonic() + 30  # threads end in their own time
    while threading.active_count() > before + 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_data_set_on_the_device():
    batches = list(DataLoader(OnDevice(), batch_size=6))
    assert all(batch.is_chameleon for batch in batches)
    assert batches[1].sum().item() == 2 * sum(range(6, 12))


def test_data_set_on_the_device_with_workers():
    """One sentence from the worker, as from CUDA in a forked process."""
    torch.ones(1, device="chameleon")
    loader = DataLoader(
        OnDevice(), num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(RuntimeError, match="chameleon.*fork|fork.*chameleon"):
        list(loader)


@pytest.mark.slow
def test_spawned_workers():
    loader = DataLoader(
        Numbers(),
        batch_size=4,
        num_workers=2,
        pin_memory=True,
        multiprocessing_context="spawn",
    )
    assert sum(b["y"].to("chameleon").sum().item() for b in loader) == 66


class OnDeviceInside(OnDevice):
    """Inside of a container that no walk over a batch would look into."""

    def __getitem__(self, index):
        return {super().__getitem__(index)}


def first_of(batch):
    return batch[0]


@pytest.mark.parametrize("pin_memory", [False, True])
@pytest.mark.parametrize("dataset", [OnDevice, OnDeviceInside])
@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_workers_that_return_device_tensors(
    method, dataset, pin_memory, fresh, tmp_path
):
    """The one who asked for a batch gets the sentence, and does not hang."""
    code = f"""
import torch
from test_multiprocessing import {dataset.__name__}, first_of
from torch.utils.data import DataLoader

if __name__ == "__main__":
    loader = DataLoader(
        {dataset.__name__}(),
        num_workers=1,
        collate_fn=first_of,
        multiprocessing_context="{method}",
        pin_memory={pin_memory},
    )
    try:
        list(loader)
    except RuntimeError as error:
        print(str(error).splitlines()[0], "resident" in str(error))
"""
    script = tmp_path / "loads.py"
    script.write_text(code)
    run = f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')"
    assert fresh(run, PYTHONPATH=os.pathsep.join(sys.path)) == (
        "Caught RuntimeError in DataLoader worker process 0. True"
    )


def test_threads_hand_over_tensors():
    ours = make()
    done = queue.Queue()
    thread = threading.Thread(target=lambda: done.put(ours * 2))
    thread.start()
    thread.join()
    assert done.get().tolist() == [0, 2, 4]
