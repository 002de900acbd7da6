#include "ops/cpu/gemm.h"

#ifdef TERN_ONEDNN
#include <omp.h>

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>

#include "backend/threads.h"
#endif

namespace tern::onednn {

#ifdef TERN_ONEDNN

namespace {

/// True if oneDNN has native products of 16-bit floats here. Those on AVX-512 without BF16 are slower than our float32.
bool has_products() {
  static const bool has = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & needed) == needed;
  }();
  return has;
}

/// One engine for each calling thread; oneDNN shares compiled kernels among them.
struct Library {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

template <class T>
dnnl::memory memory_of(const dnnl::engine& engine, std::int64_t rows, std::int64_t columns, const gemm::Matrix<T>& matrix) {
  const dnnl::memory::desc desc({rows, columns}, dnnl::memory::data_type::bf16,
                                dnnl::memory::dims{matrix.row_stride, matrix.column_stride});
  return dnnl::memory(desc, engine, const_cast<bf16*>(matrix.data));
}

/// Scope in which the calling thread's products use that many OpenMP threads.
class OpenMpThreads {
 public:
  explicit OpenMpThreads(int count) { omp_set_num_threads(count); }
  ~OpenMpThreads() { omp_set_num_threads(before_); }
  OpenMpThreads(const OpenMpThreads&) = delete;
  OpenMpThreads& operator=(const OpenMpThreads&) = delete;

 private:
  int before_ = omp_get_max_threads();
};

/// True if a product stays on the calling thread if OpenMpThreads says so: oneDNN's threads are OpenMP's, or it has none.
constexpr bool stays_on_thread = DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP || DNNL_CPU_RUNTIME == DNNL_RUNTIME_SEQ;

/// Layout of a (rows, columns) matrix in BLAS terms: transposed or not, the leading dimension, and the length of a contiguous line.
struct Layout {
  char transposed;
  std::int64_t leading, length;
  Layout(const gemm::Matrix<const float>& m, std::int64_t rows, std::int64_t columns)
      : transposed(m.column_stride == 1 ? 'N' : 'T'),
        leading(m.column_stride == 1 ? m.row_stride : m.column_stride),
        length(m.column_stride == 1 ? columns : rows) {}
  /// BLAS takes no overlapping lines, such as those of an expanded tensor.
  bool is_valid() const { return leading >= std::max<std::int64_t>(length, 1); }
};

}  // namespace

bool multiply(gemm::Sizes size, double alpha, const gemm::Matrix<const bf16>& a, const gemm::Matrix<const bf16>& b, bf16* c,
              std::int64_t c_stride, bool add) {
  constexpr std::int64_t worth_it = 1 << 20;  // multiplications: a call costs some 10 us
  if (size.rows * size.columns * size.depth < worth_it || !has_products()) return false;
  thread_local Library library;
  const OpenMpThreads threads(num_threads());
  const dnnl::memory left = memory_of(library.engine, size.rows, size.depth, a),
                     right = memory_of(library.engine, size.depth, size.columns, b);
  const dnnl::memory product = memory_of(library.engine, size.rows, size.columns, gemm::Matrix<bf16>{c, c_stride, 1});
  dnnl::post_ops after;
  dnnl::primitive_attr attributes;
#if DNNL_VERSION_MAJOR >= 3
  if (alpha != 1) after.append_eltwise(dnnl::algorithm::eltwise_linear, static_cast<float>(alpha), 0);
  if (add) after.append_sum();
  attributes.set_post_ops(after);
  const dnnl::matmul::primitive_desc desc(library.engine, left.get_desc(), right.get_desc(), product.get_desc(), attributes);
#else
  if (alpha != 1) after.append_eltwise(1, dnnl::algorithm::eltwise_linear, static_cast<float>(alpha), 0);
  if (add) after.append_sum();
  attributes.set_post_ops(after);
  const dnnl::matmul::primitive_desc desc({left.get_desc(), right.get_desc(), product.get_desc()}, attributes, library.engine);
#endif
  dnnl::matmul(desc).execute(library.stream, {{DNNL_ARG_SRC, left}, {DNNL_ARG_WEIGHTS, right}, {DNNL_ARG_DST, product}});
  library.stream.wait();
  return true;
}

bool is_faster(gemm::Sizes size, const gemm::Matrix<const float>& a, const gemm::Matrix<const float>& b) {
  constexpr std::int64_t fewest = 1 << 22;
  static const bool has = stays_on_thread && __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512f");
  if (!has || size.rows * size.columns < 1 || size.depth < 1) return false;
  return size.rows * size.columns * size.depth >= fewest && Layout(a, size.rows, size.depth).is_valid() &&
         Layout(b, size.depth, size.columns).is_valid();
}

bool multiply(gemm::Sizes size, float alpha, const gemm::Matrix<const float>& a, const gemm::Matrix<const float>& b, float* c,
              std::int64_t c_stride, bool add) {
  if (!stays_on_thread) return false;
  const Layout left(a, size.rows, size.depth), right(b, size.depth, size.columns);
  const OpenMpThreads one(1);
  // Signals: in oneDNN up to 3.11, compiled code of deep float32 products keeps the stack pointer in memory from malloc, and a handler's
  // frame overwrites what is there. Its matmul primitive runs the same code for padded rows. Its products of bfloat16 have other code.
  const backend::BlockedSignals blocked(backend::BlockedSignals::Which::all);
  return dnnl_sgemm(left.transposed, right.transposed, size.rows, size.columns, size.depth, alpha, a.data, left.leading, b.data,
                    right.leading, add ? 1.0f : 0.0f, c, c_stride) == dnnl_success;
}

#else

bool multiply(gemm::Sizes, double, const gemm::Matrix<const bf16>&, const gemm::Matrix<const bf16>&, bf16*, std::int64_t, bool) {
  return false;
}
bool is_faster(gemm::Sizes, const gemm::Matrix<const float>&, const gemm::Matrix<const float>&) { return false; }
bool multiply(gemm::Sizes, float, const gemm::Matrix<const float>&, const gemm::Matrix<const float>&, float*, std::int64_t, bool) {
  return false;
}

#endif

}  // namespace tern::onednn
