#include "backend/torch/in_kernel_allocator.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include "backend/torch/device.h"

namespace chameleon::backend {

constinit thread_local InKernelScope* InKernelScope::current = nullptr;

namespace {

c10::Allocator* native_allocator = nullptr; // set once by install
// Of the target's own allocator; set once with it.
c10::DeleterFnPtr native_release = nullptr;

class InKernelAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    InKernelScope* const scope = InKernelScope::active();
    if (scope == nullptr || bytes == 0) {
      return native_allocator->allocate(bytes);
    }
    auto memory = scope->pager().allocate(scope->call(), bytes);
    if (!memory.ok()) [[unlikely]] {
      scope->failed(memory.error());
      throw_error(memory.error());
    }
    std::byte* const data = *memory;
    return {data, data, &detail::release_in_kernel, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &detail::release_in_kernel;
  }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    default_copy_data(to, from, n);
  }
};

} // namespace

void detail::release_in_kernel(void* data) {
  if (data == nullptr) return;
  const InKernelScope* const scope = InKernelScope::active();
  auto* const memory = static_cast<std::byte*>(data);
  if (scope != nullptr && scope->pager().contains(data)) [[likely]] {
    scope->pager().free(&scope->call(), memory);
  } else if (const DeviceContext* const owner = context_of(data)) {
    owner->pager->free(nullptr, memory);
  } else {
    native_release(data);
  }
}

void set_native_release(c10::DeleterFnPtr release) { native_release = release; }

void install_in_kernel_allocator() {
  if (native_allocator != nullptr) return;
  native_allocator = c10::GetCPUAllocator();
  set_native_release(native_allocator->raw_deleter());
  // Highest priority: whatever was set before is what we delegate to.
  c10::SetCPUAllocator(new InKernelAllocator, /*priority=*/255);
}

} // namespace chameleon::backend
