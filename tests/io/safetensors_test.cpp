#include "io/safetensors.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "catch.h"
#include "ops/factory.h"
#include "ops/view.h"
#include "support.h"
#include "tensor/dispatch.h"

using namespace tern;
using namespace tern::io;
using namespace tern::io::test;

namespace {

/// Small integers with a sign where the dtype has one, which every dtype holds exactly.
template <class T>
Tensor ramp(const Shape& shape) {
  const Tensor x = empty(shape, dtype_of<T>);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    if constexpr (std::is_same_v<T, bool>) x.data<T>()[i] = i % 3 == 0;
    else if constexpr (std::is_same_v<T, f16> || std::is_same_v<T, bf16>) x.data<T>()[i] = T(float(i % 100) * 1.5f - 4);
    else x.data<T>()[i] = static_cast<T>(double(i % 100) * 1.5 - (std::is_unsigned_v<T> ? 0 : 4));
  }
  return x;
}

void check_equal(const Tensor& a, const Tensor& b) {
  REQUIRE(a.dtype() == b.dtype());
  CHECK(a.shape() == b.shape());
  dispatch_all(a.dtype(), [&]<class T>() {
    const auto x = a.to_vector<T>(), y = b.to_vector<T>();
    bool equal = x.size() == y.size();
    for (std::size_t i = 0; equal && i < x.size(); ++i) equal = static_cast<double>(x[i]) == static_cast<double>(y[i]);
    CHECK(equal);
  });
}

/// The tensors that tests/fixtures/make_io_fixtures.py wrote.
std::vector<NamedTensor> reference_tensors() {
  const auto floats = [](std::int64_t n, const Shape& shape, DType dtype) {
    std::vector<double> values;
    for (std::int64_t i = 0; i < n; ++i) values.push_back(1.5 * double(i) - 4);
    return cast(Tensor::from(values, shape), dtype);
  };
  return {
      {"layer.f32", floats(6, {2, 3}, DType::f32)},
      {"layer.f64", floats(4, {2, 1, 2}, DType::f64)},
      {"layer.f16", floats(5, {5}, DType::f16)},
      {"layer.bf16", floats(3, {3}, DType::bf16)},
      {"i32", Tensor::from(std::vector<std::int32_t>{-4, -1, 2}, {3})},
      {"i64.scalar", Tensor::scalar(std::int64_t{-4})},
      {"u8.empty", empty({2, 0, 3}, DType::u8)},
      {"u8", Tensor::from(std::vector<std::uint8_t>{4, 7, 255}, {3})},
      {"bool",
       [] {
         const bool values[] = {true, false, false, true};
         return Tensor::from(std::span<const bool>(values), {2, 2});
       }()},
      {"größe \"quoted\"\n", Tensor::from(std::vector<float>{0.5f}, {1})},
  };
}

}  // namespace

TEST_CASE("Every dtype and shape comes back as it was saved") {
  const TempDirectory directory;
  const fs::path path = directory / "x.safetensors";
  for (int d = 0; d < 8; ++d) {
    dispatch_all(static_cast<DType>(d), [&]<class T>() {
      std::vector<NamedTensor> tensors;
      for (const Shape& shape :
           {Shape{}, Shape{0}, Shape{1}, Shape{31}, Shape{33}, Shape{1025}, Shape{3, 0, 2}, Shape{2, 3, 4}, Shape{1, 2, 1, 2, 1, 2, 1, 2}})
        tensors.push_back({"x" + to_string(shape), ramp<T>(shape)});
      save_safetensors(path, tensors, {{"dtype", name(dtype_of<T>)}, {"empty", ""}, {"text", "a\"\\\n\xE2\x82\xAC"}});
      const TensorFile file = load_safetensors(path);
      CHECK(file.metadata == Metadata{{"dtype", name(dtype_of<T>)}, {"empty", ""}, {"text", "a\"\\\n\xE2\x82\xAC"}});
      REQUIRE(file.tensors.size() == tensors.size());
      for (const auto& [name, tensor] : tensors) {
        INFO(name << " of " << tern::name(dtype_of<T>));
        REQUIRE(file.tensors.contains(name));
        check_equal(file.tensors.at(name), tensor);
        CHECK(file.tensors.at(name).is_contiguous());
      }
    });
  }
  CHECK(directory.count() == 1);
}

