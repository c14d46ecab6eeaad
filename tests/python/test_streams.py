"""Streams and events under torch.cuda's names."""

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
