#ifdef TERN_CUSOLVER
#include "cuda/linalg/cusolver.h"

#include <dlfcn.h>

#include <string>

#include "cuda/gemm/cublas.h"

namespace tern::gpu {

namespace {

const std::string& library_name() {
  static const std::string name = "libcusolver.so." + std::to_string(CUSOLVER_VER_MAJOR);
  return name;
}

[[noreturn]] void fail_to_load(const std::string& why) {
  fail("cuda", "expected " + library_name() + ", which does linear algebra on a GPU and comes with the CUDA toolkit, but got " + why);
}

void* open_library() {
  if (void* library = dlopen(library_name().c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  const char* said = dlerror();
  const std::string why = said ? said : "no message from the loader";
  // The toolkit's libraries are in one directory, which the loader may only know from this program's link to cuBLAS.
  Dl_info cublas_library{};
  if (dladdr(reinterpret_cast<void*>(&cublasCreate_v2), &cublas_library) && cublas_library.dli_fname) {
    const std::string path = cublas_library.dli_fname;
    const std::string beside = path.substr(0, path.rfind('/') + 1) + library_name();
    if (void* library = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  fail_to_load(why);
}

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  if (!function) fail_to_load(std::string("one without ") + name);
}

Cusolver load() {
  void* const library = open_library();
  Cusolver y{};
  find(library, "cusolverDnCreate", y.create);
  find(library, "cusolverDnCreateParams", y.create_params);
  find(library, "cusolverDnCreateGesvdjInfo", y.create_gesvdj_info);
  find(library, "cusolverDnSetStream", y.set_stream);
  find(library, "cusolverDnXpotrf_bufferSize", y.potrf_buffer_size);
  find(library, "cusolverDnXpotrf", y.potrf);
  find(library, "cusolverDnXgetrf_bufferSize", y.getrf_buffer_size);
  find(library, "cusolverDnXgetrf", y.getrf);
  find(library, "cusolverDnXgetrs", y.getrs);
  find(library, "cusolverDnXgeqrf_bufferSize", y.geqrf_buffer_size);
  find(library, "cusolverDnXgeqrf", y.geqrf);
  find(library, "cusolverDnXsyevd_bufferSize", y.syevd_buffer_size);
  find(library, "cusolverDnXsyevd", y.syevd);
  find(library, "cusolverDnXsyevBatched_bufferSize", y.syev_batched_buffer_size);
  find(library, "cusolverDnXsyevBatched", y.syev_batched);
  const auto find_of = [&](const std::string& letter, auto& of) {
    const auto named = [&](const char* name, auto& function) { find(library, ("cusolverDn" + letter + name).c_str(), function); };
    named("potrfBatched", of.potrf_batched);
    named("orgqr_bufferSize", of.orgqr_buffer_size);
    named("orgqr", of.orgqr);
    named("gesvdj_bufferSize", of.gesvdj_buffer_size);
    named("gesvdj", of.gesvdj);
    named("gesvdjBatched_bufferSize", of.gesvdj_batched_buffer_size);
    named("gesvdjBatched", of.gesvdj_batched);
  };
  find_of("S", y.of_float);
  find_of("D", y.of_double);
  return y;
}

CusolverHandle create_handle(Stream stream) {
  const Cusolver& library = cusolver_library();
  CusolverHandle y;
  check(library.create(&y.handle), "cusolverDnCreate");
  check(library.set_stream(y.handle, handle(stream)), "cusolverDnSetStream");
  check(library.create_params(&y.params), "cusolverDnCreateParams");
  check(library.create_gesvdj_info(&y.jacobi), "cusolverDnCreateGesvdjInfo");
  return y;
}

}  // namespace

void check(cusolverStatus_t code, const char* what) {
  if (code != CUSOLVER_STATUS_SUCCESS) [[unlikely]]
    fail("cuda", std::string(what) + ": status " + std::to_string(static_cast<int>(code)) + " of cuSOLVER");
}

const Cusolver& cusolver_library() {
  static const Cusolver library = load();
  return library;
}

CusolverHandle cusolver(Stream stream) { return HandlePool<CusolverHandle>::handle_for(stream, create_handle); }

}  // namespace tern::gpu
#endif
