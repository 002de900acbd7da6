// Memory that is shared with other libraries: from_blob, and DLPack both ways.
#include "data/dlpack.h"

#include <memory>
#include <string>

#include "catch.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/from_blob.h"

namespace tern {

namespace {

using namespace dlpack;
using Floats = std::vector<float>;

constexpr DType all_dtypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean};

/// Another library's tensor of six floats, which counts the calls of its deleter.
template <class Managed>
struct Foreign {
  Foreign() {
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Foreign*>(self->manager_ctx)->deleted; };
    if constexpr (requires { managed.version; }) managed.version = {1, 0};
    managed.dl_tensor = {.data = values,
                         .device = {cpu_device, 0},
                         .ndim = 2,
                         .dtype = {float_code, 32, 1},
                         .shape = shape,
                         .strides = nullptr,
                         .byte_offset = 0};
  }
  float values[6] = {0, 1, 2, 3, 4, 5};
  std::int64_t shape[2] = {2, 3}, strides[2] = {1, 2};
  int deleted = 0;
  Managed managed{};
};

Floats floats(const Tensor& x) { return x.to_vector<float>(); }

}  // namespace

TEST_CASE("from_blob adopts memory, and its deleter is called once, at the last handle's end") {
  Floats memory{0, 1, 2, 3, 4, 5};
  int deleted = 0;
  void* given = nullptr;
  {
    Tensor view;
    {
      const Tensor x = from_blob(memory.data(), {2, 3}, DType::f32, [&](void* data) { ++deleted, given = data; });
      CHECK(x.data<float>() == memory.data());
      CHECK(x.to_vector<float>() == memory);
      fill_(select(x, 0, 0), 7);
      CHECK(memory == Floats{7, 7, 7, 3, 4, 5});
      memory[5] = 9;
      CHECK(sum(x).item() == 37);
      Tensor w = x;
      w.set_requires_grad();
      const Tensor y = square(w);
      y.backward(ones({2, 3}));
      CHECK(w.grad().to_vector<float>()[5] == 18);
      view = select(x, 0, 1);
    }
    CHECK(deleted == 0);
    CHECK(view.to_vector<float>() == Floats{3, 4, 9});
  }
  CHECK(deleted == 1);
  CHECK(given == memory.data());
}

TEST_CASE("from_blob takes strides of any sign, and tensors without elements") {
  Floats memory{0, 1, 2, 3, 4, 5};
  const Tensor turned = from_blob(memory.data(), {3, 2}, DType::f32, {}, {.strides = Strides{1, 3}});
  CHECK(turned.to_vector<float>() == Floats{0, 3, 1, 4, 2, 5});
  const Tensor flipped = from_blob(memory.data() + 5, {6}, DType::f32, {}, {.strides = Strides{-1}});
  CHECK(flipped.to_vector<float>() == Floats{5, 4, 3, 2, 1, 0});
  CHECK(slice(flipped, 0, 4, 6).to_vector<float>() == Floats{1, 0});
  CHECK(from_blob(memory.data(), {2, 3}, DType::f32, {}, {.strides = Strides{0, 1}}).to_vector<float>() == Floats{0, 1, 2, 0, 1, 2});
  int deleted = 0;
  CHECK(from_blob(nullptr, {0, 3}, DType::f32, [&](void*) { ++deleted; }).numel() == 0);
  CHECK(deleted == 1);
  CHECK(from_blob(memory.data() + 2, {}, DType::f32).item() == 2);
}

TEST_CASE("from_blob refuses what is no memory of a tensor, and leaves it to the caller") {
  Floats memory(6);
  int deleted = 0;
  const auto error = [&](void* data, const Shape& shape, const BlobOptions& options = {}) {
    return message_of([&] { from_blob(data, shape, DType::f32, [&](void*) { ++deleted; }, options); });
  };
  CHECK(error(nullptr, {2}) == "[from_blob] expected an address for 2 elements but got null");
  CHECK(error(memory.data(), {-1}) == "[from_blob] expected sizes >= 0 but got (-1,)");
  CHECK(error(memory.data(), {2}, {.strides = Strides{1, 1}}) == "[from_blob] expected a stride for each of 1 dimensions but got 2");
  CHECK(error(reinterpret_cast<char*>(memory.data()) + 1, {2}) ==
        "[from_blob] expected an address that is a multiple of 4, the size of f32: copy such memory");
  CHECK(error(memory.data(), {std::int64_t(1) << 62, 4}, {.strides = Strides{4, 1}}).find("fits in memory") != std::string::npos);
  CHECK_FALSE(error(memory.data(), {2}, {.device = cuda(15)}).empty());
  CHECK(deleted == 0);
}

