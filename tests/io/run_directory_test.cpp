#include "io/run_directory.h"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <nlohmann/json.hpp>

#include "catch.h"
#include "io/safetensors.h"
#include "ops/factory.h"
#include "support.h"

using namespace tern;
using namespace tern::io;
using namespace tern::io::test;
using Json = nlohmann::ordered_json;

namespace {

/// While it lives, no file of this process can grow beyond so many bytes: a full disk, as a writer sees it.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

JsonObject small_config() { return JsonObject().set("preset", "quick").set("layers", 2); }

}  // namespace

TEST_CASE("A file is replaced whole, or not at all") {
  const TempDirectory directory;
  const fs::path path = directory / "x";
  write_file_atomically(path, "old");
  CHECK(slurp(path) == "old");
  {
    AtomicFile file(path);
    file.write("half of");
    CHECK(slurp(path) == "old");
  }
  CHECK(directory.count() == 1);
  {
    AtomicFile file(path);
    file.write("the new ");
    file.write("content");
    file.commit();
  }
  CHECK(slurp(path) == "the new content");
  write_file_atomically(path, "");
  CHECK(slurp(path).empty());
  CHECK(directory.count() == 1);
}

TEST_CASE("A full disk leaves the old file and nothing beside it") {
  const TempDirectory directory;
  const fs::path path = directory / "model.safetensors";
  const std::vector<NamedTensor> small = {{"w", ones({4})}}, large = {{"w", ones({100000})}};
  save_safetensors(path, small);
  const std::string before = slurp(path);
  {
    const FullDisk full(4096);
    const std::string message = file_error([&] { save_safetensors(path, large); });
    CHECK(message == path.string() + ": could not be written: File too large");
    CHECK_THROWS_AS(write_file_atomically(path, std::string(10000, 'x')), FileError);
    CHECK_THROWS_AS(write_file_atomically(directory / "new", std::string(10000, 'x')), FileError);
    JsonLog log(directory / "log.jsonl");
    CHECK_THROWS_AS(log.write(JsonObject().set("x", std::string(10000, 'x'))), FileError);
  }
  CHECK(slurp(path) == before);
  fs::remove(directory / "log.jsonl");
  CHECK(directory.count() == 1);
}

TEST_CASE("Places that cannot be written are named") {
  const TempDirectory directory;
  spill(directory / "file", "x");
  for (const fs::path& path : {directory / "none/x", directory / "file/x", directory.path(), fs::path("/proc/x")}) {
    const std::string message = file_error([&] { write_file_atomically(path, "x"); });
    INFO(message);
    CHECK(message.starts_with(path.string() + ": could not be "));
    CHECK(file_error([&] { save_safetensors(path, {}); }).starts_with(path.string() + ": could not be "));
  }
  CHECK(directory.count() == 1);
}

TEST_CASE("Reading a file has a limit") {
  const TempDirectory directory;
  spill(directory / "x", "12345");
  CHECK(read_file(directory / "x", 5) == "12345");
  CHECK(file_error([&] { read_file(directory / "x", 4); }) ==
        (directory / "x").string() + ": could not be read: it has 5 bytes, the limit is 4");
  CHECK_THROWS_AS(read_file(directory / "none"), FileError);
  CHECK_THROWS_AS(read_file(directory.path()), FileError);
  CHECK_THROWS_AS(read_file("/dev/zero"), FileError);
}

TEST_CASE("JSON objects keep order and values") {
  JsonObject object;
  object.set("z", 1).set("a", "text \"\n\xE2\x82\xAC").set("t", true).set("x", 0.1).set("n", std::nan("")).set("f", 1.5f);
  object.set("i", std::numeric_limits<std::int64_t>::min()).set("list", std::vector<std::string>{"a", "b"});
  object.set("o", JsonObject().set("k", 2)).set("bad", "\xff").set("z", 3);
  const Json read = Json::parse(object.dump());
  CHECK(Json::parse(object.pretty()) == read);
  CHECK(object.dump().find('\n') == std::string::npos);
  CHECK(object.pretty().ends_with("}\n"));
  CHECK(read.begin().key() == "z");
  CHECK(read["z"] == 3);
  CHECK(read["a"] == "text \"\n\xE2\x82\xAC");
  CHECK(read["t"] == true);
  CHECK(read["x"] == 0.1);
  CHECK(read["n"].is_null());
  CHECK(read["f"] == 1.5);
  CHECK(read["i"] == std::numeric_limits<std::int64_t>::min());
  CHECK(read["list"] == Json::array({"a", "b"}));
  CHECK(read["o"]["k"] == 2);
  CHECK(read["bad"] == "\xEF\xBF\xBD");
  CHECK(Json::parse(JsonObject().dump()) == Json::object());
  CHECK(Json::parse(JsonObject().pretty()) == Json::object());

  const JsonObject again = JsonObject::parse(object.pretty(), "w");
  CHECK(again.dump() == object.dump());
  CHECK(again.get_int("z") == 3);
  CHECK(again.get_string("a") == "text \"\n\xE2\x82\xAC");
  CHECK(again.get_bool("t"));
  CHECK(again.get_double("x") == 0.1);
  CHECK(again.get_double("z") == 3);
  CHECK(again.get_object("o").get_int("k") == 2);
  CHECK(again.contains("n"));
  CHECK_FALSE(again.contains("m"));
}

