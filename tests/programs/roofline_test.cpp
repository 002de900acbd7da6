#include "bench/roofline.h"

#include <map>

#include "backend/error.h"
#include "catch.h"

using namespace tern;
using namespace tern::bench;

static std::map<std::string, Count> parts(const TransformerSize& size) {
  std::map<std::string, Count> result;
  for (const Count& count : count_transformer(size)) result[count.part] = count;
  return result;
}

TEST_CASE("A transformer's parts are counted as by hand") {
  // B 2, N 3, D 4, H 2: 24 elements a token matrix, 36 scores, 12 rows of scores, 16 weights, a mask of 9.
  const auto count = parts({2, 3, 4, 2, 2});
  CHECK(count.at("input projections").flops == 3 * 2 * 24 * 4);
  CHECK(count.at("input projections").bytes == 2 * 3 * (24 + 16 + 24));
  CHECK(count.at("QK^T").flops == 36 * 2 * 2 + 36);  // each score a product over d = 2, and a division
  CHECK(count.at("QK^T").bytes == 2 * (24 + 24 + 36));
  CHECK(count.at("mask").flops == 36);
  CHECK(count.at("mask").bytes == 2 * (36 + 9 + 36));
  CHECK(count.at("softmax").flops == 12 * (3 + 2 + 3));  // a row: 3 exponentials, 2 additions, 3 divisions
  CHECK(count.at("softmax").bytes == 2 * (36 + 36));
  CHECK(count.at("AV").flops == 24 * 2 * 3);
  CHECK(count.at("AV").bytes == 2 * (36 + 24 + 24));
  CHECK(count.at("MHA").flops == 180 + 36 + 96 + 144);
  CHECK(count.at("MHA").bytes == 168 + 162 + 144 + 168);
  CHECK(count.at("MHA in one kernel").flops == count.at("MHA").flops);
  CHECK(count.at("MHA in one kernel").bytes == 2 * 4 * 24);
  CHECK(count.at("MLP").flops == 2 * (2 * 24 * 16));
  CHECK(count.at("MLP").bytes == 2 * (24 + 64 + 96 + 96 + 64 + 24));
  CHECK(parts({2, 3, 4, 2, 4}).at("MLP").bytes == 2 * count.at("MLP").bytes);
}

TEST_CASE("Attention of long sequences is memory-bound on an A100, unless in one kernel") {
  const DevicePeak& a100 = known_device("A100");
  CHECK(a100.ridge(2) == Approx(153.0).epsilon(1e-3));
  const auto count = parts({16, 16384, 4096, 32, 2});
  CHECK(count.at("MHA").flops == Approx(7.1056e13).epsilon(1e-4));
  CHECK(count.at("MHA").bytes == Approx(1.6584e12).epsilon(1e-4));
  CHECK(count.at("MHA").intensity() == Approx(42.85).epsilon(1e-3));
  for (const char* part : {"QK^T", "mask", "softmax", "AV", "MHA"}) CHECK(count.at(part).intensity() < a100.ridge(2));
  for (const char* part : {"input projections", "MHA in one kernel", "MLP"}) CHECK(count.at(part).intensity() > a100.ridge(2));
}

TEST_CASE("A depthwise convolution is memory-bound on every device") {
  const Count count = count_depthwise_conv1d(1, 8192, 8192, 3);
  CHECK(count.flops == 402653184);
  CHECK(count.bytes == 268500992);
  CHECK(count.intensity() == Approx(1.5).epsilon(1e-3));
  for (const DevicePeak& device : known_devices()) CHECK(count.intensity() < device.ridge(2));
  CHECK(known_device("T4").ridge(2) == Approx(203.1).epsilon(1e-3));
}

TEST_CASE("A convolution that is padded by a kernel of its own moves twice the bytes") {
  const std::vector<Count> counts = count_padded_conv1d(1, 8192, 8192, 3);
  REQUIRE(counts.size() == 4);
  // (1, 8192, 8192) read, (1, 8196, 8192) written; that and 4 x 8192 weights read, (1, 8192, 8192) written; 2 bytes each.
  CHECK(counts[0].flops == 0);
  CHECK(counts[0].bytes == 2.0 * 8192 * (8192 + 8196));
  CHECK(counts[1].bytes == 2.0 * 8192 * (8196 + 4 + 8192));
  CHECK(counts[2].bytes == counts[0].bytes + counts[1].bytes);
  CHECK(counts[2].bytes == Approx(537.1e6).epsilon(1e-4));
  CHECK(counts[2].flops == counts[3].flops);
  CHECK(counts[3].bytes == count_depthwise_conv1d(1, 8192, 8192, 3).bytes);
}

TEST_CASE("What cannot be counted is an error") {
  CHECK_THROWS_AS(count_padded_conv1d(1, 0, 1, 1), Error);
  CHECK_THROWS_AS(known_device("A1000"), Error);
  CHECK_THROWS_AS(count_transformer({0, 1, 1, 1}), Error);
  CHECK_THROWS_AS(count_transformer({1, 1, 1, 0}), Error);
}