TEST_CASE("A file is read on the CPU, within a DeviceScope as well") {
  const TempDirectory directory;
  const Tensor x = ramp<float>({6, 5});
  const std::vector<NamedTensor> tensors = {{"x", x}};
  save_safetensors(directory / "x", tensors);
  const DeviceScope scope(cuda());
  check_equal(load_safetensors(directory / "x").tensors.at("x"), x);
}

TEST_CASE("A file can hold no tensor at all") {
  const TempDirectory directory;
  save_safetensors(directory / "none", {});
  CHECK(load_safetensors(directory / "none").tensors.empty());
  save_safetensors(directory / "note", {}, {{"a", "b"}});
  CHECK(load_safetensors(directory / "note").metadata == Metadata{{"a", "b"}});
}

TEST_CASE("Views are saved as what they show") {
  const TempDirectory directory;
  const Tensor x = ramp<float>({6, 5});
  const std::vector<NamedTensor> views = {{"transposed", transpose(x, 0, 1)}, {"sliced", slice(x, 1, 1, 5, 2)},
                                          {"selected", select(x, 0, 3)},      {"expanded", broadcast_to(select(x, 1, 2), {3, 6})},
                                          {"offset", slice(x, 0, 2)},         {"x", x}};
  save_safetensors(directory / "views", views);
  const TensorFile file = load_safetensors(directory / "views");
  for (const auto& [name, tensor] : views) {
    INFO(name);
    check_equal(file.tensors.at(name), tensor);
  }
}

TEST_CASE("Saving asks nothing of autograd") {
  const TempDirectory directory;
  Tensor weight = ramp<float>({4, 2});
  weight.set_requires_grad();
  save_safetensors(directory / "w", std::vector<NamedTensor>{{"w", transpose(weight, 0, 1)}});
  const TensorFile file = load_safetensors(directory / "w");
  CHECK_FALSE(file.tensors.at("w").requires_grad());

  std::vector<NamedTensor> target = {{"w", zeros({2, 4}).set_requires_grad()}};
  load_safetensors_into(directory / "w", target);
  CHECK(target[0].tensor.is_leaf());
  CHECK(target[0].tensor.requires_grad());
  check_equal(target[0].tensor, file.tensors.at("w"));
}

TEST_CASE("The bytes do not depend on the order of the tensors") {
  const TempDirectory directory;
  std::vector<NamedTensor> tensors = reference_tensors();
  save_safetensors(directory / "a", tensors);
  std::mt19937 random(1);
  std::shuffle(tensors.begin(), tensors.end(), random);
  save_safetensors(directory / "b", tensors);
  CHECK(slurp(directory / "a") == slurp(directory / "b"));
}

TEST_CASE("Files are those of the safetensors package, byte by byte") {
  const TempDirectory directory;
  const TensorFile file = load_safetensors(fixture_path("reference.safetensors"));
  const std::vector<NamedTensor> expected = reference_tensors();
  CHECK(file.metadata == Metadata{{"format", "tern"}});
  REQUIRE(file.tensors.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(file.tensors.contains(name));
    check_equal(file.tensors.at(name), tensor);
  }
  save_safetensors(directory / "ours", expected, file.metadata);
  CHECK(slurp(directory / "ours") == slurp(fixture_path("reference.safetensors")));
}

