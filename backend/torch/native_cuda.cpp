#include "backend/torch/native_cuda.h"

#include <atomic>

namespace chameleon::backend {
namespace {

constinit std::atomic<const NativeCuda*> native{nullptr};
constinit std::atomic<void (*)()> initialiser{nullptr};

} // namespace

const NativeCuda* native_cuda() noexcept { return native.load(); }
void set_native_cuda(const NativeCuda* table) noexcept { native.store(table); }

void set_cuda_initialiser(void (*initialise)()) noexcept {
  initialiser.store(initialise);
}
void (*cuda_initialiser() noexcept)() { return initialiser.load(); }

} // namespace chameleon::backend
