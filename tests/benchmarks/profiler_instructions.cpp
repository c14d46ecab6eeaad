// Instructions that the profiler adds to an op when nothing is swapped and the
// step repeats: what an op call pays for observe(), result() and freed(). Two
// operands, one result, one death per op, 2,000 ops a step.
//
//   cmake -S . -B build -DCHAMELEON_BUILD_TORCH=OFF -DCHAMELEON_BUILD_TESTS=ON
//   cmake --build build --target profiler_instructions
//   valgrind --tool=callgrind --collect-atstart=no
//     --toggle-collect='run_steps*' build/tests/cpp/profiler_instructions
//   callgrind_annotate --inclusive=yes callgrind.out.*
//
// Arguments: "seen" (default); "alike": the same in sizes never seen before;
// "new": on sequences never seen before, which are recorded; "alone": the loop
// and the tokens without the profiler, to subtract; "growing" and a number: so
// many equal ops, each on a block of its own that stays, in one step that is
// twice as long as the longest before it; "turns" and a number: so many turns
// of a loop, forwards and back, the same way.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "profiler/profiler.h"

namespace {

using chameleon::profiler::BlockSlot;
using chameleon::profiler::Operand;
using chameleon::profiler::OpTicket;
using chameleon::profiler::Profiler;
using chameleon::profiler::TokenHasher;
using chameleon::profiler::Use;

constexpr std::uint32_t kOps = 2000;

struct Run {
  Profiler profiler;
  std::vector<Use> weights;
  Use last;
  std::uint64_t identities = 0;

  Run() {
    for (std::uint32_t i = 0; i < kOps; ++i) {
      weights.push_back(create());
    }
    last = create();
  }
  Use create() {
    ++identities;
    return {identities, profiler.born(identities, 4096), Operand::kReads};
  }
};

// As the kernels layer: op, then rank, dtype and sizes of two matrices.
__attribute__((noinline)) std::uint64_t make_token(std::uint64_t op,
                                                   const std::uint64_t* sizes) {
  TokenHasher hasher(op);
  for (int i = 0; i < 6; ++i) hasher.add(sizes[i]);
  return hasher.token();
}

__attribute__((noinline)) void one_op(Run& run, std::uint32_t i,
                                      std::uint32_t first_op,
                                      std::uint64_t size) {
  const std::array<std::uint64_t, 6> sizes{0x20001, 64, size, 0x20002, 64, 64};
  const std::uint32_t op = first_op + i % 50;
  const std::uint64_t token = make_token(op, sizes.data());
  const std::array<Use, 2> uses{run.last, run.weights[i]};
  OpTicket ticket = run.profiler.observe(op, token, uses);
  const BlockSlot slot = run.profiler.result(ticket, ++run.identities, 4096);
  run.profiler.freed(run.last.slot, run.profiler.opCount());
  run.last = {run.identities, slot, Operand::kReads};
}

// What the loop itself and the token cost.
__attribute__((noinline)) void one_op_alone(Run& run, std::uint32_t i) {
  const std::array<std::uint64_t, 6> sizes{0x20001, 64, 0, 0x20002, 64, 64};
  run.identities += make_token(i % 50, sizes.data()) & 1;
  run.last = run.weights[i];
}

// A step of equal ops on new blocks, as where parameters are made one by one.
void step_of_equals(Run& run, std::uint32_t ops) {
  const std::array<std::uint64_t, 6> sizes{0x20001, 64, 0, 0x20002, 64, 64};
  for (std::uint32_t i = 0; i < ops; ++i) {
    const std::uint64_t token = make_token(7, sizes.data());
    const std::array<Use, 1> uses{run.create()};
    (void)run.profiler.observe(7, token, uses);
  }
}

// A recurrent net: each turn's result goes to the next one and stays until the
// turn is walked back. Four ops a turn.
void step_of_turns(Run& run, std::uint32_t turns) {
  const std::array<std::uint64_t, 6> sizes{0x20001, 64, 0, 0x20002, 64, 64};
  const auto op = [&](std::uint32_t name, Use a, Use b) {
    const std::uint64_t token = make_token(name, sizes.data());
    OpTicket ticket =
        run.profiler.observe(name, token, std::array<Use, 2>{a, b});
    const BlockSlot slot = run.profiler.result(ticket, ++run.identities, 4096);
    return Use{run.identities, slot, Operand::kReads};
  };
  const auto gone = [&](Use use) {
    run.profiler.freed(use.slot, run.profiler.opCount());
  };
  std::vector<Use> kept{run.last};
  for (std::uint32_t i = 0; i < turns; ++i) {
    const Use sum = op(1, kept.back(), run.weights[0]);
    kept.push_back(op(2, sum, run.weights[1]));
    gone(sum);
  }
  Use grad = op(3, kept.back(), run.weights[2]);
  for (; kept.size() > 1; kept.pop_back()) {
    const Use through = op(4, grad, kept.back());
    gone(grad);
    gone(kept.back());
    grad = op(5, through, run.weights[0]);
    gone(through);
  }
  gone(grad);
}

using StepOf = void (*)(Run& run, std::uint32_t count);

__attribute__((noinline)) void run_steps(Run& run, std::uint32_t count,
                                         StepOf step_of) {
  step_of(run, count);
}

int grow(Run& run, const char* count_text, StepOf step_of) {
  const auto count = static_cast<std::uint32_t>(
      std::strtoul(count_text, nullptr, /*base=*/10));
  for (std::uint32_t before = count / 8; before < count; before *= 2) {
    step_of(run, before);
    run.profiler.step();
  }
  run_steps(run, count, step_of);
  std::printf("%u\n", count);
  return EXIT_SUCCESS;
}

enum class Mode : std::uint8_t { kSeen, kShapeVariant, kNew, kAlone };

__attribute__((noinline)) void run_steps(Run& run, int steps, Mode mode) {
  for (int step = 0; step < steps; ++step) {
    const auto other = static_cast<std::uint32_t>(1000 + step);
    for (std::uint32_t i = 0; i < kOps; ++i) {
      if (mode == Mode::kAlone) {
        one_op_alone(run, i);
      } else {
        one_op(run, i, mode == Mode::kNew ? 50 * other : 0,
               mode == Mode::kShapeVariant ? other : 0);
      }
    }
  }
}

__attribute__((noinline)) void warm_up(Run& run) {
  for (int step = 0; step < 300; ++step) {
    for (std::uint32_t i = 0; i < kOps; ++i) one_op(run, i, 0, 0);
  }
}

} // namespace

int main(int argc, char** argv) {
  const std::string_view word = argc > 1 ? argv[1] : "seen";
  const Mode mode = word == "new"     ? Mode::kNew
                    : word == "alike" ? Mode::kShapeVariant
                    : word == "alone" ? Mode::kAlone
                                      : Mode::kSeen;
  Run run;
  const char* const count = argc > 2 ? argv[2] : "16000";
  if (word == "growing") return grow(run, count, &step_of_equals);
  if (word == "turns") return grow(run, count, &step_of_turns);
  warm_up(run);
  run_steps(run, 10, mode);
  const auto state = run.profiler.state();
  std::printf("%u ops: %llu hits, %llu misses, %zu paths, %zu bytes\n",
              10 * kOps, static_cast<unsigned long long>(state.forecast_hits),
              static_cast<unsigned long long>(state.forecast_misses),
              state.paths, state.memory_bytes);
  return EXIT_SUCCESS;
}
