#include "ops/cpu/onednn.h"

#ifdef TERN_ONEDNN
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif

namespace tern::onednn {

#ifdef TERN_ONEDNN

namespace {

/// Whether oneDNN multiplies 16-bit floats as such here. AVX-512 without BF16 has them too, but slower than our float32.
bool has_products() {
  static const bool has = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa()), needed = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & needed) == needed;
  }();
  return has;
}

/// One for each thread that calls; oneDNN shares what it compiled among them.
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

}  // namespace

bool multiply(gemm::Sizes size, double alpha, const gemm::Matrix<const bf16>& a, const gemm::Matrix<const bf16>& b, bf16* c,
              std::int64_t c_stride, bool add) {
  constexpr std::int64_t worth_it = 1 << 20;  // multiplications: a call costs some 10 us
  if (size.rows * size.columns * size.depth < worth_it || !has_products()) return false;
  thread_local Library library;
  omp_set_num_threads(num_threads());
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

#else

bool multiply(gemm::Sizes, double, const gemm::Matrix<const bf16>&, const gemm::Matrix<const bf16>&, bf16*, std::int64_t, bool) {
  return false;
}

#endif

}  // namespace tern::onednn
