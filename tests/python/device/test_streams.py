"""Streams and events under torch.cuda's names."""

import threading

import pytest
import torch


def test_default_is_current():
    assert torch.chameleon.current_stream() == torch.chameleon.default_stream()
    assert (
        torch.accelerator.current_stream() == torch.chameleon.current_stream()
    )
    assert torch.chameleon.current_stream().device.type == "chameleon"


def test_stream_context():
    default = torch.chameleon.current_stream()
    side = torch.chameleon.Stream()
    with torch.chameleon.stream(side):
        assert torch.chameleon.current_stream() == side
        with torch.chameleon.stream(None):
            assert torch.chameleon.current_stream() == side
    assert torch.chameleon.current_stream() == default
    torch.chameleon.set_stream(side)
    assert torch.chameleon.current_stream() == side
    torch.chameleon.set_stream(default)


def test_work_on_two_streams():
    side = torch.chameleon.Stream("chameleon:0", priority=-1)
    x = torch.ones(1000, device="chameleon")
    side.wait_stream(torch.chameleon.current_stream())
    with torch.chameleon.stream(side):
        y = x * 2
        y.record_stream(side)
        done = side.record_event()
    torch.chameleon.current_stream().wait_event(done)
    assert (x + y).sum().item() == 3000
    side.synchronize()
    assert side.query()


def test_events():
    start = torch.chameleon.Event(enable_timing=True)
    end = torch.chameleon.Event(enable_timing=True)
    start.record()
    torch.ones(100, device="chameleon").sum()
    end.record()
    end.synchronize()
    assert start.query()
    assert end.query()
    assert start.elapsed_time(end) >= 0
    torch.chameleon.synchronize()
    torch.chameleon.synchronize("chameleon:0")
    torch.accelerator.synchronize()


def test_generic_streams_and_events():
    """torch.Stream and torch.Event, which know no device by name."""
    side = torch.Stream(device="chameleon")
    assert side.device == torch.device("chameleon:0")
    assert side != torch.accelerator.current_stream()
    assert len({side, torch.Stream("chameleon"), side}) == 2
    first, last = (torch.Event("chameleon", enable_timing=True) for _ in "ab")
    with side:
        assert torch.accelerator.current_stream() == side
        first.record()
        x = torch.ones(1000, device="chameleon") * 2
        x.record_stream(side)
        last.record()
    torch.accelerator.current_stream().wait_stream(side)
    torch.accelerator.current_stream().wait_event(last)
    last.synchronize()
    assert last.query()
    assert first.elapsed_time(last) >= 0
    assert x.sum().item() == 2000


def test_events_that_were_not_recorded():
    event = torch.Event("chameleon")
    assert event.query()
    event.synchronize()
    torch.chameleon.current_stream().wait_event(event)
    timed = [torch.Event("chameleon", enable_timing=True) for _ in range(2)]
    with pytest.raises(ValueError, match="recorded before"):
        timed[0].elapsed_time(timed[1])
    plain = [torch.Event("chameleon") for _ in range(2)]
    for one in plain:
        one.record()
    with pytest.raises(ValueError, match="enable_timing"):
        plain[0].elapsed_time(plain[1])
    with pytest.raises(NotImplementedError, match="ipc"):
        torch.Event("chameleon", interprocess=True).ipc_handle()


def test_current_stream_is_per_thread():
    side = torch.chameleon.Stream()
    seen = []
    with torch.chameleon.stream(side):
        thread = threading.Thread(
            target=lambda: seen.append(torch.chameleon.current_stream())
        )
        thread.start()
        thread.join()
    assert seen == [torch.chameleon.default_stream()]


def test_backward_runs_on_the_streams_of_its_forward():
    side = torch.chameleon.Stream()
    x = torch.randn(100, device="chameleon", requires_grad=True)
    streams = []
    with torch.chameleon.stream(side):
        y = x.exp()
        y.register_hook(
            lambda _: streams.append(torch.accelerator.current_stream())
        )
        z = y.sum()
    z.backward()
    torch.chameleon.synchronize()
    assert streams == [side]
    assert torch.equal(x.grad, x.exp())


def test_tensors_move_between_streams_under_pressure(tight):
    """Evicted on one stream, used on another: every wait is in place."""
    parts = [
        torch.full((1 << 18,), float(i), device="chameleon") for i in range(12)
    ]
    tight(4 << 20)
    streams = [torch.chameleon.Stream() for _ in range(3)]
    for step in range(3):
        for index, part in enumerate(parts):
            stream = streams[(index + step) % 3]
            stream.wait_stream(streams[(index + step - 1) % 3])
            with torch.chameleon.stream(stream):
                part.add_(1)
    torch.chameleon.synchronize()
    for index, part in enumerate(parts):
        assert part.eq(index + 3).all().item()
