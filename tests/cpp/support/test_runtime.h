// The runtime that a test of the layers above runs on: the cpu runtime, or,
// where CHAMELEON_TEST_DEVICE=cuda is in the environment, the cuda runtime on
// an emulated driver.
#pragma once

#include <memory>
#include <random>

#include "backend/runtime/cpu/cpu_adversary.h"
#include "backend/runtime/device_runtime.h"
#include "tests/cpp/support/queued_runtime.h"

namespace chameleon::support {

bool tests_run_on_cuda();

// `adversary`: how late copies are, and kernels. An active one makes the
// emulated driver late too.
std::unique_ptr<runtime::DeviceRuntime> make_test_runtime(
    const runtime::CpuAdversary& adversary = {});

// For random tests: always an active one, so that the order of what they submit
// is checked (runtime/call_checker.h).
runtime::CpuAdversary random_adversary(std::mt19937_64& random);

// On cuda only: queues that the test runs, kernels' too.
std::unique_ptr<QueuedRuntime> make_queued_runtime();

} // namespace chameleon::support
