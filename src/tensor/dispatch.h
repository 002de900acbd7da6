#pragma once
#include <string>

#include "backend/error.h"
#include "tensor/dtype.h"

namespace tern {

namespace detail {
enum class DTypes { floats, numbers, all };

template <DTypes dtypes, class F>
decltype(auto) dispatch(DType dtype, const char* where, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::f64: return f.template operator()<double>();
    case DType::f16: return f.template operator()<f16>();
    case DType::bf16: return f.template operator()<bf16>();
    default: break;
  }
  if constexpr (dtypes != DTypes::floats) {
    switch (dtype) {
      case DType::i32: return f.template operator()<std::int32_t>();
      case DType::i64: return f.template operator()<std::int64_t>();
      case DType::u8: return f.template operator()<std::uint8_t>();
      default: break;
    }
  }
  if constexpr (dtypes == DTypes::all) return f.template operator()<bool>();
  else
    fail(where,
         std::string(dtypes == DTypes::floats ? "expected a floating dtype but got " : "expected a numeric dtype but got ") + name(dtype));
}
}  // namespace detail

/// Calls f.template operator()<T>() with the C++ type of a floating dtype. Throws Error that names `where` for any other dtype.
template <class F>
decltype(auto) dispatch_floats(DType dtype, const char* where, F&& f) {
  return detail::dispatch<detail::DTypes::floats>(dtype, where, f);
}

/// As dispatch_floats, for floats and integers.
template <class F>
decltype(auto) dispatch_numbers(DType dtype, const char* where, F&& f) {
  return detail::dispatch<detail::DTypes::numbers>(dtype, where, f);
}

/// As dispatch_floats, for f32 and f64 only.
template <class F>
decltype(auto) dispatch_f32_f64(DType dtype, const char* where, F&& f) {
  if (dtype == DType::f32) return f.template operator()<float>();
  if (dtype == DType::f64) return f.template operator()<double>();
  fail(where, std::string("expected f32 or f64 but got ") + name(dtype));
}

/// As dispatch_floats, for every dtype.
template <class F>
decltype(auto) dispatch_all(DType dtype, F&& f) {
  return detail::dispatch<detail::DTypes::all>(dtype, "", f);
}

/// Calls f with an unsigned integer of the dtype's size: for kernels that move elements and do not compute with them.
template <class F>
decltype(auto) dispatch_bits(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 8: return f.template operator()<std::uint64_t>();
    case 4: return f.template operator()<std::uint32_t>();
    case 2: return f.template operator()<std::uint16_t>();
    default: return f.template operator()<std::uint8_t>();
  }
}

}  // namespace tern