TEST_CASE("Many tensors") {
  const TempDirectory directory;
  std::vector<NamedTensor> tensors;
  for (int i = 0; i < 3000; ++i) tensors.push_back({"layers." + std::to_string(i) + ".weight", full({i % 7, 3}, i)});
  save_safetensors(directory / "many", tensors);
  const TensorFile file = load_safetensors(directory / "many");
  REQUIRE(file.tensors.size() == tensors.size());
  for (int i = 0; i < 3000; i += 271) check_equal(file.tensors.at(tensors[std::size_t(i)].name), tensors[std::size_t(i)].tensor);
}

TEST_CASE("Saving refuses what a file cannot name") {
  const TempDirectory directory;
  const fs::path path = directory / "x";
  const Tensor x = ramp<float>({2});
  const auto save = [&](const std::vector<NamedTensor>& tensors) { save_safetensors(path, tensors); };
  CHECK_THROWS_AS(save({{"", x}}), Error);
  CHECK_THROWS_AS(save({{"__metadata__", x}}), Error);
  CHECK_THROWS_AS(save({{"a", x}, {"a", x}}), Error);
  CHECK_THROWS_AS(save({{"a", Tensor()}}), Error);
  CHECK_THROWS_AS(save({{"\xff", x}}), Error);
  CHECK_THROWS_AS(save_safetensors(path, {}, {{"a", "\xff"}}), Error);
  CHECK(directory.count() == 0);
}

TEST_CASE("Loading into tensors fills them where they are") {
  const TempDirectory directory;
  const fs::path path = directory / "x";
  const Tensor a = ramp<float>({4, 3}), b = ramp<std::int64_t>({5});
  save_safetensors(path, std::vector<NamedTensor>{{"a", a}, {"b", b}}, {{"step", "7"}});

  const Tensor into_a = zeros({3, 4}), into_b = zeros({5}, DType::i64);
  // The order is another one, one target is a view, and holds another float.
  const Tensor half = zeros({3, 4}, DType::f16);
  CHECK(load_safetensors_into(path, std::vector<NamedTensor>{{"b", into_b}, {"a", transpose(into_a, 0, 1)}}) == Metadata{{"step", "7"}});
  check_equal(transpose(into_a, 0, 1), a);
  check_equal(into_b, b);
  load_safetensors_into(path, std::vector<NamedTensor>{{"a", transpose(half, 0, 1)}, {"b", into_b}});
  check_equal(cast(transpose(half, 0, 1), DType::f32), a);
}

TEST_CASE("Loading into tensors that do not fit changes none of them") {
  const TempDirectory directory;
  const fs::path path = directory / "x";
  save_safetensors(path, std::vector<NamedTensor>{{"a", ones({4})}, {"b", ones({2, 2})}, {"c", ones({3}, DType::i64)}});
  const Tensor a = zeros({4}), b = zeros({2, 2}), c = zeros({3}, DType::i64);
  const auto load = [&](const std::vector<NamedTensor>& targets) {
    const std::string message = file_error([&] { load_safetensors_into(path, targets); });
    CHECK(a.to_vector<float>() == std::vector<float>(4, 0));
    CHECK(b.to_vector<float>() == std::vector<float>(4, 0));
    CHECK(message.starts_with(path.string() + ": "));
    return message.substr(path.string().size() + 2);
  };
  CHECK(load({{"a", a}, {"b", b}}) == "does not fit the model: the model lacks \"c\"");
  CHECK(load({{"a", a}, {"b", b}, {"c", c}, {"d", a}}) == "does not fit the model: it lacks \"d\"");
  CHECK(load({{"a", a}, {"x", b}, {"y", c}}) == "does not fit the model: it lacks \"x\", \"y\"; the model lacks \"b\", \"c\"");
  CHECK(load({{"a", a}, {"b", b}, {"c", zeros({4}, DType::i64)}}) == "tensor \"c\": expected shape (4,) but the file has (3,)");
  CHECK(load({{"a", zeros({2, 2})}, {"b", b}, {"c", c}}) == "tensor \"a\": expected shape (2, 2) but the file has (4,)");
  CHECK(load({{"a", a}, {"b", b}, {"c", zeros({3})}}) == "tensor \"c\": expected f32 but the file has i64");
  std::vector<NamedTensor> many;
  for (const char* name : {"n1", "n2", "n3", "n4", "n5"}) many.push_back({name, a});
  CHECK(load(many) == "does not fit the model: it lacks \"n1\", \"n2\", \"n3\" and 2 more; the model lacks \"a\", \"b\", \"c\"");
  CHECK_THROWS_AS(load_safetensors_into(path, std::vector<NamedTensor>{{"a", a}, {"a", a}}), Error);
}

