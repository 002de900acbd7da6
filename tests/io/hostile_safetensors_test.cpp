// A corrupt or hostile file causes an error that names the file, and nothing else. Under the sanitizers these
// tests also show that no byte outside the file's is read.
#include <random>
#include <vector>

#include "catch.h"
#include "io/safetensors.h"
#include "io/safetensors_header.h"
#include "support.h"
#include "text/json_reader.h"

using namespace tern;
using namespace tern::io;
using namespace tern::io::test;

namespace {

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
}

/// The header parser's message on a header; "ok" if it takes it.
std::string verdict(const std::string& header, std::uint64_t data_bytes) {
  try {
    text::JsonSource source(header, "f", max_header_string_bytes);
    parse_safetensors_header(source, data_bytes);
    return "ok";
  } catch (const FileError& error) {
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
    CHECK(std::string(error.what()).size() < 400);
    return error.what();
  }
}

}  // namespace

TEST_CASE("Headers that are valid") {
  CHECK(verdict("{}", 0) == "ok");
  CHECK(verdict("{}      ", 0) == "ok");
  CHECK(verdict("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 8) == "ok");
  CHECK(verdict("{" + entry("b", "F32", "[2]", "[8,16]") + "," + entry("a", "I64", "[]", "[0,8]") + "}", 16) == "ok");
  CHECK(verdict("{" + entry("a", "F32", "[0]", "[0,0]") + "," + entry("b", "U8", "[3]", "[0,3]") + "," +
                    entry("c", "U8", "[5,0]", "[3,3]") + "}",
                3) == "ok");
  CHECK(verdict(R"({"__metadata__":{"a":"b"}})", 0) == "ok");
  CHECK(verdict(R"({"a":{"data_offsets":[0,1],"comment":[{"x":[1,-2,3.5,null,true]}],"shape":[1],"dtype":"U8"}})", 1) == "ok");
}

TEST_CASE("Headers that are not") {
  const auto refused = [](const std::string& header, std::uint64_t bytes, const std::string& part) {
    const std::string message = verdict(header, bytes);
    INFO(header << "\n" << message);
    CHECK(message.starts_with("f: "));
    CHECK(message.find(part) != std::string::npos);
  };
  const auto a = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return "{" + entry("a", dtype, shape, offsets) + "}";
  };

  SECTION("JSON") {
    for (const char* text : {"", " {}", "[]", "null", "\xEF\xBB\xBF{}", "x"}) refused(text, 0, "start with {");
    for (const char* text : {"{", "{} x", "{\"a\"}", "{\"a\":}", "{,}", "{}{}", "{\"a\":{}", "{\"\xff\":{}}", "{\"a\\ud800\":1}", "{'a':1}",
                             "{\"a\":{\"dtype\":\"F32\",}}", "{/**/}"})
      refused(text, 0, "f: ");
    refused(std::string("{}\0", 3), 0, "valid JSON but got a NUL");
    refused("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}", 0, "expected an object");
    refused(R"({"a":{"x":)" + std::string(100000, '[') + std::string(100000, ']') + "}}", 0, "nested too deep");
    refused(R"({"a":{"x":)" + std::string(1000000, '['), 0, "nested too deep");
    refused("{\"a\":{\"x\":" + std::string(100, '{'), 0, "not valid JSON");
  }
  SECTION("types") {
    for (const char* value : {"1", "-1", "1.5", "\"x\"", "null", "true", "[]"})
      refused(std::string("{\"a\":") + value + "}", 0, "tensor \"a\": expected an object");
    for (const char* value : {"1", "[]", "null", "{}"})
      refused(std::string(R"({"__metadata__":{"k":)") + value + "}}", 0, "metadata \"k\"");
    for (const char* value : {"1", "[]", "null", "\"x\""}) refused(std::string(R"({"__metadata__":)") + value + "}", 0, "metadata");
    for (const char* value : {"1", "[]", "null", "{}"})
      refused(std::string(R"({"a":{"dtype":)") + value + R"(,"shape":[],"data_offsets":[0,4]}})", 4, "a dtype's name");
    for (const char* shape : {"1", "null", "{}", "\"x\""}) refused(a("F32", shape, "[0,4]"), 4, "tensor \"a\"");
    for (const char* shape : {"[-1]", "[1.0]", "[1e3]", "[null]", "[[1]]", "[{}]", "[\"1\"]", "[true]", "[-0]"})
      refused(a("F32", shape, "[0,4]"), 4, "expected sizes >= 0");
    for (const char* offsets : {"[-1,4]", "[0,4.0]", "[0,[4]]", "[0,\"4\"]", "[0,18446744073709551616]"})
      refused(a("F32", "[1]", offsets), 4, "expected offsets >= 0");
    for (const char* offsets : {"[]", "[0]", "[0,4,4]"}) refused(a("F32", "[1]", offsets), 4, "expected 2 offsets");
  }
  SECTION("dtypes") {
    for (const char* dtype : {"F8_E4M3", "f32", "F33", "", "I8", "C64", "__"})
      refused(a(dtype, "[1]", "[0,4]"), 4, "F32, F64, F16, BF16, I32, I64, U8, BOOL");
    refused(a(std::string(100000, 'F'), "[1]", "[0,4]"), 4, "FFF ... FFF");
  }
  SECTION("missing and repeated members") {
    refused(R"({"a":{}})", 0, "has no dtype");
    refused(R"({"a":{"dtype":"F32"}})", 0, "has no shape");
    refused(R"({"a":{"dtype":"F32","shape":[0]}})", 0, "has no data_offsets");
    refused(R"({"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0, "has dtype twice");
    refused("{" + entry("a", "U8", "[0]", "[0,0]") + "," + entry("a", "U8", "[0]", "[0,0]") + "}", 0, "the name \"a\" twice");
    refused("{" + entry("a", "U8", "[0]", "[0,0]") + "," + entry("\\u0061", "U8", "[0]", "[0,0]") + "}", 0, "the name \"a\" twice");
    refused(R"({"__metadata__":{},"__metadata__":{}})", 0, "twice");
    refused(R"({"__metadata__":{"k":"1","k":"2"}})", 0, "the metadata \"k\" twice");
  }
  SECTION("sizes") {
    refused(a("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "at most 8 dimensions");
    refused(a("U8", "[9223372036854775808]", "[0,4]"), 4, "below 2^63");
    refused(a("F32", "[4611686018427387904]", "[0,0]"), 0, "whose size fits");
    refused(a("F32", "[4294967296,4294967296]", "[0,0]"), 0, "whose size fits");
    refused(a("U8", "[4294967296,4294967296,0]", "[0,0]"), 0, "whose size fits");
    refused(a("F64", "[2305843009213693952]", "[0,0]"), 0, "whose size fits");
    refused(a("U8", "[9223372036854775807]", "[0,9223372036854775807]"), 8, "ends at byte 9223372036854775807");
    refused(a("F32", "[2]", "[0,4]"), 4, "expected 8 bytes");
    refused(a("F32", "[0]", "[0,4]"), 4, "expected 0 bytes");
    refused(a("F32", "[1]", "[4,0]"), 4, "start at 0");
  }
  SECTION("holes, overlaps and bytes that belong to no tensor") {
    refused(a("F32", "[1]", "[0,4]"), 5, "take 4 bytes, but the file has 5");
    refused(a("F32", "[1]", "[0,4]"), 3, "has only 3");
    refused(a("F32", "[1]", "[1,5]"), 5, "start at 0");
    refused("{}", 1, "take 0 bytes, but the file has 1");
    refused("{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[5,9]") + "}", 9,
            "tensor \"b\": expected its bytes to start at 4");
    refused("{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[3,7]") + "}", 7,
            "tensor \"b\": expected its bytes to start at 4");
    refused("{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[0,4]") + "}", 4,
            "tensor \"b\": expected its bytes to start at 4");
    refused("{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[0]", "[2,2]") + "}", 4, "tensor \"b\"");
    refused(a("U8", "[4]", "[18446744073709551612,18446744073709551615]"), 4, "start at 0");
  }
  SECTION("names are shown on one short line") {
    refused("{" + entry("a\\n\\u0000\\u202e", "X", "[1]", "[0,4]") + "}", 4, "\"a\\n\\x00\\u202e\"");
    refused("{" + entry(std::string(1 << 20, 'n'), "X", "[1]", "[0,4]") + "}", 4, "nnn ... nnn");
  }
  SECTION("more tensors than there can be") {
    std::string header = "{";
    for (std::size_t i = 0; i <= max_tensors; ++i) header += (i ? "," : "") + entry(std::to_string(i), "U8", "[0]", "[0,0]");
    refused(header + "}", 0, "more than 100000 tensors");
  }
  SECTION("more metadata than there can be") {
    std::string header = R"({"__metadata__":{)";
    for (std::size_t i = 0; i <= max_metadata; ++i) header += (i ? ",\"" : "\"") + std::to_string(i) + "\":\"\"";
    refused(header + "}}", 0, "more than 100000 pairs of metadata");
    refused(R"({"__metadata__":{"a":")" + std::string(max_header_string_bytes + 1, 'x') + "\"}}", 0, "strings and white space of at most");
  }
}

