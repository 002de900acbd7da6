#pragma once
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "paths.h"
#include "tensor/random.h"

/// Values that tests/fixtures/make_nn_fixtures.py wrote.
class Fixture {
 public:
  static const Fixture& get() {
    static const Fixture instance;
    return instance;
  }
  std::vector<float> values(const nlohmann::json& entry) const {
    std::size_t count = 1;
    for (std::size_t size : entry["shape"]) count *= size;
    const auto first = values_.begin() + entry["offset"].get<std::ptrdiff_t>();
    return {first, first + static_cast<std::ptrdiff_t>(count)};
  }
  nlohmann::json index;

 private:
  Fixture() {
    const std::string folder = std::string(tern::test::source_directory) + "/tests/fixtures/nn/";
    std::ifstream(folder + "index.json") >> index;
    std::ifstream file(folder + "values.bin", std::ios::binary | std::ios::ate);
    values_.resize(static_cast<std::size_t>(file.tellg()) / sizeof(float));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(values_.data()), static_cast<std::streamsize>(values_.size() * sizeof(float)));
  }
  std::vector<float> values_;
};

/// offset + scale * x, x uniform in [-1, 1): the same numbers as `draw` in the script.
inline std::vector<float> draw(std::uint64_t seed, std::int64_t count, double scale, double offset = 0) {
  std::vector<float> result(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < result.size(); i += 4) {
    const tern::PhiloxBlock block = tern::philox(seed, i / 4);
    for (std::size_t j = 0; j < 4 && i + j < result.size(); ++j)
      result[i + j] = static_cast<float>(offset + scale * (2 * double(tern::unit_float(block.words[j])) - 1));
  }
  return result;
}

/// Ids below `vocab`.
inline tern::Tensor draw_ids(std::uint64_t seed, const tern::Shape& shape, std::int64_t vocab, tern::Device device = tern::cpu) {
  std::vector<std::int64_t> ids;
  for (const float x : draw(seed, tern::numel(shape), 0.5, 0.5)) ids.push_back(static_cast<std::int64_t>(x * float(vocab)));
  return tern::Tensor::from(ids, shape, device);
}

inline std::vector<float> floats(const tern::Tensor& x) { return tern::cast(x.detach(), tern::DType::f32).to_vector<float>(); }

/// The largest |a - b|.
template <class A, class B>
double distance(const std::vector<A>& a, const std::vector<B>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double(a[i]) - double(b[i]));
    if (!(difference <= worst)) worst = difference;  // NaN counts
  }
  return worst;
}
inline double distance(const tern::Tensor& a, const tern::Tensor& b) { return distance(floats(a), floats(b)); }
