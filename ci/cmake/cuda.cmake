# chameleon_cuda_headers: the driver's headers, for a runtime that looks its
# functions up when it is used. No CUDA library is linked. They come from a
# toolkit, or from the packages that PyTorch's own wheel for CUDA installs
# beside itself. Without them physical devices are cpu and simulated.
set(CHAMELEON_CUDA_MINIMUM 13000)

set(CHAMELEON_CUDA_INCLUDE "" CACHE PATH
    "Folder of cuda.h and cudaTypedefs.h (default: looked for)")

function(chameleon_find_cuda)
  set(hints "${CHAMELEON_CUDA_INCLUDE}")
  if(NOT hints)
    find_package(CUDAToolkit QUIET)
    find_package(Python 3.10 QUIET COMPONENTS Interpreter)
    set(hints "${CUDAToolkit_INCLUDE_DIRS}")
    if(Python_Interpreter_FOUND)
      execute_process(
        COMMAND "${Python_EXECUTABLE}" -c [[
import importlib.util
spec = importlib.util.find_spec("nvidia")
paths = spec.submodule_search_locations if spec else []
print(*(f"{path}/cu13/include" for path in paths or []), sep=";", end="")
]]
        OUTPUT_VARIABLE wheels ERROR_QUIET)
      list(APPEND hints ${wheels})
    endif()
  endif()
  foreach(folder IN LISTS hints)
    if(NOT EXISTS "${folder}/cuda.h" OR NOT EXISTS "${folder}/cudaTypedefs.h")
      continue()
    endif()
    file(STRINGS "${folder}/cuda.h" line REGEX "^#define CUDA_VERSION [0-9]+$")
    string(REGEX MATCH "[0-9]+$" version "${line}")
    if(version GREATER_EQUAL CHAMELEON_CUDA_MINIMUM)
      set(CHAMELEON_CUDA_FOUND "${folder}" PARENT_SCOPE)
      set(CHAMELEON_CUDA_VERSION ${version} PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()

add_library(chameleon_cuda_headers INTERFACE)
chameleon_find_cuda()
if(CHAMELEON_CUDA_FOUND)
  set(CHAMELEON_WITH_CUDA ON)
  target_include_directories(chameleon_cuda_headers SYSTEM INTERFACE
    "${CHAMELEON_CUDA_FOUND}")
  target_compile_definitions(chameleon_cuda_headers INTERFACE
    CHAMELEON_WITH_CUDA)
  message(STATUS "CUDA ${CHAMELEON_CUDA_VERSION}: ${CHAMELEON_CUDA_FOUND}")
else()
  set(CHAMELEON_WITH_CUDA OFF)
  message(STATUS "CUDA 13 headers: not found, physical devices are cpu and "
    "simulated")
endif()
