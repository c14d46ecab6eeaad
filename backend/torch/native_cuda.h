// What the device needs of libraries that only a CUDA build of PyTorch has, as
// a table that cuda_target.cpp fills in: where that file is not part of the
// build, nobody below it changes. What a device guard, a generator or a pinned
// allocator of CUDA can do is asked through PyTorch's own interfaces.
//
// Tests: test_cuda_emulated.py.
//
// Thread safety: any thread. Nothing here touches the driver before
// device_count() or initialise() does.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace chameleon::backend {

struct NativeCuda {
  // GPUs that this process sees, 0 without a driver. Makes no context.
  int (*device_count)() noexcept;
  // PyTorch's own initialisation of CUDA, Python's part included (what was put
  // off until then, seeds for example). Throws where there is no GPU. Takes the
  // GIL: nobody calls it under a lock of ours.
  void (*initialise)();
  // Puts the in-kernel allocator over CUDA's. Idempotent. REQUIRES:
  // initialise().
  void (*install_in_kernel_allocator)();
  // The calling thread's current stream, as torch.cuda has it. Throws while a
  // CUDA graph is captured on it.
  c10::StreamId (*current_stream)(c10::DeviceIndex);
  // Lets cuBLAS take what it keeps for the calling thread and its current
  // stream, so that no kernel takes it from the arena for ever. Cheap when
  // called again.
  void (*prepare_thread)(c10::DeviceIndex) noexcept;
  // True: the default generator was seeded since this was last asked. cuDNN's
  // dropout keeps a state of its own, made of the seed.
  bool (*was_seeded)(c10::DeviceIndex);
};

// Null: this build has no CUDA.
const NativeCuda* native_cuda() noexcept;
void set_native_cuda(const NativeCuda* table) noexcept; // at load

// Who does Python's part: set once, before the first use.
void set_cuda_initialiser(void (*initialise)()) noexcept;
void (*cuda_initialiser() noexcept)();

} // namespace chameleon::backend