TEST_CASE("JSON of another shape is refused with the place and the key") {
  const auto parse = [](const std::string& text) { return file_error([&] { JsonObject::parse(text, "config.json"); }); };
  for (const char* text : {"", "{", "[]", "1", "{} {}", "{\"a\":}", "{\"a\":1,}", "{\"\xff\":1}"})
    CHECK(parse(text).starts_with("config.json: "));
  CHECK(parse(std::string("{}\0{}", 5)).starts_with("config.json: "));
  CHECK(parse(R"({"a":1,"b":2,"a":3})") == R"(config.json: expected each key once but got "a" twice)");
  CHECK(parse(R"({"a":{"b":2,"b":3}})") == R"(config.json: expected each key once but got "b" twice)");
  CHECK(parse(R"({"a":{"b":2},"c":{"b":3}})") == "(no FileError)");
  CHECK(parse("{\"a\":" + std::string(100000, '[')) == "config.json: expected at most 64 levels of nesting but got more");

  CHECK(parse(R"({"lr":1e999})").starts_with("config.json: expected numbers that fit in a float64"));
  std::string many = "{\"tern_run\":1";
  for (int i = 0; i < 200'000; ++i) many += ",\"k" + std::to_string(i) + "\":1";
  CHECK(parse(many + "}") == "config.json: expected at most 100000 JSON values but got more");

  const JsonObject object = JsonObject::parse(R"({"s":"x","i":1,"f":1.5,"big":18446744073709551615,"t":true})", "config.json");
  CHECK(file_error([&] { object.get_int("m"); }) == "config.json: expected the key \"m\" to be an integer but it is missing");
  CHECK(file_error([&] { object.get_int("s"); }) == "config.json: expected the key \"s\" to be an integer but got \"x\"");
  for (const char* key : {"f", "big", "t"}) CHECK_THROWS_AS(object.get_int(key), FileError);
  CHECK_THROWS_AS(object.get_double("s"), FileError);
  CHECK_THROWS_AS(object.get_string("i"), FileError);
  CHECK_THROWS_AS(object.get_bool("i"), FileError);
  CHECK_THROWS_AS(object.get_object("i"), FileError);
}

TEST_CASE("A run directory is made, known again and replaced") {
  const TempDirectory directory;
  const fs::path path = directory / "runs/first";
  const RunDirectory run = RunDirectory::create(path, small_config());
  CHECK(run.read_config().get_string("preset") == "quick");
  CHECK(run.read_config().get_int("tern_run") == 1);
  run.write_summary(JsonObject().set("bleu", 90.5));
  JsonLog(run.log()).write(JsonObject().set("step", 1));
  JsonLog(run.log()).write(JsonObject().set("step", 2));
  CHECK(slurp(run.log()) == "{\"step\":1}\n{\"step\":2}\n");
  spill(run.model(), "x");
  spill(run.tokenizer(), "x");
  spill(path / "notes.txt", "mine");

  CHECK(RunDirectory::open(path).read_config().get_int("layers") == 2);
  CHECK(read_json(run.summary()).get_double("bleu") == 90.5);

  const RunDirectory again = RunDirectory::create(path, JsonObject().set("preset", "classic"));
  CHECK(again.read_config().get_string("preset") == "classic");
  for (const fs::path& file : {again.log(), again.model(), again.tokenizer(), again.summary()}) CHECK_FALSE(fs::exists(file));
  CHECK(slurp(path / "notes.txt") == "mine");

  fs::create_directory(directory / "empty");
  RunDirectory::create(directory / "empty", small_config());
  RunDirectory::create(directory.path() / "with/slash/", small_config());
  CHECK(fs::exists(directory / "with/slash/config.json"));
}

TEST_CASE("A directory of other things is left alone") {
  const TempDirectory directory;
  const auto create = [&](const fs::path& path, Existing existing = Existing::replace_run) {
    return file_error([&] { RunDirectory::create(path, small_config(), existing); });
  };
  const std::string refusal = ": holds files that are not an earlier run: name a new or empty directory";
  fs::create_directory(directory / "other");
  for (const char* config : {"", "{}", "{\"tern_run\":", "[]"}) {
    spill(directory / "other/config.json", config);
    spill(directory / "other/model.safetensors", "precious");
    CHECK(create(directory / "other") == (directory / "other").string() + refusal);
    CHECK(file_error([&] { RunDirectory::check(directory / "other"); }) == (directory / "other").string() + refusal);
    CHECK(slurp(directory / "other/model.safetensors") == "precious");
    CHECK(slurp(directory / "other/config.json") == config);
  }
  spill(directory / "file", "x");
  CHECK(create(directory / "file") == (directory / "file").string() + ": is not a directory");
  CHECK(create(directory / "file/run").starts_with((directory / "file/run").string()));
  CHECK(create("").find("empty") != std::string::npos);
  CHECK_THROWS_AS(RunDirectory::open(directory / "none"), FileError);
  CHECK_THROWS_AS(RunDirectory::open(directory / "file"), FileError);
  CHECK_THROWS_AS(RunDirectory::open(directory / "other"), FileError);

  RunDirectory::create(directory / "other", small_config(), Existing::replace_any);
  CHECK(RunDirectory::open(directory / "other").read_config().contains("preset"));
}

TEST_CASE("A run directory that cannot be written leaves nothing") {
  const TempDirectory directory;
  {
    const FullDisk full(4);
    CHECK_THROWS_AS(RunDirectory::create(directory / "a/b/c", small_config()), FileError);
  }
  CHECK(directory.count() == 0);
  CHECK_THROWS_AS(JsonLog(directory / "none/log.jsonl"), FileError);
}
