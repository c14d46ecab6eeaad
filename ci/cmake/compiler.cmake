# Language level, flags, sanitizers and compiler cache for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# torch is always imported before _C, so its libraries are loaded already.
set(CMAKE_SKIP_RPATH ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")

# Paths in messages start at the root of the repository; ccache makes them
# relative to the build folder first.
file(RELATIVE_PATH root_from_build "${PROJECT_BINARY_DIR}"
     "${PROJECT_SOURCE_DIR}/CMakeLists.txt")
string(REPLACE "CMakeLists.txt" "" root_from_build "${root_from_build}")
add_compile_options("-ffile-prefix-map=${PROJECT_SOURCE_DIR}/="
                    "-ffile-prefix-map=${root_from_build}=")

set(CHAMELEON_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor
    -Woverloaded-virtual)
if(CHAMELEON_WERROR)
  list(APPEND CHAMELEON_WARNINGS -Werror)
endif()

if(CHAMELEON_SANITIZE)
  # Debug checks on (no NDEBUG), and the first finding ends the program.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  list(JOIN CHAMELEON_SANITIZE "," sanitizers)
  add_compile_options(-fsanitize=${sanitizers} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${sanitizers})
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The sloppiness is what ccache's manual asks for with precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND}" -E env
      "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
      "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}"
      CCACHE_NOHASHDIR=1
      "${CCACHE_PROGRAM}")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-fpch-preprocess)
  endif()
endif()
