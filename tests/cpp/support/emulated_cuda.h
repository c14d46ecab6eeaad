// What the files of the stand-in for CUDA's libraries share; emulated_cuda.cpp
// says what that is.
#pragma once

#include <cuda_runtime_api.h>

#define EXPORT extern "C" [[gnu::visibility("default")]]

namespace chameleon::support {

// Success, or the sticky error that a test has asked for.
cudaError_t emulated_status();
void count_kernel(); // one more was launched

} // namespace chameleon::support
