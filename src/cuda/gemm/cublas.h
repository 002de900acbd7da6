#pragma once
#include <cublas_v2.h>

#include "backend/device.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

/// Throws Error, `[cuda] what: the library's words`, unless the call succeeded.
void check(cublasStatus_t code, const char* what);

/// This thread's cuBLAS handle for the stream, with a workspace of its own; its device is made current.
cublasHandle_t cublas(Stream stream);

}  // namespace tern::gpu
