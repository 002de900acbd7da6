#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "io/safetensors.h"
#include "ops/factory.h"
#include "support.h"

using namespace tern;
using namespace tern::io;
using namespace tern::io::test;

namespace {

Tensor ramp(std::int64_t count, float first) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(first + static_cast<float>(i));
  return Tensor::from(values, {count});
}

/// Five tensors of 40 bytes each.
std::vector<NamedTensor> some_tensors(float first = 0) {
  std::vector<NamedTensor> result;
  for (const char* name : {"c", "a", "e", "b", "d"}) result.push_back({name, ramp(10, first += 10)});
  return result;
}

void check_tensors(const fs::path& directory, const std::vector<NamedTensor>& expected) {
  const SafetensorsFiles files(directory);
  CHECK(files.tensors().size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    INFO(name);
    REQUIRE(files.tensors().count(name) == 1);
    CHECK(files.tensors().at(name).shape == tensor.shape());
    CHECK(files.tensors().at(name).dtype == tensor.dtype());
    CHECK(files.read(name).to_vector<float>() == tensor.to_vector<float>());
  }
}

void check_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    CAPTURE(message, part);
    CHECK(message.find(part) != message.npos);
  }
}

}  // namespace

TEST_CASE("Tensors go into as many files as they need, and an index says where they are") {
  const TempDirectory directory;
  const auto tensors = some_tensors();
  save_safetensors_files(directory / "one", tensors, {.metadata = {{"format", "pt"}}, .texts = {{"config.json", "{}"}}});
  CHECK(names_in(directory / "one") == "config.json model.safetensors");
  CHECK(load_safetensors_metadata(directory / "one/model.safetensors") == Metadata{{"format", "pt"}});
  check_tensors(directory / "one", tensors);
  check_tensors(directory / "one/model.safetensors", tensors);

  save_safetensors_files(directory / "many", tensors, {.max_file_bytes = 80});
  CHECK(names_in(directory / "many") ==

        "model-00001-of-00003.safetensors model-00002-of-00003.safetensors model-00003-of-00003.safetensors model.safetensors.index.json");
  check_tensors(directory / "many", tensors);
  const auto index = nlohmann::json::parse(slurp(directory / "many/model.safetensors.index.json"));
  CHECK(index["metadata"]["total_size"] == 200);
  CHECK(index["weight_map"]["a"] == "model-00001-of-00003.safetensors");
  CHECK(index["weight_map"]["d"] == "model-00003-of-00003.safetensors");
  const SafetensorsFiles files(directory / "many");
  CHECK(files.file_of("d") == (directory / "many/model-00003-of-00003.safetensors").string());
  check_says(file_error([&] { files.read("f"); }), {"model.safetensors.index.json: lacks tensor \"f\""});
  // A tensor larger than a file may be has one of its own.
  save_safetensors_files(directory / "large", tensors, {.max_file_bytes = 1});
  CHECK(contents(directory / "large").size() == 6);
  check_tensors(directory / "large", tensors);
  CHECK_THROWS_AS(save_safetensors_files(directory / "twice", std::vector<NamedTensor>{tensors[0], tensors[0]}), Error);
  CHECK_FALSE(fs::exists(directory / "twice"));
}

TEST_CASE("Tensors are read when they are asked for") {
  const TempDirectory directory;
  const fs::path path = directory / "model.safetensors";
  save_safetensors(path, some_tensors());
  const SafetensorsFiles files(path);
  // The bytes of the last tensor, changed after the file was opened, and then cut off.
  std::string bytes = slurp(path);
  const std::size_t size = bytes.size();
  const auto write_in_place = [&](std::size_t at, std::string_view part) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.write(part.data(), static_cast<std::streamsize>(part.size()));
  };
  write_in_place(size - 40, std::string(40, '\0'));
  CHECK(files.read("e").to_vector<float>() == std::vector<float>(10, 0));
  CHECK(files.read("a").to_vector<float>() == ramp(10, 20).to_vector<float>());
  fs::resize_file(path, size - 1);
  check_says(file_error([&] { files.read("e"); }), {path.string(), "ended early"});
}

TEST_CASE("A file that is not the one that is wanted is named") {
  const TempDirectory directory;
  const auto message = [&](const std::string& content) {
    spill(directory / "model.safetensors", content);
    return file_error([&] { SafetensorsFiles{directory.path()}; });
  };
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548105171\n";
  check_says(message(pointer), {"model.safetensors: ", "git-lfs pointer", "run `git lfs pull`"});
  check_says(file_error([&] { load_safetensors(directory / "model.safetensors"); }), {"git-lfs pointer"});
  check_says(message("<!DOCTYPE html>\n<html><head>"), {"expected a safetensors file but got an HTML page"});
  check_says(message("\n <HTML lang=\"en\">"), {"got an HTML page"});
  check_says(message("PK\x03\x04" + std::string(40, 'x')), {"got a zip archive"});
  check_says(message("\x1F\x8B\x08" + std::string(40, 'x')), {"got gzip data"});
  check_says(message("<!DOCTYPE xml>" + std::string(40, 'x')), {"expected a header of at most"});
  fs::remove(directory / "model.safetensors");
  spill(directory / "model.safetensors.index.json", pointer);
  check_says(file_error([&] { SafetensorsFiles{directory.path()}; }), {"index.json: ", "git-lfs pointer"});
}

