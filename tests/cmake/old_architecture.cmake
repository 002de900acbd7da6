# An architecture that tern's kernels are not written for: cuda_architectures_test.cmake expects the error.
include(${CMAKE_CURRENT_LIST_DIR}/../../cmake/cuda_architectures.cmake)
tern_check_architectures("75-real;90a-real")
