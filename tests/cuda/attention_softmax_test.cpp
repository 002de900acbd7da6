#include <algorithm>

#include "backend/memory.h"
#include "catch.h"
#include "ops/kernels/attention.h"
#include "skip.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

TEST_CASE("on the GPU softmax reaches elements past the 2^31st", "[cuda]") {
  constexpr std::int64_t columns = 1024, rows = (std::int64_t(1) << 21) + 3, bytes = rows * columns * 2;
  void* data = nullptr;
  try {
    data = backend::allocate(Cuda{}, bytes, gpu_stream);
  } catch (const Error&) {
    return test::skip("it needs 4.3 GB of the GPU's memory");
  }
  const View x{data, {1, rows, columns}, {rows * columns, columns, 1}, DType::bf16, gpu_stream};
  std::vector<bf16> last(3 * columns);
  bf16* const place = x.as<bf16>() + (rows - 3) * columns;
  backend::copy_from_host(Cuda{}, place, last.data(), last.size() * sizeof(bf16), gpu_stream);
  kernels::AttentionSoftmax{x, {}, x}.run(Cuda{});
  backend::copy_to_host(Cuda{}, last.data(), place, last.size() * sizeof(bf16), gpu_stream);
  CHECK(std::all_of(last.begin(), last.end(), [](bf16 y) { return static_cast<float>(y) == 1.0f / columns; }));
  backend::deallocate(Cuda{}, data, bytes, gpu_stream);
}

}  // namespace tern