TEST_CASE("Files that are not safetensors") {
  const TempDirectory directory;
  const fs::path path = directory / "x";
  const auto message = [&](const fs::path& file) { return file_error([&] { load_safetensors(file); }); };
  CHECK(message(directory / "none") == (directory / "none").string() + ": could not be read: No such file or directory");
  CHECK(message(directory.path()) == directory.path().string() + ": could not be read: it is not a regular file");
  CHECK(message("/dev/null") == "/dev/null: could not be read: it is not a regular file");
  CHECK(message("/dev/zero") == "/dev/zero: could not be read: it is not a regular file");
  spill(path, "");
  CHECK(message(path) == path.string() + ": expected a safetensors file of at least 8 bytes but got 0");
  spill(path, "PK\x03\x04 a zip file, perhaps a pickle");
  CHECK(message(path) == path.string() + ": expected a safetensors file but got a zip archive");
  spill(path, "a text in place of a model");
  CHECK(message(path).find("header of at most 100000000 bytes") != std::string::npos);
  spill(path, std::string(8, '\0'));
  CHECK(message(path).find("start with {") != std::string::npos);
  spill(path, std::string("\x40\0\0\0\0\0\0\0{}", 10));
  CHECK(message(path) == path.string() + ": expected a header of 64 bytes but the file ends after 2");
  spill(path, std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
  CHECK(message(path).find("at most 100000000") != std::string::npos);
}

TEST_CASE("A bool in a file may be any byte") {
  const TempDirectory directory;
  std::string bytes = file_of("{" + entry("a", "BOOL", "[3]", "[0,3]") + "}", 3);
  bytes[bytes.size() - 1] = '\xff';
  bytes[bytes.size() - 2] = '\2';
  spill(directory / "x", bytes);
  CHECK(load_safetensors(directory / "x").tensors.at("a").to_vector<bool>() == std::vector<bool>{false, true, true});
}

TEST_CASE("A file cut off anywhere, or with bytes to spare, is refused") {
  const TempDirectory directory;
  const std::string whole = slurp(fixture_path("reference.safetensors"));
  REQUIRE(whole.size() > 700);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    spill(directory / "x", std::string_view(whole).substr(0, length));
    INFO(length);
    CHECK_THROWS_AS(load_safetensors(directory / "x"), FileError);
  }
  spill(directory / "x", whole + '\0');
  CHECK_THROWS_AS(load_safetensors(directory / "x"), FileError);
}

