// GGUF files: what is written is read back, a file of Python's gguf is read, and hostile files are refused.
#include "io/gguf.h"

#include <cstring>
#include <limits>

#include "catch.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/quantize.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "support.h"

using namespace tern;
using namespace tern::io;
using namespace tern::io::test;

namespace {

void put(std::string& to, const auto& value) { to.append(reinterpret_cast<const char*>(&value), sizeof value); }
void put_text(std::string& to, std::string_view text) {
  put(to, std::uint64_t{text.size()});
  to += text;
}

/// A tensor's entry as bytes, with sizes as GGUF has them, the contiguous one first.
std::string entry(std::string_view name, std::initializer_list<std::uint64_t> sizes, std::uint32_t type, std::uint64_t offset) {
  std::string bytes;
  put_text(bytes, name);
  put(bytes, static_cast<std::uint32_t>(sizes.size()));
  for (const std::uint64_t size : sizes) put(bytes, size);
  put(bytes, type);
  put(bytes, offset);
  return bytes;
}
std::string pair(std::string_view key, std::uint32_t type, std::string_view value) {
  std::string bytes;
  put_text(bytes, key);
  put(bytes, type);
  return bytes.append(value);
}
/// A file of these pairs and entries, with so many bytes of data.
std::string file_of(std::initializer_list<std::string> pairs, std::initializer_list<std::string> entries, std::size_t data_bytes,
                    std::uint32_t version = 3, std::size_t alignment = 32) {
  std::string bytes = "GGUF";
  put(bytes, version);
  put(bytes, std::uint64_t{entries.size()});
  put(bytes, std::uint64_t{pairs.size()});
  for (const std::string& each : pairs) bytes += each;
  for (const std::string& each : entries) bytes += each;
  return bytes.append((alignment - bytes.size() % alignment) % alignment + data_bytes, '\0');
}
const std::string one("\1\0\0\0", 4), eight_zeros(8, '\0');
std::string text_value(std::string_view text) {
  std::string bytes;
  put_text(bytes, text);
  return bytes;
}

/// The reader's message for a file's bytes; "ok" if it takes them.
std::string verdict(const std::string& bytes) {
  const TempDirectory directory;
  const std::string path = spill(directory / "f", bytes);
  const std::string message = file_error([&] { const GgufFile file(path); });
  if (message == "(no FileError)") return "ok";
  CHECK(message.starts_with(path + ": "));
  CHECK(message.find('\n') == message.npos);
  return message.substr(path.size() + 2);
}

bool are_equal(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && !any(ne(cast(a, DType::f64), cast(b, DType::f64))).item<bool>();
}

}  // namespace

