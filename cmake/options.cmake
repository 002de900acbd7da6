if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

option(TERN_CUDA "Build the CUDA backend" OFF)
option(TERN_ONEDNN "Take products of bfloat16, and on Intel of float32, on the CPU from oneDNN, where it is found" ON)
option(TERN_ZSTD "Read text that Zstandard has compressed, where it is found" ON)
option(TERN_GLOO "Let processes on CPUs compute together through Gloo, where it is found" ON)
option(TERN_NCCL "Let processes on GPUs compute together through NCCL, where it is found" ON)
option(TERN_EIGEN "Take linear algebra (solve, svd, ...) from Eigen, where it is found" ON)
option(TERN_CUSOLVER "Take linear algebra on a GPU from cuSOLVER, where it is found" ON)
option(TERN_NATIVE "Compile for the processor at hand (-march=native)" ${PROJECT_IS_TOP_LEVEL})
option(BUILD_SHARED_LIBS "Give users one shared library, libtern.so, in place of static ones" OFF)
option(TERN_CPU_VARIANTS "Build the shared library for x86-64, x86-64-v3 and x86-64-v4, of which the loader takes the best: for packages" OFF)
set(TERN_CPU_LEVELS "x86-64-v3;x86-64-v4" CACHE STRING "The levels beside the baseline that TERN_CPU_VARIANTS builds, each a value of -march")
mark_as_advanced(TERN_CPU_LEVELS)
option(TERN_BUILD_APPS "Build the programs and the corpus writer" ${PROJECT_IS_TOP_LEVEL})
option(TERN_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(TERN_PYTHON "Build the Python package, which needs nanobind (docs/python.md)" OFF)
option(TERN_INSTALL "Define the install rules" ${PROJECT_IS_TOP_LEVEL})
option(TERN_WERROR "Treat warnings as errors" OFF)
option(TERN_HARDENED "Check the preconditions of the standard library and the stack, and stop where one does not hold" OFF)
# In a project that has no build type tern would be compiled without optimisation, and be slower by an order of magnitude.
set(tern_optimises OFF)
if(NOT PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND NOT CMAKE_CXX_FLAGS MATCHES "-O")
  set(tern_optimises ON)
  message(STATUS "tern is compiled with -O3, as the project has no CMAKE_BUILD_TYPE")
endif()
set(TERN_SANITIZE "" CACHE STRING "Sanitizers for the CPU build, as in -fsanitize=..., e.g. address,undefined")
# Note [Sections] (CMakeLists.txt): a link of ours, and of a user with static libraries, drops what nothing calls. GNU's linkers and LLVM's know
# the option, and a sanitizer's tables would keep all in any case.
set(tern_drops_sections OFF)
if(CMAKE_SYSTEM_NAME STREQUAL Linux AND NOT TERN_SANITIZE AND NOT BUILD_SHARED_LIBS)
  set(tern_drops_sections ON)
endif()

find_program(TERN_CCACHE ccache)
if(TERN_CCACHE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TERN_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${TERN_CCACHE})
endif()

if(TERN_CUDA)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES native)   # the GPU at hand; the preset ci-cuda names 90a where there is none
  endif()
  enable_language(CUDA)
  include("${CMAKE_CURRENT_LIST_DIR}/cuda_architectures.cmake")
  if(CMAKE_CUDA_ARCHITECTURES STREQUAL native AND CMAKE_CUDA_ARCHITECTURES_NATIVE)
    tern_with_specific_features("${CMAKE_CUDA_ARCHITECTURES_NATIVE}" CMAKE_CUDA_ARCHITECTURES)
  endif()
  tern_check_architectures("${CMAKE_CUDA_ARCHITECTURES}")
  message(STATUS "CUDA kernels are compiled for ${CMAKE_CUDA_ARCHITECTURES}")
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)   # CMake 3.25 does not know that nvcc has had it since 12.0
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
endif()

# An older compiler fails somewhere in the middle of a build, with errors that do not name the reason.
if((CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12) OR
   (CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14))
  message(FATAL_ERROR "tern needs g++ 12, clang 14 or later, but ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}: "
                      "name another one, for instance -DCMAKE_CXX_COMPILER=g++-12")
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(tern_warnings INTERFACE)
# GCC 12 warns wrongly of "..." + std::string (GCC bug 105651), and of its own AVX-512 intrinsics (105593).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(tern_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict -Wno-maybe-uninitialized>)
endif()
target_compile_options(tern_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wno-missing-field-initializers $<$<BOOL:${TERN_WERROR}>:-Werror>>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr --extended-lambda -lineinfo>)
# Clang takes [x = x], by which a lambda captures a structured binding, for a shadow, and {1} as a shape for needless braces; 17 and later
# warn of what GCC 12's std::stable_sort calls.
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(tern_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow -Wno-braced-scalar-init -Wno-deprecated-declarations>)
endif()
# Nobody here reads errno or catches floating-point traps, and both keep roots and comparisons out of vector loops.
# Neither option changes a result.
target_compile_options(tern_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-math-errno -fno-trapping-math>)
# For code that may have AVX-512: GCC 12 builds std::vector<double>{1, 1, 0, 0} with it as {1, 1, 1, 1} where it vectorises straight-line code.
function(tern_avx512_options target scope)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} ${scope} $<$<COMPILE_LANGUAGE:CXX>:-fno-tree-slp-vectorize>)
  endif()
endfunction()
if(tern_optimises)
  target_compile_options(tern_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX,CUDA>:-O3>)
endif()
if(TERN_NATIVE AND TERN_CPU_VARIANTS)
  set(TERN_NATIVE OFF CACHE BOOL "" FORCE)   # its programs are for any processor
endif()
if(TERN_NATIVE)
  target_compile_options(tern_warnings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
  tern_avx512_options(tern_warnings INTERFACE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  add_link_options(LINKER:-z,relro LINKER:-z,now)   # no table of functions stays writable in a running program
endif()
if(TERN_HARDENED)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong> $<$<COMPILE_LANGUAGE:CXX>:-fstack-clash-protection>)
  add_compile_definitions($<$<COMPILE_LANGUAGE:CXX>:_GLIBCXX_ASSERTIONS>)
  if(NOT TERN_SANITIZE)   # whose checks of the same functions see more
    add_compile_definitions($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:_FORTIFY_SOURCE=2>)
  endif()
endif()
if(TERN_SANITIZE)
  # Without -fno-sanitize-recover a report of UBSan is a line in a log, and the test that caused it passes.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TERN_SANITIZE}> $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=${TERN_SANITIZE})
endif()