TEST_CASE("Nothing is allocated for sizes that the file does not have") {
  const TempDirectory directory;
  const fs::path path = directory / "x";
  const auto peak = [&](const std::string& bytes) {
    spill(path, bytes);
    reset_peak_memory(cpu);
    const std::size_t before = memory_statistics(cpu).peak_allocated;
    CHECK_THROWS_AS(load_safetensors(path), FileError);
    return memory_statistics(cpu).peak_allocated - before;
  };
  CHECK(peak(file_of("{" + entry("a", "F32", "[1000000000]", "[0,4000000000]") + "}", 64)) == 0);
  // The first tensor would fit; the second does not, and both are checked before the first is made.
  CHECK(peak(file_of("{" + entry("a", "U8", "[64]", "[0,64]") + "," + entry("b", "U8", "[1099511627776]", "[64,1099511627840]") + "}",
                     64)) == 0);
}

TEST_CASE("Random edits of a file never do worse than an error") {
  const TempDirectory directory;
  const std::string whole = slurp(fixture_path("reference.safetensors"));
  std::mt19937 random(20240607);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  // Pieces that mean something to a parser get further into it than random bytes do.
  const std::string pieces[] = {"{",
                                "}",
                                "[",
                                "]",
                                ",",
                                ":",
                                "\"",
                                "\\",
                                "0",
                                "9",
                                "-",
                                "e",
                                ".",
                                "18446744073709551615",
                                "9223372036854775807",
                                "null",
                                "true",
                                "\"dtype\":\"F32\"",
                                "\"shape\":[",
                                "\"data_offsets\":[0,0]",
                                "__metadata__",
                                "BOOL",
                                "I64",
                                "\\u0000",
                                std::string(1, '\0'),
                                "\xff",
                                "\xC3"};
  const auto mutate = [&](std::string bytes) {
    for (std::size_t edits = 1 + below(4); edits > 0 && !bytes.empty(); --edits) {
      const std::size_t at = below(bytes.size());
      switch (below(5)) {
        case 0: bytes[at] = static_cast<char>(below(256)); break;
        case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8))); break;
        case 2: bytes.erase(at, 1 + below(8)); break;
        case 3: bytes.insert(at, bytes.substr(below(bytes.size()), 1 + below(40))); break;
        default: bytes.replace(at, below(6), pieces[below(std::size(pieces))]); break;
      }
    }
    return bytes;
  };
  const std::size_t header_bytes = 0x2a0;
  const std::string header = whole.substr(8, header_bytes);
  int accepted = 0;
  for (int i = 0; i < 30000; ++i) {
    const std::string changed = mutate(header);
    try {
      text::JsonSource source(changed, "f", max_header_string_bytes);
      const SafetensorsHeader parsed = parse_safetensors_header(source, whole.size() - 8 - header_bytes);
      std::uint64_t bytes = 0;
      for (const TensorEntry& e : parsed.entries) {
        // A header that is accepted keeps what the parser promises.
        REQUIRE(e.begin == bytes);
        REQUIRE(e.end - e.begin == static_cast<std::uint64_t>(numel(e.shape)) * size_of(e.dtype));
        bytes = e.end;
      }
      REQUIRE(bytes == whole.size() - 8 - header_bytes);
      ++accepted;
    } catch (const FileError&) {
    }
  }
  CHECK(accepted > 100);  // names and white space may change: the edits are not all hopeless
  for (int i = 0; i < 3000; ++i) {
    spill(directory / "x", mutate(whole));
    try {
      const TensorFile file = load_safetensors(directory / "x");
      std::vector<NamedTensor> tensors;
      for (const auto& [name, tensor] : file.tensors)
        if (!name.empty()) tensors.push_back({name, tensor});
      save_safetensors(directory / "y", tensors, file.metadata);
      REQUIRE(load_safetensors(directory / "y").tensors.size() == tensors.size());
    } catch (const FileError&) {
    }
  }
}
