// c10::DeviceAllocator of the chameleon device: gives out blocks, answers
// torch.accelerator's memory questions in logical bytes.
//
// Tests: test_device_module.py.
//
// Thread safety: any thread, as of any c10::Allocator.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

namespace chameleon::backend {

// Never null, never destroyed.
c10::DeviceAllocator* device_allocator() noexcept;

// A storage of `bytes` on our device, as empty() makes it.
c10::Storage make_storage(std::size_t bytes, c10::DeviceIndex index);

} // namespace chameleon::backend