TEST_CASE("A GGUF file is read back as it was written") {
  const TempDirectory directory;
  const std::string path = directory / "model.gguf";
  const std::int32_t numbers[] = {1, -2, 3};
  GgufMetadata metadata;
  metadata["a.text"] = GgufValue::of("ü\n");
  metadata["a.texts"] = GgufValue::list(std::vector<std::string>{"x", "", std::string("\0y", 2)});
  metadata["a.numbers"] = GgufValue::list(std::span<const std::int32_t>(numbers));
  metadata["a.none"] = GgufValue::list(std::vector<std::string>{});
  metadata["b"] = GgufValue::of(true);
  metadata["u"] = GgufValue::of(std::uint32_t{4'000'000'000});
  metadata["f"] = GgufValue::of(1.5F);
  const Tensor x = randn({3, 64});
  const std::vector<Tensor> tensors = {
      x,          cast(x, DType::f16), cast(x, DType::bf16), quantize(x, QuantFormat::q8_0).rows, quantize(x, QuantFormat::q4_0).rows,
      randn({5}), empty({0, 3})};
  std::vector<GgufEntry> entries = {{"f32", GgufFormat::f32, {3, 64}},   {"f16", GgufFormat::f16, {3, 64}},
                                    {"bf16", GgufFormat::bf16, {3, 64}}, {"q8_0", GgufFormat::q8_0, {3, 64}},
                                    {"q4_0", GgufFormat::q4_0, {3, 64}}, {std::string(63, 'v'), GgufFormat::f32, {5}},
                                    {"empty", GgufFormat::f32, {0, 3}}};
  write_gguf(path, metadata, entries, [&](std::size_t i) { return tensors[i]; });
  const GgufFile file(path);
  CHECK(file.metadata() == metadata);
  CHECK(file.metadata().at("u").integer(0) == 4'000'000'000);
  CHECK(file.metadata().at("f").real(0) == 1.5);
  CHECK(file.metadata().at("a.numbers").integer(1) == -2);
  REQUIRE(file.tensors().size() == entries.size());
  for (std::size_t i = 0; i < entries.size(); ++i) {
    INFO(entries[i].name);
    const GgufEntry* const found = file.find(entries[i].name);
    REQUIRE(found);
    CHECK(found->shape == entries[i].shape);
    CHECK(found->format == entries[i].format);
    CHECK(found->begin % 32 == 0);
    CHECK(are_equal(file.read(*found), tensors[i]));
  }
  CHECK(file.find("other") == nullptr);

  SECTION("mistakes of the writer leave the old file") {
    const std::string before = slurp(path);
    const auto refused = [&](const GgufEntry& entry, const Tensor& tensor, const std::string& part) {
      std::string message;
      try {
        write_gguf(path, {}, std::vector<GgufEntry>{entries[0], entry}, [&](std::size_t i) { return i == 0 ? x : tensor; });
      } catch (const Error& error) {
        message = error.what();
      }
      CHECK(message.find(part) != message.npos);
    };
    refused({"", GgufFormat::f32, {3, 64}}, x, "1 to 63 bytes but got \"\"");
    refused({std::string(64, 'v'), GgufFormat::f32, {3, 64}}, x, "1 to 63 bytes");
    refused({"f32", GgufFormat::f32, {3, 64}}, x, "different names but got \"f32\" twice");
    refused({"a", GgufFormat::q8_0, {3, 33}}, x, "a multiple of 32");
    refused({"a", GgufFormat::f32, {}}, x, "1 to 4 dimensions");
    refused({"a", GgufFormat::f32, {1, 1, 1, 1, 1}}, x, "1 to 4 dimensions");
    refused({"a", GgufFormat::f32, {3, 63}}, x, "f32 of (3, 63) as \"a\" but got f32 (3, 64)");
    refused({"a", GgufFormat::f16, {3, 64}}, x, "f16 of (3, 64) as \"a\" but got f32");
    CHECK(slurp(path) == before);
    CHECK(directory.count() == 1);
    CHECK_THROWS_AS(write_gguf(path, {{"general.alignment", GgufValue::of(std::uint32_t{64})}}, {}, {}), Error);
  }
}

TEST_CASE("A file of Python's gguf is read") {
  const GgufFile file(fixture_path("python.gguf"));
  const auto& metadata = file.metadata();
  CHECK(metadata.at("general.architecture").texts[0] == "llama");
  const std::pair<const char*, std::int64_t> integers[] = {{"u8", 255},
                                                           {"i8", -128},
                                                           {"u16", 65535},
                                                           {"i16", -32768},
                                                           {"u32", 4294967295},
                                                           {"i32", -2147483648LL},
                                                           {"i64", std::numeric_limits<std::int64_t>::min()},
                                                           {"u64", std::numeric_limits<std::int64_t>::max()},
                                                           {"bool", 1}};
  for (const auto& [key, value] : integers) {
    INFO(key);
    CHECK(metadata.at(key).integer(0) == value);
  }
  CHECK(metadata.at("f32").real(0) == 0.5);
  CHECK(metadata.at("f64").real(0) == 1e-300);
  CHECK_THROWS_AS(metadata.at("f64").integer(0), Error);
  CHECK_THROWS_AS(metadata.at("u8").integer(1), Error);
  CHECK(metadata.at("texts").texts == std::vector<std::string>{"a", "ü"});
  CHECK(metadata.at("floats").real(1) == -1.5);
  const Tensor x = file.read(*file.find("x"));
  CHECK(are_equal(x, reshape(cast(arange(64), DType::f32) - 32, {2, 32})));
  CHECK(are_equal(file.read(*file.find("half")), cast(x, DType::f16)));
  CHECK(are_equal(file.read(*file.find("q8_0")), quantize(x, QuantFormat::q8_0).rows));
  CHECK(are_equal(file.read(*file.find("q4_0")), quantize(x, QuantFormat::q4_0).rows));
}

TEST_CASE("GGUF files that are valid") {
  CHECK(verdict(file_of({}, {}, 0)) == "ok");
  CHECK(verdict(file_of({}, {}, 0, 2)) == "ok");
  CHECK(verdict(file_of({pair("k", 4, one)}, {entry("a", {2}, 0, 0), entry("b", {32}, 8, 32)}, 66)) == "ok");
  CHECK(verdict(file_of({}, {entry("b", {2}, 0, 32), entry("a", {2}, 0, 0)}, 40)) == "ok");
  CHECK(verdict(file_of({pair("general.alignment", 4, std::string("\x40\0\0\0", 4))}, {entry("a", {2}, 0, 64)}, 72, 3, 64)) == "ok");
}

TEST_CASE("GGUF files that are not") {
  const auto refused = [](const std::string& bytes, const std::string& part) {
    const std::string message = verdict(bytes);
    INFO(message);
    CHECK(message.find(part) != message.npos);
  };
  SECTION("the beginning") {
    refused("", "at least 24 bytes but got 0");
    refused(std::string(24, 'x'), "expected a GGUF file but got one that begins with \"xxxx\"");
    refused("<!DOCTYPE html>" + std::string(100, ' '), "HTML page");
    refused(file_of({}, {}, 0, 1), "version 3 but got 1");
    refused(file_of({}, {}, 0, 4), "version 3 but got 4");
    refused(file_of({}, {}, 0, 0x03000000), "a big-endian file's");
    std::string many = file_of({}, {}, 0);
    many[14] = 1;
    refused(many, "at most 100000 tensors but got");
    many = file_of({}, {}, 0);
    many[22] = 1;
    refused(many, "at most 100000 pairs of metadata but got");
  }
  SECTION("metadata") {
    refused(file_of({pair("k", 13, one)}, {}, 0), "metadata \"k\": expected a type from 0 to 12 but got 13");
    refused(file_of({pair("", 4, one)}, {}, 0), "an empty one");
    refused(file_of({pair("k", 4, one), pair("k", 4, one)}, {}, 0), "metadata \"k\": occurs twice");
    refused(file_of({pair("k", 7, "\2")}, {}, 0), "a bool of 0 or 1");
    refused(file_of({pair("k", 9, std::string("\x09\0\0\0", 4) + eight_zeros)}, {}, 0), "one of arrays");
    refused(file_of({pair("k", 9, std::string("\5\0\0\0", 4) + std::string("\xff\0\0\0\0\0\0\0", 8))}, {}, 0),
            "elements within the header but got 255");
    refused(file_of({pair("k", 9, std::string("\5\0\0\0", 4) + std::string("\x20\0\0\0\0\0\0\0", 8))}, {}, 64),
            "elements within the header but got 32");
    refused(file_of({pair("k", 9, std::string("\xa\0\0\0", 4) + std::string(8, '\xff'))}, {}, 0), "elements within the header");
    refused(file_of({pair("k", 8, std::string("\0\0\0\0\1\0\0\0", 8))}, {}, 0), "metadata \"k\": expected texts within the header");
    refused(file_of({pair("general.alignment", 4, std::string("\x30\0\0\0", 4))}, {}, 0), "a power of two");
    refused(file_of({pair("general.alignment", 4, std::string(4, '\0'))}, {}, 0), "a power of two");
    refused(file_of({pair("general.alignment", 8, text_value("32"))}, {}, 0), "a power of two");
  }
  SECTION("tensors") {
    refused(file_of({}, {entry("a", {}, 0, 0)}, 0), "tensor \"a\": expected 1 to 4 dimensions but got 0");
    refused(file_of({}, {entry("a", {1, 1, 1, 1, 1}, 0, 0)}, 4), "1 to 4 dimensions but got 5");
    refused(file_of({}, {entry("a", {1}, 12, 0)}, 4), "the formats that tern has, but got q4_K");
    refused(file_of({}, {entry("a", {1}, 99, 0)}, 4), "but got ggml's type 99");
    refused(file_of({}, {entry("a", {33}, 8, 0)}, 68), "whole blocks of 32");
    refused(file_of({}, {entry("a", {std::uint64_t{1} << 63}, 0, 0)}, 4), "below 2^63");
    refused(file_of({}, {entry("a", {std::uint64_t{1} << 62, 4}, 0, 0)}, 4), "fits in memory");
    refused(file_of({}, {entry("a", {2}, 0, 8)}, 40), "an offset that 32 divides but got 8");
    refused(file_of({}, {entry("a", {2}, 0, 0)}, 7), "ends at byte 0 + 8 of the data, but the file has only 7");
    refused(file_of({}, {entry("a", {2}, 0, 32)}, 36), "ends at byte 32 + 8 of the data, but the file has only 36");
    refused(file_of({}, {entry("a", {2}, 0, ~std::uint64_t{31})}, 8), "but the file has only 8");
    refused(file_of({}, {entry("a", {9}, 0, 0), entry("b", {2}, 0, 32)}, 64),
            "tensor \"b\": begins at byte 32 of the data, within another tensor");
    refused(file_of({}, {entry("a", {2}, 0, 0), entry("a", {2}, 0, 32)}, 64), "tensor \"a\": occurs twice");
  }
  SECTION("cut at every byte") {
    const std::string whole =
        file_of({pair("k", 8, text_value("text")), pair("n", 9, std::string("\5\0\0\0\2", 5) + std::string(15, '\0'))},
                {entry("a", {2, 2}, 0, 0)}, 16);
    REQUIRE(verdict(whole) == "ok");
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) CHECK(verdict(whole.substr(0, bytes)) != "ok");
  }
}