TEST_CASE("Loading that is not strict fills the names that both sides have, and says the others") {
  const TempDirectory directory;
  const fs::path path = directory / "x";
  save_safetensors(path, std::vector<NamedTensor>{{"body.b", full({2}, 3)}, {"body.a", ones({4})}, {"old_head", ones({3})}});
  const Tensor a = zeros({4}), b = zeros({2}), head = zeros({5});
  NameDifferences differences;
  load_safetensors_into(path, std::vector<NamedTensor>{{"new_head", head}, {"body.a", a}, {"body.b", b}},
                        {.strict = false, .differences = &differences});
  CHECK(a.to_vector<float>() == std::vector<float>(4, 1));
  CHECK(b.to_vector<float>() == std::vector<float>(2, 3));
  CHECK(head.to_vector<float>() == std::vector<float>(5, 0));
  CHECK(differences.missing == std::vector<std::string>{"new_head"});
  CHECK(differences.unexpected == std::vector<std::string>{"old_head"});
  // Another shape is a mistake all the same, and so is a file of which nothing fits.
  const auto load = [&](const std::vector<NamedTensor>& targets) {
    const std::string message = file_error([&] { load_safetensors_into(path, targets, {.strict = false}); });
    return message.substr(std::min(message.size(), path.string().size() + 2));
  };
  CHECK(load({{"body.a", zeros({3})}, {"body.b", b}}) == "tensor \"body.a\": expected shape (3,) but the file has (4,)");
  CHECK(load({{"a", a}, {"b", b}}) ==
        "does not fit the model: it lacks \"a\", \"b\"; the model lacks \"body.a\", \"body.b\", \"old_head\"");
}

TEST_CASE("A tensor on a GPU is saved and filled there", "[cuda]") {
  const TempDirectory directory;
  const Tensor x = ramp<float>({5, 7});
  save_safetensors(directory / "x", std::vector<NamedTensor>{{"x", transpose(to(x, cuda()), 0, 1)}});
  check_equal(load_safetensors(directory / "x").tensors.at("x"), transpose(x, 0, 1));
  const Tensor target = zeros({7, 5}, DType::f32, cuda());
  load_safetensors_into(directory / "x", std::vector<NamedTensor>{{"x", target}});
  check_equal(to(target, cpu), transpose(x, 0, 1));
}

TEST_CASE("Numbers that the target's dtype does not hold are refused") {
  const TempDirectory dir;
  const auto path = dir / "wide.safetensors";
  save_safetensors(path, std::vector<NamedTensor>{{"x", Tensor::from(std::vector<float>{1, 1e30f}, {2})}});
  const Tensor narrow = zeros({2}, DType::f16), wide = zeros({2}, DType::bf16);
  CHECK_THROWS_AS(load_safetensors_into(path, std::vector<NamedTensor>{{"x", narrow}}), FileError);
  CHECK(cast(narrow, DType::f32).to_vector<float>() == std::vector<float>{0, 0});
  load_safetensors_into(path, std::vector<NamedTensor>{{"x", wide}});
  CHECK(cast(wide, DType::f32).to_vector<float>()[1] == Approx(1e30).epsilon(0.01));
  save_safetensors(path, std::vector<NamedTensor>{{"x", Tensor::from(std::vector<float>{1, INFINITY}, {2})}});
  load_safetensors_into(path, std::vector<NamedTensor>{{"x", narrow}});
  CHECK(std::isinf(cast(narrow, DType::f32).to_vector<float>()[1]));
}
