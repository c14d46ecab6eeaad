#include "kernels/simulated/reads.h"

#include <atomic>

#include <c10/util/Exception.h>

#include "backend/runtime/options.h"

namespace chameleon::kernels::simulated {
namespace {

std::atomic<GuessListener> guess_listener{nullptr};
std::atomic<ReadListener> read_listener{nullptr};

void refuse(std::string_view op) {
  TORCH_CHECK(runtime::option_text("simulated_reads") != "raise", op,
              ": it needs values, and a simulated device has none; with "
              "torch_chameleon.config.simulated_reads = \"zeros\" it goes on "
              "without them");
}

} // namespace

void read_zeros(std::string_view op) {
  refuse(op);
  TORCH_WARN_ONCE(
      op,
      ": a simulated device has no values; whatever is read from it is 0 "
      "(set torch_chameleon.config.simulated_reads to \"raise\" to find "
      "such reads)");
}

void guessed(std::string_view op, bool known) {
  refuse(op);
  if (const GuessListener listener = guess_listener.load()) listener(known);
  TORCH_WARN_ONCE(
      op,
      ": a simulated device has no values, on which the size of this "
      "result depends; where nothing is known of them it is as large as it can "
      "be (masks all true, all elements different), or "
      "torch_chameleon.config.simulated_share of that");
}

void set_guess_listener(GuessListener listener) { guess_listener = listener; }

void read_unknown() {
  if (const ReadListener listener = read_listener.load()) listener();
}

void set_read_listener(ReadListener listener) { read_listener = listener; }

} // namespace chameleon::kernels::simulated
