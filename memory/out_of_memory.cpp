#include "memory/out_of_memory.h"

#include <algorithm>
#include <utility>

#include "backend/runtime/options.h"
#include "memory/block_table.h"
#include "memory/room_finder.h"

namespace chameleon::memory {

using runtime::Error;
using runtime::ErrorCode;
using runtime::format_bytes;
using runtime::format_bytes_up;

Error out_of_memory(const Locked& locked, const PagerCore& core,
                    const BlockTable& table, const RoomFinder& room,
                    const CallState& call, std::size_t operand_bytes,
                    std::size_t inside_bytes, Shortage& shortage) {
  if (shortage.failure && (shortage.failure.code() == ErrorCode::kDevice ||
                           shortage.failure.code() == ErrorCode::kLost)) {
    return core.named(call, std::move(shortage.failure));
  }
  const std::size_t all_bytes = operand_bytes + inside_bytes;
  std::size_t others = room.pinnedBytes(locked);
  others -= std::min(others, call.ownBytes()); // of other calls and users
  const HostPool& host = *core.host_pool;
  std::string text =
      core.name() + " out of memory. " + std::string(call.op) + " needs " +
      format_bytes(all_bytes) + " of HBM (operands " +
      format_bytes(operand_bytes) + ", inside the kernel " +
      format_bytes(inside_bytes) + "); budget " +
      format_bytes(core.limits.hbm_budget_bytes) + ", resident " +
      format_bytes(table.residentBytes()) + ", pinned " + format_bytes(others) +
      ", in one piece " +
      format_bytes(room.largestRun(locked, /*moving=*/false, SIZE_MAX)) +
      ", host use " + format_bytes(host.usedBytes()) + " of " +
      format_bytes(host.budgetBytes()) + ". ";
  if (shortage.failure) {
    return {shortage.failure.code(), text + shortage.failure.message()};
  }
  if (shortage.host_full) {
    return {ErrorCode::kOutOfHostMemory,
            text +
                "The host memory for evicted tensors is full: raise "
                "torch_chameleon.config.host_budget, or use smaller "
                "tensors"};
  }
  // What a kernel allocates is not known before it has run once.
  const char* unknown =
      inside_bytes == 0 ? " and what its kernel allocates beside its operands"
                        : "";
  return {ErrorCode::kOutOfDeviceMemory,
          text + "Raise torch_chameleon.config.hbm_budget to at least " +
              format_bytes_up(all_bytes + others) + unknown +
              ", or use smaller tensors (a smaller batch)"};
}

Error out_of_logical_memory(const Locked& /*locked*/, const PagerCore& core,
                            std::size_t bytes, std::size_t live_bytes,
                            std::size_t limit_bytes) {
  return {ErrorCode::kOutOfLogicalMemory,
          core.name() + " out of memory. A tensor of " + format_bytes(bytes) +
              " does not fit beside the " + format_bytes(live_bytes) +
              " of live tensors; the limit is " + format_bytes(limit_bytes) +
              " (oversubscription x hbm_budget of " +
              format_bytes(core.limits.hbm_budget_bytes) +
              "). Raise torch_chameleon.config.oversubscription or "
              "torch_chameleon.config.hbm_budget"};
}

Error out_of_addresses(const PagerCore& core, std::size_t bytes,
                       std::size_t range_bytes) {
  return {ErrorCode::kOutOfLogicalMemory,
          core.name() + " out of memory. No logical address is left for " +
              format_bytes(bytes) + " out of a range of " +
              format_bytes(range_bytes) + "; free tensors first"};
}

Error eviction_error(const Locked& /*locked*/, const PagerCore& core,
                     Shortage& shortage) {
  if (shortage.failure) return std::move(shortage.failure);
  if (!shortage.host_full) return {};
  return {ErrorCode::kOutOfHostMemory,
          core.name() + " out of memory. Evicted tensors use " +
              format_bytes(core.host_pool->usedBytes()) +
              " of the host budget " +
              format_bytes(core.host_pool->budgetBytes()) +
              " and another does not fit. Raise "
              "torch_chameleon.config.host_budget"};
}

Error lost_error(const PagerCore& core, const Block& block) {
  return {ErrorCode::kLost,
          core.name() + ": the value of a tensor of " +
              format_bytes(block.bytes) +
              " is lost: the device failed to bring it back when an op that "
              "was overwriting it had failed. Assign all of it anew (copy_, "
              "fill_, zero_), or load it from a checkpoint"};
}

} // namespace chameleon::memory
