"""The planted bugs: what each changes, and the tests that are run first.

The code has a marker, `// mutant: MARKER`, above the statement that a bug
changes. `change` is what stands there instead: other text, nothing (GONE), or
the statement with one piece of it replaced (a pair). Whitespace in a piece
counts as any whitespace. A statement ends at its semicolon; of an `if` or a
loop with braces it is the head, and in a list the entry.

`likely` are programs of tests/cpp ("memory_pager_test") or, for what needs
torch, files of tests/.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    name: str
    marker: str
    change: str | tuple[str, str]
    likely: tuple[str, ...]


GONE = ""
_RANDOM = ("memory_pager_random_test", "memory_pager_async_test")
_MIRROR = ("memory_mirror_test", *_RANDOM)
_RERUN = (
    "memory_recomputer_test",
    "memory_recomputer_scarcity_test",
    "memory_recomputer_random_test",
)

MUTATIONS = (
    # ---- missing waits ----------------------------------------------------
    Mutation(
        "an op does not wait for the last write of a fetched operand",
        "fetched-wait",
        GONE,
        _RANDOM,
    ),
    Mutation(
        "an op without the lock does not wait for the last write",
        "unlocked-wait",
        GONE,
        _RANDOM,
    ),
    Mutation(
        "memory inside a kernel is reused before its last user is done",
        "in-kernel-wait",
        GONE,
        _RANDOM,
    ),
    Mutation(
        "a victim is copied out before it is written",
        "victim-writes",
        GONE,
        _RANDOM,
    ),
    Mutation(
        "a collective does not wait for the ops before it",
        "collective-after-caller",
        GONE,
        ("python/as_cuda/test_cuda_emulated.py",),
    ),
    Mutation(
        "what a collective works on leaves before it is done",
        "operands-leave-early",
        GONE,
        ("python/as_cuda/test_cuda_emulated.py",),
    ),
    Mutation(
        "a place on the host is reused before its last copy is done",
        "host-place-fence",
        GONE,
        _RANDOM,
    ),
    Mutation(
        "bytes on the host move before they are all there",
        "host-move-filled",
        GONE,
        ("memory_residency_test", "memory_host_places_test"),
    ),
    Mutation(
        "bytes on the host move while a fetch reads them",
        "host-move-read",
        GONE,
        ("memory_residency_test",),
    ),
    Mutation(
        "free bytes on the host are overwritten while a copy uses them",
        "last-copies",
        ("synchronize(streams_, last)", "Error()"),
        ("memory_host_pool_test",),
    ),
    Mutation(
        "a victim's extent is reused before it is copied out",
        "victim-copied",
        GONE,
        _RANDOM,
    ),
    Mutation(
        "a fetch does not wait for the copy out of the same bytes",
        "host-ready",
        GONE,
        _RANDOM,
    ),
    Mutation(
        "a fetch goes to an extent that is still in use",
        "fetch-fence",
        GONE,
        _RANDOM,
    ),
    Mutation(
        "a move inside HBM does not wait for the uses of the block",
        "move-uses",
        ("core_.uses().usesOf(block)", "Fence()"),
        ("memory_pager_async_test", "memory_pager_cuda_test"),
    ),
    Mutation(
        "a block that slides does not wait for its uses",
        "slide-uses",
        GONE,
        ("memory_pager_async_test", "memory_pager_cuda_test"),
    ),
    Mutation(
        "an op does not wait for its operand to arrive where it moved",
        "moved-write",
        GONE,
        ("memory_pager_async_test", "memory_pager_cuda_test"),
    ),
    Mutation(
        "who gets a place that was emptied does not wait for the move",
        "emptied-fence",
        GONE,
        ("memory_pager_async_test", "memory_pager_cuda_test"),
    ),
    Mutation(
        "the host reads a copy that is not complete",
        "host-read-wait",
        "Error error;",
        _RANDOM,
    ),
    Mutation(
        "a mirror copies what the host is still being given",
        "mirror-host-ready",
        GONE,
        _MIRROR,
    ),
    Mutation(
        "a write is not ordered behind a mirror's copy of the old value",
        "mirror-write-wait",
        GONE,
        _MIRROR,
    ),
    Mutation(
        "a mirror copies a block before its last write",
        "mirror-writes",
        GONE,
        _MIRROR,
    ),
    Mutation(
        "who gets a block's place does not wait for its mirror's copy",
        "mirror-use",
        GONE,
        ("memory_mirror_test",),
    ),
    Mutation(
        "a block stays marked once its mirror's copies have passed",
        "mirror-bit",
        GONE,
        ("memory_mirror_test",),
    ),
    Mutation(
        "an op writes a block that a mirror has not copied",
        "mirror-before-write",
        ("wanted.write && block.isMirrored()", "false"),
        ("memory_mirror_test",),
    ),
    Mutation(
        "the host writes a copy that is being read",
        "host-write-wait",
        "Error error;",
        (*_RANDOM, "memory_pager_test"),
    ),
    Mutation(
        "a write is not ordered behind the write-back of the old value",
        "copied-ahead",
        GONE,
        ("memory_forecast_policy_test",),
    ),
    Mutation(
        "who gets an extent does not wait for its write-back",
        "write-back-use",
        GONE,
        ("memory_step_transfers_test", *_RANDOM),
    ),
    Mutation(
        "an event is recorded on the wrong stream",
        "event-stream",
        ("line.stream", "lines_[kCopyIn].stream"),
        ("memory_stream_positions_test",),
    ),
    Mutation(
        "the wrong stream is said to follow",
        "follower",
        ("lines_[index].follows[source]", "lines_[source].follows[index]"),
        ("memory_stream_positions_test",),
    ),
    Mutation(
        "cut free memory loses the fence of what is left",
        "cut-fence",
        GONE,
        ("memory_freed_room_test", "memory_arena_test"),
    ),
    Mutation(
        "freed memory loses its fence to the hole above",
        "hole-fence",
        GONE,
        ("memory_extent_map_test", "memory_arena_test"),
    ),
    Mutation(
        "the cpu runtime's engines ignore waits for each other",
        "engine-wait",
        "return true;",
        ("runtime_cpu_runtime_test",),
    ),
    Mutation(
        "moves through the bounce buffer of two streams overlap",
        "bounce-turn",
        ("bounce_used_ &&", "!bounce_used_ &&"),
        ("runtime_cuda_runtime_test",),
    ),
    # ---- clean copies -----------------------------------------------------
    Mutation(
        "the host copy of what is written stays clean",
        "stale-host-copy",
        ("wanted.write &&", "wanted.write && wanted.missing &&"),
        ("memory_pager_test",),
    ),
    Mutation(
        "without the lock a write leaves the host copy clean",
        "unlocked-host-copy",
        ("(Block::kHostCopyBit | Block::kKeptBits)", "Block::kKeptBits"),
        ("memory_pager_test",),
    ),
    Mutation(
        "a host copy is freed while it is being fetched from",
        "host-copy-uses",
        ("core_.uses().hostUsesOf(block)", "{}"),
        _RANDOM,
    ),
    Mutation(
        "a write-back that was cancelled still counts as a clean copy",
        "cancelled-is-clean",
        "if (std::exchange(block.copied_ahead, false)) return;",
        ("memory_step_transfers_test", "memory_forecast_policy_test"),
    ),
    Mutation(
        "a copy out counts as cancelled when it was not",
        "not-cancelled",
        (
            "!core_.runtime.cancel(core_.streams.stream(kCopyOut),"
            " destination)",
            "(core_.runtime.cancel(core_.streams.stream(kCopyOut),"
            " destination), false)",
        ),
        ("memory_step_transfers_test", "memory_pager_cuda_test"),
    ),
    # ---- registrations of host memory -------------------------------------
    Mutation(
        "a run over a chunk border",
        "chunk-border",
        (
            "std::min(slab.bytes, (offset / chunk + 1) * chunk)",
            "std::max(slab.bytes, chunk)",
        ),
        ("runtime_cuda_runtime_test",),
    ),
    Mutation(
        "what is not registered yet is one run",
        "chunk-border",
        (
            "std::min(slab.bytes, (offset / chunk + 1) * chunk)",
            "offset < slab.registered_bytes"
            " ? std::min(slab.bytes, (offset / chunk + 1) * chunk)"
            " : slab.bytes",
        ),
        ("runtime_cuda_runtime_test",),
    ),
    Mutation(
        "memory is registered before all of its pages are there",
        "all-pages-below",
        ("range.populated()", "range.begun"),
        ("runtime_page_populator_test", "runtime_cuda_host_memory_test"),
    ),
    Mutation(
        "memory goes while a thread populates it",
        "pages-go",
        GONE,
        ("runtime_page_populator_test",),
    ),
    Mutation(
        "a small read waits for evictions",
        "small-read",
        ("bytes <= kSmallReadBytes", "bytes == 0"),
        ("memory_step_transfers_test", "memory_pager_cuda_test"),
    ),
    # ---- pins, places, counts ---------------------------------------------
    Mutation(
        "a call that is given up keeps one pin",
        "leaving-pins",
        "for (const Operand& operand : call.pins)"
        " if (operand.block != call.pins[0].block)"
        " freed += unpin(*operand.block);",
        ("memory_pager_test",),
    ),
    Mutation(
        "a failed attempt without the lock keeps its pins",
        "failed-pins",
        (
            "i < pinned ? unpin(block) : block.rounded_bytes",
            "block.rounded_bytes",
        ),
        ("memory_pager_test",),
    ),
    Mutation(
        "an extent is one unit too long",
        "extent-bytes",
        ("offset - hole->offset", "offset - hole->offset + kAlignment"),
        ("memory_extent_map_test",),
    ),
    Mutation(
        "the host pool exceeds its budget by one unit",
        "pool-budget",
        (
            "budget_bytes & ~(kPageBytes - 1)",
            "(budget_bytes & ~(kPageBytes - 1)) + kPageBytes",
        ),
        ("memory_host_pool_test",),
    ),
    Mutation(
        "calls that do not fit together are let in",
        "admission",
        ("!alone ||", "!alone &&"),
        ("memory_admission_test",),
    ),
    Mutation(
        "a result is adopted and is the call's memory as well",
        "adopted-extent",
        GONE,
        ("memory_pager_test",),
    ),
    # ---- overwrites, failures ---------------------------------------------
    Mutation(
        "a result smaller than its block is taken for all of it",
        "smaller-result",
        ("old.keep_from < block.bytes", "old.keep_from == 0"),
        ("memory_overwrites_test",),
    ),
    Mutation(
        "a value that could not be brought back is not lost",
        "lost-value",
        GONE,
        ("memory_overwrites_test", "memory_pager_faults_test"),
    ),
    # ---- plans ------------------------------------------------------------
    Mutation(
        "a fetch is planned into room that is not free yet",
        "fetch-room",
        (
            "schedule_.fetch[absence.use], absence.returns",
            "schedule_.fetch[absence.use], absence.leaves",
        ),
        ("memory_planner_test", "memory_planner_random_test"),
    ),
    Mutation(
        "a write-back is planned before its write",
        "early-write-back",
        (
            "position, moment, table_.begin(write)",
            "position - 1, moment, table_.begin(write) - 1",
        ),
        ("memory_planner_test", "memory_planner_random_test"),
    ),
    # ---- re-runs ----------------------------------------------------------
    Mutation(
        "a value is dropped that is not the one recorded",
        "dropped-version",
        "if (false) {",
        _RERUN,
    ),
    Mutation(
        "a record outlives the value that it read",
        "outlived-readers",
        GONE,
        _RERUN,
    ),
    Mutation(
        "a writer does not wait for re-runs that need the old value",
        "re-run-first",
        ("writes(access)", "false"),
        _RERUN,
    ),
    Mutation(
        "who reads what was made again does not wait for it",
        "remade-write",
        GONE,
        ("memory_recomputer_test",),
    ),
    # ---- ops --------------------------------------------------------------
    Mutation(
        "the shape of an out= operand is not synced back",
        "out-shape",
        GONE,
        (
            "tests/python/ops/test_views.py",
            "tests/python/ops/test_overwrites.py",
        ),
    ),
    Mutation(
        "memory that an out= operand grew into is not synced back",
        "out-growth",
        ("alias.data() != before", "before == nullptr"),
        (
            "tests/python/ops/test_overwrites.py",
            "tests/python/device/test_storage.py",
        ),
    ),
    Mutation(
        "a result that is an operand becomes another one",
        "result-operand",
        ("outers_[i]", "outers_[0]"),
        (
            "tests/python/ops/test_direct_kernels.py",
            "tests/python/ops/test_custom_ops.py",
        ),
    ),
    Mutation(
        "a storage that two results share is adopted twice",
        "shared-result",
        ("storage.device_type() != kChameleon", "storage.nbytes() != 0"),
        (
            "tests/python/ops/test_custom_ops.py",
            "tests/python/ops/test_layouts.py",
        ),
    ),
    Mutation(
        "an overwrite of a part is taken for whole",
        "partial-overwrite",
        (
            "argument->overwrites && is_all_of_storage(impl)",
            "argument->overwrites",
        ),
        ("tests/python/ops/test_overwrites.py",),
    ),
    Mutation(
        "an operand that is read and overwritten is not fetched",
        "read-and-overwritten",
        GONE,
        ("tests/python/ops/test_overwrites.py",),
    ),
    Mutation(
        "arenas are copied as if they were mapped for both devices",
        "peer-copy",
        ("to_device != from_device", "to_device == from_device"),
        ("tests/python/device/test_several_devices.py",),
    ),
    Mutation(
        "a workspace in the arena",
        "workspace",
        GONE,
        ("tests/python/as_cuda/test_cuda_emulated.py",),
    ),
    Mutation(
        "an op is run again with today's generator",
        "re-run-generator",
        GONE,
        ("tests/python/ops/test_recompute.py",),
    ),
    Mutation(
        "a re-run leaves the default generator in the old state",
        "generator-restored",
        GONE,
        ("tests/python/ops/test_recompute.py",),
    ),
    Mutation(
        "a list run lets an operand go that a later op reads",
        "last-reader",
        GONE,
        ("tests/python/ops/test_deferred_lists.py",),
    ),
    Mutation(
        "an op does not wait for a deferred update of its operand",
        "deferred-operand",
        GONE,
        (
            "tests/python/ops/test_deferred_lists.py",
            "tests/integration/training/test_deferred_updates.py",
        ),
    ),
    Mutation(
        "an op on the short way does not, either",
        "deferred-direct",
        GONE,
        (
            "tests/python/ops/test_deferred_lists.py",
            "tests/integration/training/test_deferred_updates.py",
        ),
    ),
    Mutation(
        "a deferred update is not noted on its operands",
        "deferred-flag",
        ("true", "false"),
        ("tests/integration/training/test_deferred_updates.py",),
    ),
    Mutation(
        "a deferred update loses an operand that is emptied",
        "emptied-operand",
        GONE,
        ("tests/python/ops/test_deferred_lists_failing.py",),
    ),
    Mutation(
        "the last tensor of a long list is left out",
        "list-end",
        ("first < lists.length()", "first + 1 < lists.length()"),
        ("tests/python/ops/test_deferred_lists.py",),
    ),
    Mutation(
        "a transposed tensor is copied as if it were not",
        "transposed-copy",
        ("from.strides() == to.strides() &&", ""),
        (
            "tests/python/ops/test_layouts.py",
            "tests/python/device/test_storage.py",
        ),
    ),
    Mutation(
        "an unannounced writer is missing",
        "unannounced",
        GONE,
        ("tests/python/as_cuda/test_cuda_emulated.py",),
    ),
    Mutation(
        "a version is not counted",
        "version",
        ("counts_versions_", "!counts_versions_"),
        (
            "tests/python/ops/test_in_place.py",
            "tests/python/ops/test_autograd.py",
        ),
    ),
    Mutation(
        "a result for the CPU keeps the device's memory",
        "arena-result",
        (
            "!pinned.pager.contains(tensor.storage().data())",
            "tensor.defined() || pinned.held",
        ),
        ("tests/python/ops/test_custom_ops.py",),
    ),
    Mutation(
        "resize_ loses the values",
        "resized-values",
        ("kept > 0", "kept > bytes"),
        ("tests/python/device/test_storage.py",),
    ),
)
