// What is the same for all collectives of one name: the op, to the pager and
// to the profiler. A collective writes what peers send, so it never runs again:
// neither after a failure nor in place of a swap.
//
// Tests: test_process_group.py.
//
// Thread safety: any thread; never changes.
#pragma once

#include <cstdint>
#include <string_view>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "memory/pager_call.h"
#include "profiler/op_names.h"

namespace chameleon::distributed {

struct CollectiveKind {
  // `name` lives as long as the process.
  CollectiveKind(c10d::OpType op_type, std::string_view name)
      : type(op_type),
        kind{.name = name,
             .memory = nullptr,
             .may_retry = true,
             .is_exchange = true},
        number(profiler::op_names().add(name)) {}

  c10d::OpType type;
  memory::OpKind kind; // `may_retry`: nothing is allocated inside
  std::uint32_t number;
};

} // namespace chameleon::distributed
