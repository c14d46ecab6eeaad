"""The planted bugs: what each changes, and the tests that are run first.

`before` must occur exactly once in `file`; where the sources have moved on,
`python tests/mutations/run.py --check` says so, and the bug is planted anew.
`likely` are programs of tests/cpp ("memory_pager_test"; with "@cuda" on the
emulated driver) or, for what needs torch, files of tests/.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    before: str
    after: str
    likely: tuple[str, ...]

    @property
    def needs_torch(self) -> bool:
        return self.file.startswith(("kernels/", "backend/torch/", "python/"))


_RANDOM = ("memory_pager_random_test", "memory_pager_async_test")
_CUDA = ("memory_pager_cuda_test",)
_RERUN = ("memory_pager_rerun_test", "memory_pager_rerun_random_test")

MUTATIONS = (
    # ---- missing waits ----------------------------------------------------
    Mutation(
        "an op does not wait for the last write of a fetched operand",
        "memory/begin_attempt.cpp",
        "    if (!core_.uses().inOrder(written, call_.stream))\n"
        "      core_.uses().addTo(waits_, written);\n"
        "    block.claims = 0;",
        "    (void)written;\n    block.claims = 0;",
        _RANDOM,
    ),
    Mutation(
        "an op without the lock does not wait for the last write",
        "memory/call_pins.cpp",
        "    if (!core_.uses().inOrder(written, call.stream))\n"
        "      core_.uses().addTo(waits, written);\n"
        "  }\n"
        "  if (good) {",
        "    (void)written;\n  }\n  if (good) {",
        _RANDOM,
    ),
    Mutation(
        "memory inside a kernel is reused before its last user is done",
        "memory/call_memory.cpp",
        "      if (!core_.uses().inOrder(extent->fence, call.stream))\n"
        "        waits = extent->fence;\n",
        "",
        _RANDOM,
    ),
    Mutation(
        "a victim is copied out before it is written",
        "memory/residency.cpp",
        "    core_.uses().addTo(before, core_.uses().writesOf(block));\n",
        "",
        _RANDOM,
    ),
    Mutation(
        "a place on the host is reused before its last copy is done",
        "memory/residency.cpp",
        "    core_.uses().addTo(before, out.place.extent->fence);\n",
        "",
        _RANDOM,
    ),
    Mutation(
        "a victim's extent is reused before it is copied out",
        "memory/residency.cpp",
        "  core_.uses().addTo(uses, copied);\n",
        "  (void)copied;\n",
        _RANDOM,
    ),
    Mutation(
        "a fetch does not wait for the copy out of the same bytes",
        "memory/residency.cpp",
        "    core_.uses().addTo(before, block.host_ready);\n    bytes +=",
        "    bytes +=",
        _RANDOM,
    ),
    Mutation(
        "a fetch goes to an extent that is still in use",
        "memory/residency.cpp",
        "    core_.uses().addTo(before, wanted.extent->fence);\n",
        "",
        _RANDOM,
    ),
    Mutation(
        "a move inside HBM does not wait for the uses of the block",
        "memory/residency.cpp",
        "      core_.arena->move(&extent, &target, "
        "core_.uses().usesOf(block));",
        "      core_.arena->move(&extent, &target, Fence());",
        ("memory_pager_async_test", "memory_pager_cuda_test"),
    ),
    Mutation(
        "a block that slides does not wait for its uses",
        "memory/residency.cpp",
        "    uses = core_.uses().usesOf(block);\n",
        "",
        ("memory_pager_async_test", "memory_pager_cuda_test"),
    ),
    Mutation(
        "an op does not wait for its operand to arrive where it moved",
        "memory/residency.cpp",
        "  block.last_write.store(moved.word, std::memory_order_release);\n"
        "  block.device = &extent;\n",
        "  (void)moved;\n  block.device = &extent;\n",
        ("memory_pager_async_test", "memory_pager_cuda_test"),
    ),
    Mutation(
        "who gets a place that was emptied does not wait for the move",
        "memory/arena.cpp",
        "  extent->fence.add(moved);\n  return moved;\n",
        "  return moved;\n",
        ("memory_pager_async_test", "memory_pager_cuda_test"),
    ),
    Mutation(
        "the host reads a copy that is not complete",
        "memory/host_access.cpp",
        "    Error error = core_.timelines.synchronize(ready);",
        "    Error error;\n    (void)ready;",
        _RANDOM,
    ),
    Mutation(
        "the host writes a copy that is being read",
        "memory/host_access.cpp",
        "  Error error = memory::synchronize(core_.timelines, before);",
        "  Error error;\n  (void)before;",
        (*_RANDOM, "memory_pager_test"),
    ),
    Mutation(
        "a write is not ordered behind the write-back of the old value",
        "memory/residency.cpp",
        "      block.copied_ahead = true;\n",
        "",
        ("memory_forecast_policy_test",),
    ),
    Mutation(
        "who gets an extent does not wait for its write-back",
        "memory/residency.cpp",
        "      core_.uses().stamp(block, done); // who gets the "
        "extent next waits\n",
        "",
        ("memory_pager_transfers_test", *_RANDOM),
    ),
    Mutation(
        "an event is recorded on the wrong stream",
        "memory/timeline.cpp",
        "  Result<Event> event = runtime_.record(line.stream);",
        "  Result<Event> event = runtime_.record(lines_[kCopyIn].stream);",
        ("memory_timeline_test",),
    ),
    Mutation(
        "the wrong stream is said to follow",
        "memory/timeline.cpp",
        "raise(lines_[index].follows[source], covered);",
        "raise(lines_[source].follows[index], covered);",
        ("memory_timeline_test",),
    ),
    Mutation(
        "cut free memory loses the fence of what is left",
        "memory/freed_room.cpp",
        "      pieces_.emplace(end, Piece{piece_end - end, piece.fence, "
        "piece.freed});\n",
        "",
        ("memory_freed_room_test", "memory_arena_test"),
    ),
    Mutation(
        "freed memory loses its fence to the hole above",
        "memory/extent_map.cpp",
        "    merge(above->fence, extent->fence);\n",
        "",
        ("memory_extent_map_test", "memory_host_pool_test"),
    ),
    Mutation(
        "the cpu runtime's engines ignore waits for each other",
        "backend/runtime/copy_engines.cpp",
        "  return !front.after.onCopyEngine() || passed(front.after);",
        "  return true;",
        ("runtime_cpu_runtime_test",),
    ),
    Mutation(
        "moves through the bounce buffer of two streams overlap",
        "backend/runtime/cuda_copier.cpp",
        "  if (bounce_used_ && bounce_stream_ != stream) {",
        "  if (!bounce_used_ && bounce_stream_ != stream) {",
        ("runtime_cuda_runtime_test",),
    ),
    # ---- clean copies -----------------------------------------------------
    Mutation(
        "the host copy of what is written stays clean",
        "memory/begin_attempt.cpp",
        "    if (wanted.write && block.host != nullptr) {",
        "    if (wanted.write && wanted.missing && block.host != nullptr) {",
        ("memory_pager_test",),
    ),
    Mutation(
        "without the lock a write leaves the host copy clean",
        "memory/call_pins.cpp",
        "              (word & (Block::kHostCopyBit | "
        "Block::kRecordedBit)) == 0);",
        "              (word & Block::kRecordedBit) == 0);",
        ("memory_pager_test",),
    ),
    Mutation(
        "a host copy is freed while it is being fetched from",
        "memory/residency.cpp",
        "  core_.host_pool->free(block.host, core_.uses().hostUsesOf(block));\n"
        "  forgetHostPlace(locked, block);",
        "  core_.host_pool->free(block.host, {});\n"
        "  forgetHostPlace(locked, block);",
        _RANDOM,
    ),
    Mutation(
        "a write-back that was cancelled still counts as a clean copy",
        "memory/residency.cpp",
        "  block.copied_ahead = false;\n"
        "  copies_on_host_.remove(block);\n"
        "  block.word.fetch_and(~Block::kHostCopyBit, "
        "std::memory_order_acq_rel);",
        "  if (std::exchange(block.copied_ahead, false)) return;\n"
        "  copies_on_host_.remove(block);\n"
        "  block.word.fetch_and(~Block::kHostCopyBit, "
        "std::memory_order_acq_rel);",
        ("memory_pager_transfers_test", "memory_forecast_policy_test"),
    ),
    Mutation(
        "a copy out counts as cancelled when it was not",
        "memory/residency.cpp",
        "  if (core_.timelines.passed(done) ||\n"
        "      !core_.runtime.cancel(core_.timelines.stream(kCopyOut), "
        "destination)) {\n"
        "    return false;\n"
        "  }",
        "  if (core_.timelines.passed(done)) return false;\n"
        "  (void)core_.runtime.cancel(core_.timelines.stream(kCopyOut), "
        "destination);",
        ("memory_pager_transfers_test", "memory_pager_cuda_test"),
    ),
    # ---- registrations of host memory -------------------------------------
    Mutation(
        "a run over a chunk border",
        "backend/runtime/cuda_host_memory.cpp",
        "          std::min(slab.bytes, (offset / chunk + 1) * chunk);",
        "          std::max(slab.bytes, chunk);",
        ("runtime_cuda_runtime_test",),
    ),
    Mutation(
        "what is not registered yet is one run",
        "backend/runtime/cuda_host_memory.cpp",
        "          std::min(slab.bytes, (offset / chunk + 1) * chunk);",
        "          offset < slab.registered_bytes\n"
        "              ? std::min(slab.bytes, (offset / chunk + 1) * chunk)\n"
        "              : slab.bytes;",
        ("runtime_cuda_runtime_test",),
    ),
    Mutation(
        "a small read waits for evictions",
        "memory/host_access.cpp",
        "  if (bytes <= kSmallReadBytes) {",
        "  if (bytes == 0) {",
        ("memory_pager_transfers_test", "memory_pager_cuda_test"),
    ),
    # ---- pins, places, counts ---------------------------------------------
    Mutation(
        "a call that is given up keeps one pin",
        "memory/call_pins.cpp",
        "  for (const Operand& operand : call.pins) freed += "
        "unpin(*operand.block);\n",
        "  for (const Operand& operand : call.pins) {\n"
        "    if (operand.block != call.pins[0].block) freed += "
        "unpin(*operand.block);\n"
        "  }\n",
        ("memory_pager_test",),
    ),
    Mutation(
        "a failed attempt without the lock keeps its pins",
        "memory/call_pins.cpp",
        "    freed += i < pinned ? unpin(block) : block.rounded_bytes;",
        "    (void)pinned;\n    freed += block.rounded_bytes;",
        ("memory_pager_test",),
    ),
    Mutation(
        "an extent is one unit too long",
        "memory/extent_map.cpp",
        "  index_.resize(hole, hole->offset, offset - hole->offset);\n",
        "  index_.resize(hole, hole->offset,\n"
        "                offset - hole->offset + kAlignment);\n",
        ("memory_extent_map_test",),
    ),
    Mutation(
        "the host pool exceeds its budget by one unit",
        "memory/host_pool.cpp",
        "    const std::size_t room = budget_bytes_ - reserved_bytes_;",
        "    const std::size_t room =\n"
        "        budget_bytes_ - reserved_bytes_ + ExtentMap::kAlignment;",
        ("memory_host_pool_test",),
    ),
    Mutation(
        "calls that do not fit together are let in",
        "memory/admission.cpp",
        "      if (!alone || now.bytes + bytes > budget) return {};",
        "      if (!alone && now.bytes + bytes > budget) return {};",
        ("memory_admission_test",),
    ),
    Mutation(
        "a result is adopted and is the call's memory as well",
        "memory/call_memory.cpp",
        "  forget(locked, call, index);\n"
        "  if (call.in_call.empty()) unlist(locked, call); // "
        "spares end() the lock\n",
        "",
        ("memory_pager_test",),
    ),
    # ---- overwrites, failures ---------------------------------------------
    Mutation(
        "a result smaller than its block is taken for all of it",
        "memory/overwrites.cpp",
        "      if (old.keep_from < block.bytes) {",
        "      if (old.keep_from == 0) {",
        ("memory_pager_overwrite_test",),
    ),
    Mutation(
        "a value that could not be brought back is not lost",
        "memory/residency.cpp",
        "  block.lost = true;\n",
        "",
        ("memory_pager_overwrite_test", "memory_pager_faults_test"),
    ),
    # ---- plans ------------------------------------------------------------
    Mutation(
        "a fetch is planned into room that is not free yet",
        "memory/policy/plan_emission.cpp",
        "          schedule_.fetch[absence.use], absence.returns,\n",
        "          schedule_.fetch[absence.use], absence.leaves,\n",
        ("memory_planner_test", "memory_planner_random_test"),
    ),
    Mutation(
        "a write-back is planned before its write",
        "memory/policy/plan_emission.cpp",
        "    add(Kind::kWriteBack, write, position, moment, "
        "table_.begin(write), latest);",
        "    add(Kind::kWriteBack, write, position - 1, moment, "
        "table_.begin(write) - 1,\n"
        "        latest);",
        ("memory_planner_test", "memory_planner_random_test"),
    ),
    # ---- re-runs ----------------------------------------------------------
    Mutation(
        "a value is dropped that is not the one recorded",
        "memory/recompute_records.cpp",
        "  if (maker.outputs[lineage->output].version != version_of(block)) {\n"
        "    return false;\n"
        "  }\n"
        "  // Somebody",
        "  // Somebody",
        _RERUN,
    ),
    Mutation(
        "a record outlives the value that it read",
        "memory/recompute_records.cpp",
        "  for (Record* const reader : readers) remove(*reader);\n",
        "",
        _RERUN,
    ),
    Mutation(
        "a writer does not wait for re-runs that need the old value",
        "memory/recomputer.cpp",
        "                           : writes(access)\n"
        "                               ? RecomputeRecords::dependent(*block)\n"
        "                               : nullptr;",
        "                               : nullptr;\n    (void)access;",
        _RERUN,
    ),
    Mutation(
        "who reads what was made again does not wait for it",
        "memory/residency.cpp",
        "  block.last_write.store(fresh.last_write.load());\n",
        "",
        ("memory_pager_rerun_test",),
    ),
    # ---- ops --------------------------------------------------------------
    Mutation(
        "the shape of an out= operand is not synced back",
        "kernels/op_call.cpp",
        "      Adoption::shape(*written.outer, *written.alias_tensor);\n",
        "",
        ("tests/python/test_views.py", "tests/python/test_overwrites.py"),
    ),
    Mutation(
        "memory that an out= operand grew into is not synced back",
        "kernels/adoption.cpp",
        "  if (alias.data() != before || grown) {",
        "  if (before == nullptr || grown) {",
        ("tests/python/test_overwrites.py", "tests/python/test_storage.py"),
    ),
    Mutation(
        "a result that is an operand becomes another one",
        "kernels/direct_call.cpp",
        "        make_outer(impl, outers_[i]->storage(),",
        "        make_outer(impl, outers_[0]->storage(),",
        (
            "tests/python/test_direct_kernels.py",
            "tests/python/test_custom_ops.py",
        ),
    ),
    Mutation(
        "a storage that two results share is adopted twice",
        "kernels/adoption.cpp",
        "  if (storage.device_type() != kChameleon) "
        "{ // else: shared with a sibling",
        "  if (storage.nbytes() != 0) {",
        ("tests/python/test_custom_ops.py", "tests/python/test_layouts.py"),
    ),
    Mutation(
        "an overwrite of a part is taken for whole",
        "kernels/direct_call.cpp",
        "    if (argument->overwrites && is_all_of_storage(impl)) {",
        "    if (argument->overwrites) {",
        ("tests/python/test_overwrites.py",),
    ),
    Mutation(
        "an operand that is read and overwritten is not fetched",
        "kernels/alias_tensors.cpp",
        "    entries_[known].overwrites = false; "
        "// the other operand may be read\n",
        "",
        ("tests/python/test_overwrites.py",),
    ),
    Mutation(
        "arenas are copied as if they were mapped for both devices",
        "backend/torch/cuda_in_kernel_allocator.cpp",
        "    if (to_device != from_device &&\n",
        "    if (to_device == from_device &&\n",
        ("tests/python/test_several_devices.py",),
    ),
    Mutation(
        "a workspace in the arena",
        "backend/torch/cuda_target.cpp",
        "    prepare(stream);\n    last = stream;",
        "    last = stream;",
        ("tests/python/test_cuda_emulated.py",),
    ),
    Mutation(
        "an op is run again with today's generator",
        "kernels/recorded_op.cpp",
        "  if (plan.random || generator_.defined()) takeGenerator();\n",
        "",
        ("tests/python/test_recompute.py",),
    ),
    Mutation(
        "a re-run leaves the default generator in the old state",
        "kernels/recorded_op.cpp",
        "    const std::lock_guard lock(generator_.mutex());\n"
        "    generator_.set_state(after_);",
        "    const std::lock_guard lock(generator_.mutex());",
        ("tests/python/test_recompute.py",),
    ),
    Mutation(
        "a list run lets an operand go that a later op reads",
        "kernels/list_run.cpp",
        "    known.last_op = op;\n",
        "    (void)op;\n",
        ("tests/python/test_deferred_lists.py",),
    ),
    Mutation(
        "the last tensor of a long list is left out",
        "kernels/list_ops.cpp",
        "  for (std::size_t first = 0; first < lists.length();) {",
        "  for (std::size_t first = 0; first + 1 < lists.length();) {",
        ("tests/python/test_deferred_lists.py",),
    ),
    Mutation(
        "a transposed tensor is copied as if it were not",
        "kernels/copies.cpp",
        "         from.sizes() == to.sizes() && "
        "from.strides() == to.strides() &&",
        "         from.sizes() == to.sizes() &&",
        ("tests/python/test_layouts.py", "tests/python/test_storage.py"),
    ),
    Mutation(
        "an unannounced writer is missing",
        "kernels/device_rules.cpp",
        '    ArgumentRow{"aten::_cudnn_rnn", "dropout_state"},\n',
        "",
        ("tests/python/test_cuda_emulated.py",),
    ),
    Mutation(
        "a version is not counted",
        "kernels/direct_call.cpp",
        "    if (counts_versions_) outer.bump_version();\n",
        "    if (!counts_versions_) outer.bump_version();\n",
        ("tests/python/test_in_place.py", "tests/python/test_autograd.py"),
    ),
    Mutation(
        "a result for the CPU keeps the device's memory",
        "kernels/op_call.cpp",
        "    if (!pinned.pager.contains(tensor.storage().data())) "
        "return tensor;\n",
        "    if (tensor.defined() || pinned.held) return tensor;\n",
        ("tests/python/test_custom_ops.py",),
    ),
    Mutation(
        "resize_ loses the values",
        "backend/torch/storage.cpp",
        "  if (kept > 0 && target().holds_data) {",
        "  if (kept > bytes && target().holds_data) {",
        ("tests/python/test_storage.py",),
    ),
)
