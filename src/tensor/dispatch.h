#pragma once
#include <string>

#include "backend/error.h"
#include "tensor/dtype.h"

namespace tern {

/// Calls f.template operator()<T>() with the C++ type of a floating dtype; anything else is an Error that names `where`.
template <class F>
decltype(auto) dispatch_floats(DType dtype, const char* where, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::f64: return f.template operator()<double>();
    case DType::f16: return f.template operator()<f16>();
    case DType::bf16: return f.template operator()<bf16>();
    default: fail(where, std::string("expected a floating dtype but got ") + name(dtype));
  }
}

/// As dispatch_floats, for every dtype.
template <class F>
decltype(auto) dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::f64: return f.template operator()<double>();
    case DType::f16: return f.template operator()<f16>();
    case DType::bf16: return f.template operator()<bf16>();
    case DType::i32: return f.template operator()<std::int32_t>();
    case DType::i64: return f.template operator()<std::int64_t>();
    case DType::u8: return f.template operator()<std::uint8_t>();
    default: return f.template operator()<bool>();
  }
}

}  // namespace tern