TEST_CASE("The name of a file is shown without its control characters") {
  const TempDirectory directory;
  const std::string name = "a\x1B[31m\n.safetensors";
  spill(directory / "model.safetensors.index.json", R"({"weight_map": {"a": "a\u001b[31m\n.safetensors"}})");
  const auto message = [&] { return file_error([&] { SafetensorsFiles{directory.path()}; }); };
  check_says(message(), {R"(a\x1b[31m\n.safetensors: could not be read)"});
  spill(directory / name, "");
  check_says(message(), {R"(a\x1b[31m\n.safetensors: expected a safetensors file)"});
  save_safetensors(directory / name, {});
  check_says(message(), {R"(a\x1b[31m\n.safetensors: lacks tensor "a")"});
  for (const std::string& text : {message(), file_error([&] { load_safetensors(directory / (name + "\x9B")); })}) {
    CHECK(text.find('\x1B') == text.npos);
    CHECK(text.find('\n') == text.npos);
    CHECK(text.find('\x9B') == text.npos);
  }
}

TEST_CASE("A set of files takes the place of another, and leaves the rest alone") {
  const TempDirectory directory;
  const auto old = some_tensors(), fresh = some_tensors(500);
  spill(directory / "tokenizer.json", "{}");
  const auto save = [&](const std::vector<NamedTensor>& tensors, std::uint64_t max_file_bytes) {
    save_safetensors_files(directory.path(), tensors, {.max_file_bytes = max_file_bytes, .texts = {{"config.json", "{}"}}});
  };
  save(old, 1000);
  save(fresh, 80);  // model.safetensors would be found first
  check_tensors(directory.path(), fresh);
  CHECK(directory.count() == 6);
  save(old, 40);
  check_tensors(directory.path(), old);
  CHECK(directory.count() == 8);
  save(fresh, 1000);
  check_tensors(directory.path(), fresh);
  CHECK(names_in(directory.path()) == "config.json model.safetensors tokenizer.json");
}

TEST_CASE("A set of files that cannot be written leaves the old one as it was") {
  const TempDirectory directory;
  const auto old = some_tensors();
  save_safetensors_files(directory.path(), old, {.texts = {{"config.json", "{\"old\": 1}"}}});
  const auto check_old = [&] {
    check_tensors(directory.path(), old);
    CHECK(slurp(directory / "config.json") == "{\"old\": 1}");
    CHECK(directory.count() == 2);  // no temporary files either
  };
  // The second file does not get its bytes: the first is written by then.
  struct rlimit before;
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct rlimit low = before;
  low.rlim_cur = 500;
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &low) == 0);
  const std::vector<NamedTensor> large = {{"a", ramp(10, 0)}, {"b", ramp(1000, 0)}};
  const std::string message = file_error([&] { save_safetensors_files(directory.path(), large, {.max_file_bytes = 40}); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, ignored);
  check_says(message, {"model-00002-of-00002.safetensors", "could not be"});
  check_old();
  CHECK_THROWS_AS(
      save_safetensors_files(directory.path(), std::vector<NamedTensor>{{"a", ramp(10, 0)}, {"", ramp(1, 0)}}, {.max_file_bytes = 40}),
      Error);
  check_old();
  spill(directory / "file", "");
  check_says(file_error([&] { save_safetensors_files(directory / "file", old); }), {(directory / "file").string()});
}

TEST_CASE("An index that a stranger made is checked") {
  const TempDirectory directory;
  save_safetensors_files(directory / "model", some_tensors(), {.max_file_bytes = 80});
  const fs::path index = directory / "model/model.safetensors.index.json";
  const auto content = nlohmann::json::parse(slurp(index));
  const auto message_with = [&](const std::string& text) {
    spill(index, text);
    return file_error([&] { SafetensorsFiles files(directory / "model"); });
  };
  const auto edited = [&](const std::string& tensor, const nlohmann::json& file) {
    auto copy = content;
    copy["weight_map"][tensor] = file;
    return message_with(copy.dump());
  };
  check_says(message_with("[]"), {index.string(), "weight_map"});
  check_says(message_with("{}"), {index.string(), "weight_map"});
  check_says(message_with("{\"weight_map\": 3}"), {index.string(), "weight_map"});
  check_says(message_with("{"), {index.string()});
  check_says(edited("a", 3), {index.string(), "\"a\"", "number"});
  for (const char* outside : {"../one.safetensors", "/etc/passwd", "..", "", "a/b"})
    check_says(edited("a", outside), {index.string(), "\"a\"", "beside the index", outside});
  check_says(edited("a", "model-00009-of-00009.safetensors"), {"model-00009-of-00009.safetensors", "could not be read"});
  check_says(edited("f", "model-00001-of-00003.safetensors"), {"model-00001-of-00003.safetensors", "lacks tensor \"f\""});
  fs::remove(index);
  check_says(file_error([&] { SafetensorsFiles files(directory / "model"); }), {"model: ", "neither"});
  check_says(file_error([&] { SafetensorsFiles files(directory / "none.safetensors"); }), {"none.safetensors", "could not be read"});
}
