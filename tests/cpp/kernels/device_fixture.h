// The device as a test of kernels/ uses it: the one of this process, on the
// physical device cpu, with the ops redirected as when the package is loaded.
// Each test has a budget of its own and leaves nothing behind: no block, no
// pin, no work that was deferred.
#pragma once

#include <cstdint>
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/stack.h>

#include "backend/runtime/options.h"
#include "backend/torch/device.h"
#include "backend/torch/device_options.h"
#include "backend/torch/storage.h"
#include "kernels/late_ops.h"
#include "kernels/redirect.h"
#include "memory/pager.h"
#include "tests/cpp/kernels/schema_ops.h"

namespace chameleon::kernels {

inline constexpr std::size_t kKiB = 1024;
inline constexpr std::size_t kMiB = 1024 * kKiB;

class DeviceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    static const bool once = [] {
      register_redirects();
      register_late_ops();
      // What depends on time or on the machine stays out of it.
      backend::set_option("physical_device", "cpu");
      backend::set_option("policy", "lru");
      backend::set_option("recompute", "off");
      backend::set_option("host_budget", "64MiB");
      return true;
    }();
    ASSERT_TRUE(once);
  }
  void SetUp() override { setBudget(16 * kMiB); }
  void TearDown() override {
    pager().trim();
    EXPECT_EQ(pager().stats().logical_bytes, 0);
    EXPECT_EQ(pager().stats().resident_bytes, 0);
    pager().invariants().check(3);
  }

  static void setBudget(std::size_t bytes) {
    backend::set_option("hbm_budget", std::to_string(bytes));
  }
  static backend::DeviceContext& device() {
    return backend::context(0, "a test");
  }
  static memory::Pager& pager() { return *device().pager; }
  static c10::Device chameleon() { return {backend::kChameleon, 0}; }

  static at::Tensor filled(at::IntArrayRef sizes, double value,
                           at::ScalarType type = at::kFloat) {
    return at::full(sizes, value, at::TensorOptions(chameleon()).dtype(type));
  }
  // So many, filled with `first`, `first` + 1, ...
  static std::vector<at::Tensor> list(std::size_t count, at::IntArrayRef sizes,
                                      double first = 1) {
    std::vector<at::Tensor> tensors;
    for (std::size_t i = 0; i < count; ++i) {
      tensors.push_back(filled(sizes, first + static_cast<double>(i)));
    }
    return tensors;
  }
  // True: all elements are `value`.
  static bool holds(const at::Tensor& tensor, double value) {
    const at::Tensor here = tensor.cpu();
    return here.equal(at::full_like(here, value));
  }
  static memory::Block* block(const at::Tensor& tensor) {
    return backend::block_of(*tensor.storage().unsafeGetStorageImpl());
  }
  static std::uint64_t identity(const at::Tensor& tensor) {
    return block(tensor)->identity;
  }
  // What each op call of `action` pinned, by identity.
  using Calls = std::vector<std::vector<std::uint64_t>>;
  template <typename Action>
  static Calls callsOf(Action action) {
    pager().decisions().start(1000);
    action();
    Calls calls;
    std::uint64_t latest = 0;
    for (const memory::DecisionRecord& record : pager().decisions().records()) {
      if (record.decision != memory::Decision::kPin) continue;
      if (record.call != latest) calls.emplace_back();
      latest = record.call;
      calls.back().push_back(record.block);
    }
    pager().decisions().start(0);
    return calls;
  }
};

} // namespace chameleon::kernels
