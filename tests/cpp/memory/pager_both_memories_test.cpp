// Whatever HBM and host memory can hold together trains: random trainings, with
// random pairs of budgets that hold 1.05 times their peak and one op's needs
// besides, from the first step on. Their values are compared with a model.
#include <random>

#include "backend/runtime/address_space.h"
#include "tests/cpp/memory/recompute/rerun_fixture.h"

namespace chameleon::memory {
namespace {

constexpr std::size_t kEnough = 64 * kMiB;

// Layers of a few ops: some results die at once, some are kept for the way
// back. Weights have gradients and a state each, and change in place.
class RandomTraining {
 public:
  explicit RandomTraining(std::uint64_t seed) : random_(seed) {
    for (std::size_t i = 0, n = 2 + below(4); i < n; ++i) {
      Layer layer{anySize(), anySize(), {}};
      for (std::size_t k = 0, ops = 1 + below(4); k < ops; ++k) {
        layer.ops.push_back({anySize(), below(2) == 0, below(3) == 0});
      }
      layers_.push_back(std::move(layer));
    }
  }

  struct Op {
    std::size_t bytes;
    bool is_kept; // for the way back
    bool reads_weight;
  };
  struct Layer {
    std::size_t weight_bytes;
    std::size_t input_bytes;
    std::vector<Op> ops;
  };
  const std::vector<Layer>& layers() const { return layers_; }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  std::size_t anySize() {
    return 512 * (below(3) == 0 ? 1 : 2 + below(8)) - below(100);
  }

  std::mt19937_64 random_;
  std::vector<Layer> layers_;
};

class PagerBothMemoriesTest : public RerunTest,
                              public ::testing::WithParamInterface<int> {
 protected:
  PagerBothMemoriesTest() { op_memory = &memory_; }

  void openBoth(std::size_t hbm_bytes, std::size_t host_bytes,
                std::string_view policy) {
    pager.reset();
    runtime_ = support::make_test_runtime({});
    Limits limits{hbm_bytes, host_bytes, 64};
    limits.recompute = true;
    runtime::Result<std::unique_ptr<Pager>> result =
        Pager::create(*runtime_, limits, policy);
    ASSERT_TRUE(result.ok()) << result.error().message();
    pager = std::move(*result);
  }

  Handle op(const std::vector<Handle>& operands, std::size_t bytes) {
    std::size_t needed_bytes = ExtentMap::round(bytes);
    for (const Handle& each : operands) {
      needed_bytes += each->block->rounded_bytes;
    }
    largest_op_bytes_ = std::max(largest_op_bytes_, needed_bytes);
    std::vector<Handle> results =
        run({next_seed++,
             std::vector<Access>(operands.size(), Access::kRead),
             {bytes},
             {}},
            operands);
    return results.empty() ? nullptr : std::move(results[0]);
  }

  void train(const RandomTraining& training, int steps) {
    std::vector<Handle> weights;
    std::vector<Handle> states;
    for (const RandomTraining::Layer& layer : training.layers()) {
      weights.push_back(leaf(layer.weight_bytes, next_seed++));
      states.push_back(leaf(layer.weight_bytes, next_seed++));
    }
    for (int i = 0; i < steps && !HasFailure(); ++i) {
      step(training, weights, states);
      check();
    }
    if (HasFailure()) return;
    for (const Handle& each : weights) expectBytes(each);
    for (const Handle& each : states) expectBytes(each);
  }

  void step(const RandomTraining& training, const std::vector<Handle>& weights,
            const std::vector<Handle>& states) {
    const std::vector<RandomTraining::Layer>& layers = training.layers();
    std::vector<std::vector<Handle>> kept(layers.size());
    Handle x = leaf(layers[0].input_bytes, next_seed++);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      for (const RandomTraining::Op& each : layers[i].ops) {
        std::vector<Handle> operands{x};
        if (each.reads_weight) operands.push_back(weights[i]);
        x = op(operands, each.bytes);
        if (x == nullptr) return;
        if (each.is_kept) kept[i].push_back(x);
      }
    }
    std::vector<Handle> gradients(layers.size());
    for (std::size_t i = layers.size(); i-- > 0;) {
      for (const RandomTraining::Op& each : layers[i].ops) {
        std::vector<Handle> operands{x, weights[i]};
        if (!kept[i].empty() && each.is_kept) {
          operands.push_back(kept[i].back());
          kept[i].pop_back();
        }
        std::erase_if(operands, [&, first = true](const Handle& h) mutable {
          return !std::exchange(first, false) && h == x;
        });
        x = op(operands, layers[i].input_bytes);
        if (x == nullptr) return;
      }
      gradients[i] = op({x, weights[i]}, layers[i].weight_bytes);
      if (gradients[i] == nullptr) return;
    }
    x.reset();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      inPlace({states[i], gradients[i]});
      inPlace({weights[i], states[i]});
      gradients[i].reset();
    }
  }

  OpMemory memory_;
  std::size_t largest_op_bytes_ = 0;
};

TEST_P(PagerBothMemoriesTest, WhatFitsIntoBothTrains) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  std::mt19937_64 random(seed);
  constexpr int kTrainings = 25;
  RecordProperty("random_trainings", kTrainings);
  for (int i = 0; i < kTrainings && !HasFailure(); ++i) {
    const RandomTraining training(random());
    openBoth(kEnough, kEnough, "lru");
    largest_op_bytes_ = 0;
    train(training, 1);
    const auto peak =
        static_cast<std::size_t>(pager->stats().peak_resident_bytes);
    // A host budget is used in whole pages.
    const std::size_t both =
        peak + peak / 20 + largest_op_bytes_ + runtime::kPageBytes;
    const std::size_t most = std::max(peak, largest_op_bytes_ + 1);
    const std::size_t hbm =
        largest_op_bytes_ + random() % (most - largest_op_bytes_ + 1);
    const std::size_t host =
        both - std::min(both, hbm) + (random() % 3 == 0 ? random() % peak : 0);
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << ", training " << i << ": peak " << peak
                 << ", HBM " << hbm << ", host " << host << ", largest op "
                 << largest_op_bytes_);
    openBoth(hbm, host, i % 2 == 0 ? "lru" : "forecast");
    train(training, 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, PagerBothMemoriesTest, ::testing::Range(0, 80));

} // namespace
} // namespace chameleon::memory
