# chameleon_libtorch: the headers and libraries of the torch that the given
# Python imports. find_package(Torch) is not used: for a CUDA wheel it insists
# on a CUDA toolkit of the same version, which host code does not need.
#
# chameleon_libtorch_cpu: what of that runs without Python and without CUDA.
#
# CHAMELEON_TORCH_WITH_CUDA: that torch is a CUDA build, and its headers find
# CUDA's. Without it physical devices are cpu and simulated. libcudart is not
# linked: torch has loaded its own.
find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.Module)

execute_process(
  COMMAND "${CMAKE_COMMAND}" -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0
          "${Python_EXECUTABLE}" -c [[
import os, torch
print(torch.__version__.split("+")[0])
print(int(torch.compiled_with_cxx11_abi()))
print(os.path.dirname(torch.__file__))
print(torch.version.cuda or "none", end="")
]]
  OUTPUT_VARIABLE answer ERROR_VARIABLE error RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR
    "${Python_EXECUTABLE} cannot import torch; install it with "
    "'${Python_EXECUTABLE} -m pip install torch==2.11.0', or build only the "
    "torch-free core with -DCHAMELEON_BUILD_TORCH=OFF.\n${error}")
endif()
string(REPLACE "\n" ";" answer "${answer}")
list(GET answer 0 CHAMELEON_BUILT_FOR_TORCH)
list(GET answer 1 CHAMELEON_BUILT_WITH_CXX11_ABI)
list(GET answer 2 torch_dir)
list(GET answer 3 torch_cuda)
message(STATUS "torch ${CHAMELEON_BUILT_FOR_TORCH}: ${torch_dir}")

add_library(chameleon_libtorch_cpu INTERFACE)
target_include_directories(chameleon_libtorch_cpu SYSTEM INTERFACE
  "${torch_dir}/include" "${torch_dir}/include/torch/csrc/api/include")
target_compile_definitions(chameleon_libtorch_cpu INTERFACE
  _GLIBCXX_USE_CXX11_ABI=${CHAMELEON_BUILT_WITH_CXX11_ABI})
target_link_libraries(chameleon_libtorch_cpu INTERFACE
  "${torch_dir}/lib/libtorch_cpu.so" "${torch_dir}/lib/libc10.so")

add_library(chameleon_libtorch INTERFACE)
target_link_libraries(chameleon_libtorch INTERFACE chameleon_libtorch_cpu
  Python::Module "${torch_dir}/lib/libtorch_python.so")

set(CHAMELEON_TORCH_WITH_CUDA OFF)
if(CHAMELEON_WITH_CUDA AND EXISTS "${torch_dir}/lib/libtorch_cuda.so"
   AND EXISTS "${CHAMELEON_CUDA_FOUND}/cublas_v2.h")
  # Their major version counts: within one, headers and libraries are
  # compatible.
  math(EXPR headers_major "${CHAMELEON_CUDA_VERSION} / 1000")
  if(torch_cuda MATCHES "^${headers_major}\\.")
    set(CHAMELEON_TORCH_WITH_CUDA ON)
    target_link_libraries(chameleon_libtorch INTERFACE
      "${torch_dir}/lib/libtorch_cuda.so" "${torch_dir}/lib/libc10_cuda.so")
  endif()
endif()
if(NOT CHAMELEON_TORCH_WITH_CUDA)
  set(headers none)
  if(CHAMELEON_WITH_CUDA)
    set(headers ${CHAMELEON_CUDA_VERSION})
  endif()
  message(STATUS "torch's CUDA is ${torch_cuda}, CUDA headers: ${headers}; "
    "physical devices are cpu and simulated")
endif()