TEST_CASE("Memory that is read-only is read, and refused by ops in place") {
  Floats memory{0, 1, 2, 3, 4, 5};
  const Tensor x = from_blob(memory.data(), {6}, DType::f32, {}, {.is_read_only = true});
  CHECK(sum(x * 2.0).item() == 30);
  CHECK(message_of([&] { fill_(x, 1); }) ==
        "[fill_] expected a target that may be written but the memory of (6,) is read-only: write to a clone");
  CHECK_FALSE(message_of([&] { copy_(slice(x, 0, 0, 2), ones({2})); }).empty());
  CHECK_FALSE(message_of([&] { add_(x, 1.0); }).empty());
  CHECK(memory == Floats{0, 1, 2, 3, 4, 5});
  const Tensor own = clone(x);
  fill_(own, 1);
  CHECK(sum(own).item() == 6);
}

TEST_CASE("Tensors of every dtype and layout go through DLPack and back without a copy") {
  for (const DType dtype : all_dtypes) {
    INFO(name(dtype));
    const Tensor x = cast(arange(24), dtype), whole = reshape(x, {2, 3, 4});
    for (const Tensor& y : {whole, transpose(whole, 0, 2), slice(whole, 1, 1, 3), select(select(select(whole, 0, 1), 0, 1), 0, 1),
                            expand(select(whole, 0, 0), {5, 3, 4}), slice(whole, 0, 1, 1)}) {
      DLManagedTensorVersioned* const managed = to_dlpack(y);
      CHECK(managed->version.major == 1);
      CHECK(managed->flags == 0);
      CHECK(managed->dl_tensor.ndim == y.dims());
      CHECK(managed->dl_tensor.dtype.bits == 8 * size_of(dtype));
      const Tensor back = from_dlpack(managed);
      CHECK(back.dtype() == dtype);
      CHECK(back.shape() == y.shape());
      CHECK(back.strides() == y.strides());
      if (y.numel() > 0) CHECK(back.view().data == y.view().data);
      CHECK(cast(back, DType::f64).to_vector<double>() == cast(y, DType::f64).to_vector<double>());
      const Tensor again = from_dlpack(to_dlpack_unversioned(y));
      CHECK(cast(again, DType::f64).to_vector<double>() == cast(y, DType::f64).to_vector<double>());
    }
  }
  // The codes of dlpack.h.
  const auto code = [](DType dtype) {
    DLManagedTensor* const managed = to_dlpack_unversioned(zeros({1}, dtype));
    const DLDataType found = managed->dl_tensor.dtype;
    managed->deleter(managed);
    return std::pair(int(found.code), int(found.bits));
  };
  CHECK(code(DType::f32) == std::pair(2, 32));
  CHECK(code(DType::f16) == std::pair(2, 16));
  CHECK(code(DType::bf16) == std::pair(4, 16));
  CHECK(code(DType::i64) == std::pair(0, 64));
  CHECK(code(DType::u8) == std::pair(1, 8));
  CHECK(code(DType::boolean) == std::pair(6, 8));
}

TEST_CASE("What is exported lives until the receiver's deleter, and no longer") {
  Floats memory{0, 1, 2, 3, 4, 5};
  int deleted = 0;
  DLManagedTensorVersioned* managed = nullptr;
  {
    const Tensor x = from_blob(memory.data(), {6}, DType::f32, [&](void*) { ++deleted; });
    managed = to_dlpack(slice(x, 0, 2, 4));
  }
  CHECK(deleted == 0);
  CHECK(static_cast<float*>(managed->dl_tensor.data)[0] == 2);
  CHECK(managed->dl_tensor.shape[0] == 2);
  managed->deleter(managed);
  CHECK(deleted == 1);
}

