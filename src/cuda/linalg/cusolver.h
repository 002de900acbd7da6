#pragma once
#include <cusolverDn.h>

#include "backend/device.h"

namespace tern::gpu {

/// Functions of cuSOLVER that have a type in their names, S or D.
template <class T>
struct CusolverOf {
  cusolverStatus_t (*potrf_batched)(cusolverDnHandle_t, cublasFillMode_t, int n, T* a[], int lda, int* info, int count);
  cusolverStatus_t (*orgqr_buffer_size)(cusolverDnHandle_t, int m, int n, int k, const T* a, int lda, const T* tau, int* size);
  cusolverStatus_t (*orgqr)(cusolverDnHandle_t, int m, int n, int k, T* a, int lda, const T* tau, T* work, int size, int* info);
  cusolverStatus_t (*gesvdj_buffer_size)(cusolverDnHandle_t, cusolverEigMode_t, int econ, int m, int n, const T* a, int lda, const T* s,
                                         const T* u, int ldu, const T* v, int ldv, int* size, gesvdjInfo_t);
  cusolverStatus_t (*gesvdj)(cusolverDnHandle_t, cusolverEigMode_t, int econ, int m, int n, T* a, int lda, T* s, T* u, int ldu, T* v,
                             int ldv, T* work, int size, int* info, gesvdjInfo_t);
  cusolverStatus_t (*gesvdj_batched_buffer_size)(cusolverDnHandle_t, cusolverEigMode_t, int m, int n, const T* a, int lda, const T* s,
                                                 const T* u, int ldu, const T* v, int ldv, int* size, gesvdjInfo_t, int count);
  cusolverStatus_t (*gesvdj_batched)(cusolverDnHandle_t, cusolverEigMode_t, int m, int n, T* a, int lda, T* s, T* u, int ldu, T* v, int ldv,
                                     T* work, int size, int* info, gesvdjInfo_t, int count);
};

/// Functions of cuSOLVER that are called here. The library and its dependencies take 0.4 GB of address space and time to load, so no
/// program is linked with it: the first call loads it.
struct Cusolver {
  decltype(&cusolverDnCreate) create;
  decltype(&cusolverDnCreateParams) create_params;
  decltype(&cusolverDnCreateGesvdjInfo) create_gesvdj_info;
  decltype(&cusolverDnSetStream) set_stream;
  decltype(&cusolverDnXpotrf_bufferSize) potrf_buffer_size;
  decltype(&cusolverDnXpotrf) potrf;
  decltype(&cusolverDnXgetrf_bufferSize) getrf_buffer_size;
  decltype(&cusolverDnXgetrf) getrf;
  decltype(&cusolverDnXgetrs) getrs;
  decltype(&cusolverDnXgeqrf_bufferSize) geqrf_buffer_size;
  decltype(&cusolverDnXgeqrf) geqrf;
  decltype(&cusolverDnXsyevd_bufferSize) syevd_buffer_size;
  decltype(&cusolverDnXsyevd) syevd;
  decltype(&cusolverDnXsyevBatched_bufferSize) syev_batched_buffer_size;
  decltype(&cusolverDnXsyevBatched) syev_batched;
  CusolverOf<float> of_float;
  CusolverOf<double> of_double;

  template <class T>
  const CusolverOf<T>& of() const {
    if constexpr (sizeof(T) == sizeof(double)) return of_double;
    else return of_float;
  }
};

/// Loads the library once: by the loader's search path, or from cuBLAS's directory. Throws Error, each time, if it cannot be loaded.
const Cusolver& cusolver_library();

/// A handle with the settings that calls need.
struct CusolverHandle {
  cusolverDnHandle_t handle = nullptr;
  cusolverDnParams_t params = nullptr;
  gesvdjInfo_t jacobi = nullptr;  ///< default settings: until off-diagonal elements are rounding errors, at most 100 sweeps
};
/// This thread's handle for the stream; makes its device current.
CusolverHandle cusolver(Stream stream);

/// Throws Error that names the call, unless it succeeded.
void check(cusolverStatus_t code, const char* what);

}  // namespace tern::gpu
