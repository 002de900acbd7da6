# Packages are found, never downloaded. A package's headers are SYSTEM, so its warnings are not ours. A package that is
# headers alone is BUILD_INTERFACE: no installed header includes one, so a user of the library needs none.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(ZLIB REQUIRED)

add_library(tern_json INTERFACE)
target_link_libraries(tern_json INTERFACE $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)

# PCRE2 matches the byte-level BPE's Unicode pattern. The static library is preferred: a built program then runs
# on a machine that lacks the package.
find_path(PCRE2_INCLUDE_DIR pcre2.h)
find_library(PCRE2_LIBRARY NAMES libpcre2-8.a pcre2-8)
if(NOT PCRE2_INCLUDE_DIR OR NOT PCRE2_LIBRARY)
  message(FATAL_ERROR "PCRE2 was not found: install libpcre2-dev, or name its place in CMAKE_PREFIX_PATH")
endif()
add_library(tern_pcre2 INTERFACE)
target_include_directories(tern_pcre2 SYSTEM INTERFACE $<BUILD_INTERFACE:${PCRE2_INCLUDE_DIR}>)
target_compile_definitions(tern_pcre2 INTERFACE PCRE2_CODE_UNIT_WIDTH=8 PCRE2_STATIC)
# Installed, the library is looked for again (ternConfig.cmake): its path here may not be its path there.
target_link_libraries(tern_pcre2 INTERFACE $<BUILD_INTERFACE:${PCRE2_LIBRARY}> $<INSTALL_INTERFACE:tern::pcre2>)

# oneDNN has products of bfloat16 for processors that multiply it; ours multiply it as float32. Looked for by itself:
# Debian's package file asks for OpenCL, which these products do without.
set(TERN_HAS_ONEDNN OFF)
if(TERN_ONEDNN)
  find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  find_library(ONEDNN_LIBRARY dnnl)
  find_package(OpenMP QUIET COMPONENTS CXX)   # whose threads oneDNN has
  if(ONEDNN_INCLUDE_DIR AND ONEDNN_LIBRARY AND OpenMP_CXX_FOUND)
    set(TERN_HAS_ONEDNN ON)
    add_library(tern_onednn INTERFACE)
    target_include_directories(tern_onednn SYSTEM INTERFACE $<BUILD_INTERFACE:${ONEDNN_INCLUDE_DIR}>)
    target_link_libraries(tern_onednn INTERFACE $<BUILD_INTERFACE:${ONEDNN_LIBRARY}> $<INSTALL_INTERFACE:tern::onednn>)
    message(STATUS "bfloat16 products on the CPU: by oneDNN, ${ONEDNN_LIBRARY}, where the processor has them")
  elseif(ONEDNN_INCLUDE_DIR AND ONEDNN_LIBRARY)
    message(STATUS "bfloat16 products on the CPU: in float32, as OpenMP, which oneDNN needs, was not found (clang's is libomp-dev)")
  else()
    message(STATUS "bfloat16 products on the CPU: in float32, as oneDNN was not found (libdnnl-dev has it)")
  endif()
endif()

# Gloo carries collectives between processes on CPUs. Debian's package file names no include directory.
set(TERN_HAS_GLOO OFF)
if(TERN_GLOO)
  find_path(GLOO_INCLUDE_DIR gloo/allreduce.h)
  find_library(GLOO_LIBRARY gloo)
  if(GLOO_INCLUDE_DIR AND GLOO_LIBRARY)
    set(TERN_HAS_GLOO ON)
    add_library(tern_gloo INTERFACE)
    target_include_directories(tern_gloo SYSTEM INTERFACE $<BUILD_INTERFACE:${GLOO_INCLUDE_DIR}>)
    target_link_libraries(tern_gloo INTERFACE $<BUILD_INTERFACE:${GLOO_LIBRARY}> $<INSTALL_INTERFACE:tern::gloo>)
  else()
    message(STATUS "Several processes on CPUs: none, as Gloo was not found (libgloo-dev has it)")
  endif()
endif()

if(TERN_CUDA)
  find_package(CUDAToolkit REQUIRED)
  add_library(tern_cuda_toolkit INTERFACE)
  target_link_libraries(tern_cuda_toolkit INTERFACE CUDA::cudart_static CUDA::cublas CUDA::cublasLt)
endif()
# CUPTI tells a profile of a GPU's work. NVTX, beside it, is headers alone.
set(TERN_HAS_CUPTI OFF)
if(TERN_CUDA)
  if(TARGET CUDA::cupti)
    set(TERN_HAS_CUPTI ON)
    add_library(tern_cupti INTERFACE)
    target_link_libraries(tern_cupti INTERFACE CUDA::cupti CUDA::cudart_static)
  else()
    message(STATUS "Profiles of the GPU: none, as CUPTI was not found (it comes with the CUDA toolkit, in extras/CUPTI)")
  endif()
endif()
if(TERN_BUILD_APPS)
  find_package(CLI11 REQUIRED)
endif()
