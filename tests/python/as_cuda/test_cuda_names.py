"""torch.chameleon has torch.cuda's names, or a reason."""

import pytest
import torch


def test_public_names_exist():
    for name in torch.chameleon.__all__:
        assert hasattr(torch.chameleon, name)


def test_answers_of_the_small_ones():
    assert torch.chameleon.can_device_access_peer(0, 0) is False
    with pytest.raises(AssertionError, match="Invalid device id: 7"):
        torch.chameleon.can_device_access_peer(0, 7)
    assert torch.chameleon.is_current_stream_capturing() is False
    assert torch.chameleon.get_allocator_backend() == "chameleon"
    assert isinstance(torch.chameleon.get_arch_list(), list)
    generator = torch.chameleon.default_generators[0]
    assert generator.device == torch.device("chameleon", 0)


def test_nested_stats_have_the_same_figures():
    keep = torch.ones(1000, device="chameleon")
    flat = torch.chameleon.memory_stats()
    nested = torch.chameleon.memory_stats_as_nested_dict()
    key = "allocated_bytes.all.current"
    assert nested["allocated_bytes"]["all"]["current"] == flat[key]
    assert flat[key] >= keep.nbytes
