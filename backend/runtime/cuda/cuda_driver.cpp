#include "backend/runtime/cuda/cuda_driver.h"

#include <dlfcn.h>
#include <memory>
#include <mutex>
#include <string>

namespace chameleon::runtime {

namespace {

Error unavailable(const std::string& why) {
  return {ErrorCode::kUnavailable,
          "physical_device = \"cuda\" needs an NVIDIA driver, but " + why +
              "; set it to \"cpu\" or \"simulated\""};
}

Error load(CudaDriver& driver) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return unavailable("libcuda.so.1 was not found");
  const auto find = reinterpret_cast<PFN_cuGetProcAddress_v12000>(
      dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) {
    return unavailable("the installed one is older than CUDA 12");
  }
  const auto entry = [find](const char* name, int version) -> void* {
    void* function = nullptr;
    const CUresult result =
        find(name, &function, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM,
             /*symbolStatus=*/nullptr);
    return result == CUDA_SUCCESS ? function : nullptr;
  };
#define CHAMELEON_LOAD(name, version)                                 \
  driver.name =                                                       \
      reinterpret_cast<decltype(driver.name)>(entry(#name, version)); \
  if (driver.name == nullptr) {                                       \
    return unavailable("the installed one has no " #name);            \
  }
  CHAMELEON_CUDA_CALLS(CHAMELEON_LOAD)
#undef CHAMELEON_LOAD
  if (const CUresult result = driver.cuInit(0); result != CUDA_SUCCESS) {
    return unavailable("it finds no GPU: " +
                       cuda_error(driver, result, "cuInit").message());
  }
  // An older driver answers with the version that it has, whose signature is
  // another one.
  int version = 0;
  if (driver.cuDriverGetVersion(&version) != CUDA_SUCCESS) version = 0;
#define CHAMELEON_LOAD(name, since)                                   \
  if (version >= (since)) {                                           \
    driver.name =                                                     \
        reinterpret_cast<decltype(driver.name)>(entry(#name, since)); \
  }
  CHAMELEON_CUDA_OPTIONAL_CALLS(CHAMELEON_LOAD)
#undef CHAMELEON_LOAD
  return {};
}

} // namespace

Result<const CudaDriver*> cuda_driver() {
  // Leaked: runtimes may outlive every static destructor. A failure is looked
  // for again, since a driver may be installed while we run.
  static std::mutex* const mutex = new std::mutex;
  static const CudaDriver* loaded = nullptr; // guarded by mutex
  const std::lock_guard lock(*mutex);
  if (loaded == nullptr) {
    auto driver = std::make_unique<CudaDriver>();
    if (Error error = load(*driver)) return error;
    loaded = driver.release();
  }
  return loaded;
}

Error cuda_error(const CudaDriver& driver, CUresult result, const char* call) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (driver.cuGetErrorName(result, &name) != CUDA_SUCCESS) name = "unknown";
  if (driver.cuGetErrorString(result, &text) != CUDA_SUCCESS) text = "error";
  const ErrorCode code = result == CUDA_ERROR_OUT_OF_MEMORY
                             ? ErrorCode::kOutOfDeviceMemory
                             : ErrorCode::kDevice;
  return {code, std::string(call) + " failed: " + text + " (" + name + ")"};
}

} // namespace chameleon::runtime
