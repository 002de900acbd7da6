// How tensors print.
#include <sstream>

#include "catch.h"
#include "ops/factory.h"
#include "ops/view.h"

namespace tern {

TEST_CASE("Tensors print their elements, dtype, shape and device") {
  CHECK(to_string(Tensor::from(std::vector<float>{1, 2.5f, -3}, {3})) == "[ 1.0000,  2.5000, -3.0000]\nf32 (3,) on cpu");
  CHECK(to_string(Tensor::from(std::vector<float>{1, 2, -3, 40}, {2, 2})) == "[[ 1.,  2.],\n [-3., 40.]]\nf32 (2, 2) on cpu");
  CHECK(to_string(Tensor::from(std::vector<std::int64_t>{1, 20, -3}, {3})) == "[ 1, 20, -3]\ni64 (3,) on cpu");
  const bool truths[] = {true, false};
  CHECK(to_string(Tensor::from(std::span<const bool>(truths), {2})) == "[ true, false]\nbool (2,) on cpu");
  CHECK(to_string(Tensor::from(std::vector<std::uint8_t>{7, 200}, {2})) == "[  7, 200]\nu8 (2,) on cpu");
  CHECK(to_string(Tensor::scalar(3.5)) == "3.5000\nf64 () on cpu");
  CHECK(to_string(Tensor()) == "tensor(undefined)");
  std::ostringstream out;
  out << full({1}, 2, DType::bf16);
  CHECK(out.str() == "[2.]\nbf16 (1,) on cpu");
}

TEST_CASE("Blocks of higher dimensions are set apart by lines") {
  CHECK(to_string(arange(8, DType::i32).defined() ? reshape(arange(8, DType::i32), {2, 2, 2}) : Tensor()) ==
        "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]\ni32 (2, 2, 2) on cpu");
}

TEST_CASE("Views print what they show") {
  const Tensor x = reshape(arange(6, DType::i32), {2, 3});
  CHECK(to_string(transpose(x, 0, 1)) == "[[0, 3],\n [1, 4],\n [2, 5]]\ni32 (3, 2) on cpu");
  CHECK(to_string(broadcast_to(Tensor::scalar(1.0f), {2})) == "[1., 1.]\nf32 (2,) on cpu");
}

TEST_CASE("Empty tensors print their brackets") {
  CHECK(to_string(empty({0})) == "[]\nf32 (0,) on cpu");
  CHECK(to_string(empty({2, 0})) == "[[],\n []]\nf32 (2, 0) on cpu");
  CHECK(to_string(empty({0, 3}, DType::boolean)) == "[]\nbool (0, 3) on cpu");
}

TEST_CASE("Large tensors are abbreviated, and then only their ends are read") {
  CHECK(to_string(arange(2000)) == "[   0,    1,    2, ..., 1997, 1998, 1999]\ni64 (2000,) on cpu");
  const std::string text = to_string(reshape(arange(40000, DType::i32), {200, 200}));
  CHECK(text.find("[[    0,     1,     2, ...,   197,   198,   199],\n [  200,") == 0);
  CHECK(text.find("...,\n [39400,") != std::string::npos);
  CHECK(to_string(arange(1000)).find("...") == std::string::npos);
  CHECK(to_string(reshape(arange(1206), {201, 6})).find("[0,    1,    2,    3,    4,    5]") == std::string::npos);
}

TEST_CASE("Very small, very large and special numbers stay readable") {
  CHECK(to_string(Tensor::from(std::vector<double>{1e-8, 1}, {2})) == "[1.0000e-08, 1.0000e+00]\nf64 (2,) on cpu");
  CHECK(to_string(Tensor::from(std::vector<float>{1e8f, 2}, {2})) == "[1.0000e+08, 2.0000e+00]\nf32 (2,) on cpu");
  CHECK(to_string(Tensor::from(std::vector<float>{0.00025f, 0}, {2})) == "[2.5000e-04, 0.0000e+00]\nf32 (2,) on cpu");
  CHECK(to_string(Tensor::from(std::vector<float>{INFINITY, -INFINITY, 1}, {3})) == "[ inf, -inf,   1.]\nf32 (3,) on cpu");
  CHECK(to_string(zeros({2})) == "[0., 0.]\nf32 (2,) on cpu");
  CHECK(to_string(Tensor::from(std::vector<float>{0.5f, NAN}, {2})).find("nan") != std::string::npos);
}

}  // namespace tern
