#pragma once
#include <cublasLt.h>
#include <cublas_v2.h>

#include <mutex>
#include <vector>

#include "cuda/gemm/gemm.h"
#include "cuda/runtime/launch.h"

// Handles of a library, and cuBLAS's own.
namespace tern::gpu {

/// Pool of a library's handles; one pool per type of handle. A handle serves one thread at a time, and its workspace one stream: so each
/// thread has one handle per stream. When a thread ends, its handles are left to the next thread; none is ever destroyed, since at process
/// exit that would call a runtime that may be gone.
template <class Handle>
class HandlePool {
 public:
  /// This thread's handle for the stream, whose device is made current. `create` takes the stream and creates a handle if there is none.
  template <class Create>
  static Handle handle_for(Stream stream, Create create) {
    thread_local ThreadHandles handles;
    use(stream);
    for (const Entry& entry : handles.entries)
      if (entry.serves(stream)) return entry.handle;
    Entry entry{stream, {}};
    if (!take(entry)) entry.handle = create(stream);
    handles.entries.push_back(entry);
    return entry.handle;
  }

 private:
  struct Entry {
    Stream stream;
    Handle handle;
    bool serves(Stream other) const { return stream.handle == other.handle && stream.device == other.device; }
  };
  /// Handles of threads that have ended.
  struct Retired {
    std::mutex mutex;
    std::vector<Entry> entries;
  };
  static Retired& retired() {
    static auto& instance = *new Retired;
    return instance;
  }
  struct ThreadHandles {
    std::vector<Entry> entries;
    ~ThreadHandles() {
      const std::lock_guard lock(retired().mutex);
      retired().entries.insert(retired().entries.end(), entries.begin(), entries.end());
    }
  };
  static bool take(Entry& wanted) {
    const std::lock_guard lock(retired().mutex);
    auto& entries = retired().entries;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!entries[i].serves(wanted.stream)) continue;
      wanted = entries[i];
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    }
    return false;
  }
};

/// Throws Error, `[cuda] what: the library's message`, unless the call succeeded.
void check(cublasStatus_t code, const char* what);

/// This thread's cuBLAS handle for the stream, with a separate workspace; makes its device current.
cublasHandle_t cublas(Stream stream);

/// Workspace that cuBLAS recommends for sm_90.
inline constexpr std::size_t cublas_workspace_bytes = std::size_t(32) << 20;

cudaDataType_t cuda_type(DType dtype);
/// Compute type of a GEMM; `precision` is that of float32. 16-bit floats are summed in float32.
cublasComputeType_t compute_type(DType dtype, MatmulPrecision precision);

/// alpha or beta of a GEMM: cuBLAS reads a double for float64, a float for other types.
class GemmScale {
 public:
  GemmScale(double value, DType dtype) : double_(value), float_(static_cast<float>(value)), is_double_(dtype == DType::f64) {}
  const void* data() const { return is_double_ ? static_cast<const void*>(&double_) : &float_; }

 private:
  double double_;
  float float_;
  bool is_double_;
};

}  // namespace tern::gpu
