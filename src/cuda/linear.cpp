#include <cublasLt.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "cuda/allocator.h"
#include "cuda/cublas.h"
#include "cuda/stream.h"
#include "ops/kernels/matmul.h"

// A linear layer by cuBLASLt, whose epilogue adds the bias while the product is still in registers: the addition as a
// kernel of its own reads and writes y once more, which for a vocabulary of 10,000 is a sixth of the whole time. As in
// matmul.cu columns count first: y^T (N, M) = weight (N, K) x^T (K, M).
namespace tern::kernels {

using namespace gpu;

namespace {

constexpr std::size_t workspace_bytes = std::size_t(32) << 20;  // what cuBLAS recommends for sm_90

/// What the choice of an algorithm depends on. Alignments are of the addresses, in bytes.
struct Key {
  DType dtype;
  std::int8_t device;
  bool has_bias;
  std::int64_t m, n, k, x_row, weight_row;
  unsigned x_alignment, weight_alignment, bias_alignment, y_alignment;
  friend auto operator<=>(const Key&, const Key&) = default;
};

template <class T, cublasStatus_t (*destroy)(T)>
struct Destroyer {
  using pointer = T;
  void operator()(T object) const { destroy(object); }
};
using Description = std::unique_ptr<cublasLtMatmulDesc_t, Destroyer<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using MatrixLayout = std::unique_ptr<cublasLtMatrixLayout_t, Destroyer<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreference_t, Destroyer<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

/// A product that is ready to be launched; `algorithm` is empty where cuBLASLt knows none.
struct Plan {
  Description description;
  MatrixLayout weight, x, y;
  cublasLtMatmulAlgo_t algorithm{};
  bool is_supported = false;
};

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::f32 ? CUDA_R_32F : dtype == DType::f64 ? CUDA_R_64F : dtype == DType::f16 ? CUDA_R_16F : CUDA_R_16BF;
}

MatrixLayout matrix(cudaDataType_t type, std::int64_t rows, std::int64_t columns, std::int64_t leading) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), leading), "cublasLtMatrixLayoutCreate");
  return MatrixLayout(layout);
}

Plan make_plan(const Key& key, cublasLtHandle_t library) {
  const cudaDataType_t type = data_type(key.dtype);
  const bool is_double = key.dtype == DType::f64;
  Plan plan;
  cublasLtMatmulDesc_t description = nullptr;
  check(cublasLtMatmulDescCreate(&description, is_double ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, is_double ? CUDA_R_64F : CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  plan.description.reset(description);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
    check(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)), "cublasLtMatmulDescSetAttribute");
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t(CUBLAS_OP_T));
  if (key.has_bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t(CUBLASLT_EPILOGUE_BIAS));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t(type));
  }
  plan.weight = matrix(type, key.k, key.n, key.weight_row);
  plan.x = matrix(type, key.k, key.m, key.x_row);
  plan.y = matrix(type, key.n, key.m, key.n);

  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  const Preference owner(preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)), "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t(workspace_bytes));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t(key.weight_alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t(key.x_alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t(key.y_alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t(key.y_alignment));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(library, description, plan.weight.get(), plan.x.get(), plan.y.get(), plan.y.get(),
                                                               preference, 1, &found, &count);
  plan.is_supported = status == CUBLAS_STATUS_SUCCESS && count == 1 && found.state == CUBLAS_STATUS_SUCCESS;
  plan.algorithm = found.algo;
  return plan;
}

/// The largest power of two, up to 16, that divides an address.
unsigned alignment_of(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | 16;
  return static_cast<unsigned>(address & (~address + 1));
}

/// Row-major with rows that do not overlap: what cuBLASLt takes as it is.
bool has_rows(const View& x) { return (x.strides[1] == 1 || x.shape[1] == 1) && x.strides[0] >= x.shape[1]; }

}  // namespace

void linear(Cuda device, const View& x, const View& weight, const View& bias, const View& y) {
  const bool has_bias = bias.data != nullptr;
  if (y.numel() == 0 || x.shape[1] == 0 || !has_rows(x) || !has_rows(weight) || (has_bias && bias.strides[0] != 1 && bias.shape[0] != 1))
    return plain_linear(device, x, weight, bias, y);
  const Key key{y.dtype, y.stream.device.index, has_bias, y.shape[0], y.shape[1], x.shape[1], x.strides[0], weight.strides[0], alignment_of(x.data),
                alignment_of(weight.data), has_bias ? alignment_of(bias.data) : 0, alignment_of(y.data)};
  // The handle of cuBLAS serves cuBLASLt as well.
  const auto library = reinterpret_cast<cublasLtHandle_t>(cublas(y.stream));
  // Asking for an algorithm takes longer than a small product: each shape asks once. Never destroyed, like the handles.
  thread_local auto& plans = *new std::map<Key, Plan>;
  auto place = plans.find(key);
  if (place == plans.end()) place = plans.emplace(key, make_plan(key, library)).first;
  Plan& plan = place->second;
  if (!plan.is_supported) return plain_linear(device, x, weight, bias, y);
  if (has_bias)
    check(cublasLtMatmulDescSetAttribute(plan.description.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.data, sizeof(bias.data)),
          "cublasLtMatmulDescSetAttribute");
  const Workspace workspace(workspace_bytes, y.stream);
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  const bool is_double = y.dtype == DType::f64;
  const cublasStatus_t status =
      cublasLtMatmul(library, plan.description.get(), is_double ? static_cast<const void*>(&wide_one) : &one, weight.data, plan.weight.get(), x.data,
                     plan.x.get(), is_double ? static_cast<const void*>(&wide_zero) : &zero, y.data, plan.y.get(), y.data, plan.y.get(),
                     &plan.algorithm, workspace.as<void>(), workspace_bytes, handle(y.stream));
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    // What the heuristic offers for 16-bit floats at odd addresses is refused only here. Nothing was launched.
    plan.is_supported = false;
    return plain_linear(device, x, weight, bias, y);
  }
  check(status, "cublasLtMatmul");
}

}  // namespace tern::kernels
