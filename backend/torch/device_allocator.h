// c10::DeviceAllocator of the chameleon device: gives out blocks, answers
// torch.accelerator's memory questions in logical bytes.
//
// Thread safety: any thread, as of any c10::Allocator.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace chameleon::backend {

// Never null, never destroyed.
c10::DeviceAllocator* device_allocator() noexcept;

} // namespace chameleon::backend
