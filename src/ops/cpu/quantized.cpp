#include "ops/cpu/row_product.h"

namespace tern::kernels {

using namespace loops;

namespace {

/// Dequantizes a row of `in` values.
template <class C>
void unpack_row(const QuantizedRows& w, std::int64_t row, C* to) {
  const std::uint8_t* from = w.row(row);
  const auto zero = static_cast<C>(integers::zero_of(w.format));
  if (!has_blocks(w.format)) {
    const C scale = integers::float_at(from);
#pragma omp simd
    for (std::int64_t i = 0; i < w.in; ++i) to[i] = scale * (static_cast<C>(from[4 + i]) - zero);
    return;
  }
  for (std::int64_t k = 0; k < w.in; k += quant_block, from += block_bytes(w.format)) {
    std::uint8_t codes[quant_block];
    integers::unpack_block(w.format, from, codes);
    const C scale = integers::half_at(from);
    const std::int64_t n = std::min(quant_block, w.in - k);
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) to[k + i] = scale * (static_cast<C>(codes[i]) - zero);
  }
}

}  // namespace

void QuantizedLinear::run(Cpu) const {
  if (y.numel() == 0) return;
  dispatch_floats(y.dtype, "quantized_linear", [&]<class S>() {
    if constexpr (!std::is_same_v<S, double>) {
      integers::with_vnni([&]<bool Vnni>() {
        if constexpr (Vnni && integers::has_row_product) {
          if (integers::takes_row(x, w))
            return w.format == QuantFormat::q8_0 ? integers::multiply_row<QuantFormat::q8_0, S>(x, w, bias, y)
                                                 : integers::multiply_row<QuantFormat::q4_0, S>(x, w, bias, y);
        }
        if (has_blocks(w.format)) integers::multiply<integers::EightBits<Vnni>, true, S>(x, w, bias, y);
        else if (w.format == QuantFormat::dynamic_int8) integers::multiply<integers::EightBits<Vnni>, false, S>(x, w, bias, y);
        else integers::multiply<integers::SixteenBits<Vnni>, false, S>(x, w, bias, y);
      });
    }
  });
}

void Dequantize::run(Cpu) const {
  if (y.numel() == 0) return;
  const std::int64_t count = y.numel() / w.in;
  dispatch_floats(y.dtype, "dequantize", [&]<class S>() {
    using C = compute_t<S>;
    const Scratch<C> values(num_threads() * w.in, y.stream);
    share(count, std::clamp<std::int64_t>(y.numel() / stream_grain, 1, num_threads()),
          [&](std::int64_t begin, std::int64_t end, std::int64_t thread) {
            C* const row = values.data() + thread * w.in;
            for (std::int64_t i = begin; i < end; ++i) {
              unpack_row(w, ids.data ? ids.as<const std::int64_t>()[i] : i, row);
              convert_run(row, y.as<S>() + i * w.in, w.in);
            }
          });
  });
}

}  // namespace tern::kernels
