// A place on a path: the op that comes next. It keeps what the hot path reads
// of the path at hand, and moves on in O(1).
//
// Tests: profiler_test.cpp.
//
// Thread safety: none; the caller synchronises.
#pragma once

#include <cstdint>

#include "profiler/op_path.h"

namespace chameleon::profiler {

class PathCursor {
 public:
  OpPath* path() const noexcept { return path_; } // null: on none
  // Of the next op. 0 without a path.
  std::uint32_t position() const noexcept { return position_; }
  bool isPastEnd() const noexcept { return position_ == end_; } // or no path

  // Of the path, as long as it is not changed. REQUIRES: there is one.
  PathOp& next() const noexcept { return *next_; } // REQUIRES: !isPastEnd()
  PathOp& op(std::uint32_t position) const noexcept { return ops_[position]; }
  const Operand* operands() const noexcept { return operands_; }
  PathValue* values() const noexcept { return values_; }

  void moveOn() noexcept {
    ++position_;
    ++next_;
  }
  // REQUIRES: without a path (null) the position is 0.
  void set(OpPath* path, std::uint32_t position) noexcept {
    path_ = path;
    position_ = position;
    end_ = 0;
    if (path == nullptr) return;
    end_ = path->size();
    ops_ = path->opData();
    next_ = ops_ + position;
    operands_ = path->operandData();
    values_ = path->values().data();
  }

 private:
  OpPath* path_ = nullptr;
  std::uint32_t position_ = 0;
  std::uint32_t end_ = 0; // equal to position_ without a path
  PathOp* ops_ = nullptr;
  PathOp* next_ = nullptr; // ops_ + position_
  const Operand* operands_ = nullptr;
  PathValue* values_ = nullptr;
};

} // namespace chameleon::profiler
