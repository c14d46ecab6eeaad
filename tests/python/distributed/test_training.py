"""Every way to train on several ranks has native's bits, under swapping."""

import pytest
from rank_results import results
from support import needs_testing

pytestmark = needs_testing

WAYS = [
    "ddp_plain",
    "ddp_device_ids",
    "ddp_bucket_view",
    "ddp_static_graph",
    "ddp_find_unused",
    "ddp_small_buckets",
    "ddp_no_sync_and_clip",
    "ddp_dropout_and_buffers",
    "ddp_hook_bf16",
    "ddp_hook_of_ones_own",
    "ddp_checkpointed",
    "ddp_sparse_embedding",
    "zero_redundancy",
    "fsdp2_plain",
    "fsdp2_keep_gathered",
    "fsdp2_bf16",
    "fsdp2_cpu_offload",
    "tensor_parallel",
    "sequence_parallel",
    "pipeline_1f1b",
    "pipeline_gpipe",
    "checkpoint_and_back",
]
MORE = [
    "hook_fp16",
    "hook_wrapped_in_bf16",
    "power_sgd",
    "power_sgd_in_fp16",
    "post_local_sgd",
    "attention_of_shards",
    "causal_attention_of_shards",
    "masked_attention_of_shards",
    "grouped_attention_of_shards",
    "pipeline_interleaved_1f1b",
    "pipeline_looped_bfs",
    "pipeline_interleaved_zero_bubble",
    "pipeline_zbv_zero_bubble",
    "pipeline_dual_pipe_v",
    "fsdp2_gathers",
    "fsdp2_freed_parameters",
    "fsdp1_plain",
    "fsdp1_gradients_sharded",
    "fsdp1_original_parameters",
    "fsdp1_cpu_offload",
    "fsdp1_bf16",
    "fsdp1_sharded_state",
]
OF_FOUR = ["hybrid_sharding", "two_dimensions"]


@pytest.mark.parametrize("way", WAYS)
def test_two_ranks(way):
    both = results(2, WAYS)
    both.check(way)
    assert both.evictions(way) > 0


@pytest.mark.parametrize("way", MORE)
def test_two_ranks_in_more_ways(way):
    both = results(2, MORE)
    both.check(way)
    assert both.evictions(way) > 0


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS + OF_FOUR)
def test_four_ranks(way):
    results(4, WAYS + OF_FOUR).check(way)


@pytest.mark.slow
@pytest.mark.parametrize("way", MORE)
def test_four_ranks_in_more_ways(way):
    results(4, MORE).check(way)
