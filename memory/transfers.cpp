#include "memory/transfers.h"

namespace chameleon::memory {

runtime::Error Transfers::submit(StreamIndex index,
                                 std::span<const runtime::Copy> copies,
                                 const Fence& fence, Position& done) {
  done = {};
  if (runtime::Error error = timelines_.wait(index, fence)) return error;
  runtime::Error error = runtime_.copy(timelines_.stream(index), copies);
  done = timelines_.advance(index);
  return error;
}

} // namespace chameleon::memory