template <class Managed>
static void check_foreign() {
  Foreign<Managed> foreign;
  {
    const Tensor x = from_dlpack(&foreign.managed), view = select(x, 0, 1);
    CHECK(x.shape() == Shape{2, 3});
    CHECK(x.view().data == static_cast<void*>(foreign.values));
    CHECK(floats(view) == Floats{3, 4, 5});
    CHECK(foreign.deleted == 0);
  }
  CHECK(foreign.deleted == 1);

  foreign.managed.dl_tensor.byte_offset = 4;
  foreign.managed.dl_tensor.strides = foreign.strides;
  foreign.shape[0] = 2, foreign.shape[1] = 2;
  CHECK(floats(from_dlpack(&foreign.managed)) == Floats{1, 3, 2, 4});
  CHECK(foreign.deleted == 2);
  foreign.managed.dl_tensor.data = nullptr, foreign.shape[0] = 0, foreign.managed.dl_tensor.byte_offset = 0;
  CHECK(from_dlpack(&foreign.managed).numel() == 0);
  CHECK(foreign.deleted == 3);
  foreign.managed.deleter = nullptr;
  CHECK(from_dlpack(&foreign.managed).numel() == 0);
}

TEST_CASE("Tensors of another library are adopted, and given back once") {
  check_foreign<DLManagedTensorVersioned>();
  check_foreign<DLManagedTensor>();
}

TEST_CASE("DLPack's read-only flag goes both ways") {
  Foreign<DLManagedTensorVersioned> foreign;
  foreign.managed.flags = read_only_flag;
  const Tensor x = from_dlpack(&foreign.managed);
  CHECK_FALSE(message_of([&] { fill_(x, 1); }).empty());
  DLManagedTensorVersioned* const managed = to_dlpack(x);
  CHECK(managed->flags == read_only_flag);
  managed->deleter(managed);
  CHECK(message_of([&] { to_dlpack_unversioned(x); }).find("cannot say that it is read-only") != std::string::npos);
  CHECK(message_of([&] { to_dlpack(zeros({2}).set_requires_grad()); }).find("export detach()") != std::string::npos);
}

TEST_CASE("DLPack tensors that are none of ours stay the caller's") {
  const auto error = [](auto change) {
    Foreign<DLManagedTensorVersioned> foreign;
    change(foreign.managed);
    const std::string message = message_of([&] { from_dlpack(&foreign.managed); });
    CHECK(foreign.deleted == 0);
    return message;
  };
  using M = DLManagedTensorVersioned;
  CHECK(error([](M& m) { m.version = {2, 3}; }) == "[from_dlpack] expected version 1 but got 2.3");
  CHECK(error([](M& m) { m.dl_tensor.dtype.lanes = 4; }) ==
        "[from_dlpack] expected f32, f64, f16, bf16, i32, i64, u8 or bool but got type code 2 of 32 bits and 4 lanes");
  CHECK_FALSE(error([](M& m) { m.dl_tensor.dtype = {uint_code, 16, 1}; }).empty());
  CHECK_FALSE(error([](M& m) { m.dl_tensor.dtype = {5, 64, 1}; }).empty());
  CHECK(error([](M& m) { m.dl_tensor.device = {10, 0}; }) ==
        "[from_dlpack] expected the CPU (1), CUDA (2) or CUDA's host memory (3) but got device type 10");
  CHECK_FALSE(error([](M& m) { m.dl_tensor.device = {cuda_device, 99}; }).empty());
  CHECK(error([](M& m) { m.dl_tensor.ndim = 9; }) == "[from_dlpack] expected 0 to 8 dimensions but got 9");
  CHECK_FALSE(error([](M& m) { m.dl_tensor.byte_offset = 2; }).empty());
  CHECK_FALSE(message_of([] { from_dlpack(static_cast<DLManagedTensor*>(nullptr)); }).empty());
}

TEST_CASE("CUDA tensors go through DLPack and from_blob", "[cuda]") {
  int deleted = 0;
  {
    const Tensor x = to(arange(6), cuda());
    const Tensor back = from_dlpack(to_dlpack(x));
    CHECK(back.device() == cuda());
    CHECK(back.view().data == x.view().data);
    fill_(back, 3);
    CHECK(sum(x).item() == 18);
    const Tensor blob = from_blob(x.view().data, {3}, DType::i64, [&](void*) { ++deleted; }, {.strides = Strides{2}, .device = cuda()});
    CHECK((blob + 1).to_vector<std::int64_t>() == std::vector<std::int64_t>{4, 4, 4});
    CHECK(deleted == 0);
  }
  CHECK(deleted == 1);
}

}  // namespace tern
