#include "io/run_directory.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

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

std::vector<NamedTensor> one_tensor(double value) { return {{"w", full({}, value)}}; }

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

TEST_CASE("A pipe or a device is not replaced by a file") {
  const TempDirectory directory;
  const fs::path pipe = directory / "pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(file_error([&] { write_file_atomically(pipe, "x"); }) ==
        pipe.string() + ": could not be written: it is a device or a pipe, and no file to be replaced");
  CHECK(fs::is_fifo(pipe));
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
    CHECK_THROWS_AS(write_file_atomically(path, std::string(10000, 'x')), DiskError);
  }
  CHECK(slurp(path) == before);
  CHECK(directory.count() == 1);
}

TEST_CASE("A line that a full disk does not take is written whole with the next") {
  const TempDirectory directory;
  const fs::path path = directory / "log.jsonl";
  JsonLog log(path);
  log.write(JsonObject().set("step", 1));
  const std::string first = slurp(path);
  {
    const FullDisk full(first.size() + 5);  // room for a part of the line
    CHECK_THROWS_AS(log.write(JsonObject().set("step", 2)), DiskError);
    CHECK(slurp(path) == first);
    CHECK_THROWS_AS(log.sync(), DiskError);
  }
  log.write(JsonObject().set("step", 3));
  log.sync();
  CHECK(slurp(path) == "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
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
  for (const char* key : {"m", "i", "s"}) CHECK_THROWS_AS(object.get_ints(key), FileError);
  CHECK(JsonObject::parse("{\"l\":[3,-1],\"e\":[]}", "w").get_ints("l") == std::vector<std::int64_t>{3, -1});
  for (const char* list : {"[1.5]", "[18446744073709551615]", "[\"x\"]", "{}"})
    CHECK_THROWS_AS(JsonObject::parse(std::string("{\"l\":") + list + "}", "w").get_ints("l"), FileError);
  CHECK_THROWS_AS(object.get_double("s"), FileError);
  CHECK_THROWS_AS(object.get_string("i"), FileError);
  CHECK_THROWS_AS(object.get_bool("i"), FileError);
  CHECK_THROWS_AS(object.get_object("i"), FileError);
}

TEST_CASE("A run directory is made, known again and replaced") {
  const TempDirectory directory;
  const fs::path path = directory / "runs/first";
  {
    RunDirectory run = RunDirectory::create(path, small_config());
    CHECK(run.read_config().get_string("preset") == "quick");
    CHECK(run.read_config().get_int("tern_run") == 2);
    JsonLog log(run.log());
    log.write(JsonObject().set("step", 1));
    run.write_tokenizer("tokens");
    CHECK_FALSE(run.has_model());
    run.save_model(one_tensor(1));
    CHECK(run.has_model());
    log.write(JsonObject().set("step", 2));
    CHECK_FALSE(RunDirectory::open(path).is_finished());
    run.write_summary(JsonObject().set("bleu", 90.5));
    CHECK(slurp(path / "log.jsonl") == "{\"step\":1}\n{\"step\":2}\n");
  }
  CHECK(names_in(path) == "config.json log.jsonl model.safetensors summary.json tokenizer.json");
  spill(path / "notes.txt", "mine");
  const RunDirectory found = RunDirectory::open(path);
  found.require_whole();
  CHECK(found.is_finished());
  CHECK(found.read_config().get_int("layers") == 2);
  CHECK(read_json(found.summary()).get_double("bleu") == 90.5);

  const auto before = contents(path);
  {
    RunDirectory again = RunDirectory::create(path, JsonObject().set("preset", "classic"));
    JsonLog log(again.log());
    CHECK(again.keeps_earlier());
    RunDirectory::open(path).require_whole();
    CHECK(RunDirectory::open(path).read_config().get_string("preset") == "quick");
  }
  CHECK(contents(path) == before);  // no model, no change
  {
    RunDirectory again = RunDirectory::create(path, JsonObject().set("preset", "classic"));
    again.save_model(one_tensor(2));
    CHECK_FALSE(again.keeps_earlier());
  }
  CHECK(RunDirectory::open(path).read_config().get_string("preset") == "classic");
  CHECK(names_in(path) == "config.json model.safetensors notes.txt");
  CHECK(slurp(path / "notes.txt") == "mine");

  fs::create_directory(directory / "empty");
  RunDirectory::create(directory / "empty", small_config()).save_model(one_tensor(1));
  RunDirectory::create(directory.path() / "with/slash/", small_config()).save_model(one_tensor(1));
  CHECK(fs::exists(directory / "with/slash/config.json"));
}

TEST_CASE("A run without a model leaves nothing") {
  const TempDirectory directory;
  {
    const RunDirectory run = RunDirectory::create(directory / "a/b", small_config());
  }
  CHECK(directory.count() == 0);
}

TEST_CASE("A run directory has one writer") {
  const TempDirectory directory;
  const fs::path path = directory / "run";
  const std::string busy = path.string() + ": another process writes a run there: wait until it ends, or name another directory";
  const auto create = [&] { return file_error([&] { RunDirectory::create(path, small_config()); }); };
  {
    RunDirectory run = RunDirectory::create(path, small_config());
    CHECK(create() == busy);
    run.save_model(one_tensor(1));
    CHECK(create() == busy);
    const RunDirectory moved = std::move(run);
    CHECK(create() == busy);
  }
  CHECK(create() == "(no FileError)");
  RunDirectory::open(path).require_whole();
}

TEST_CASE("A run is a run at every moment of its first commit") {
  const TempDirectory directory;
  for (int run = 0; run < 40; ++run) {
    const std::string path = (directory / fmt::format("run{}", run)).string();
    RunDirectory writer = RunDirectory::create(path, small_config());
    writer.write_tokenizer("{}");
    std::atomic<bool> ends = false;
    std::set<std::string> faults;
    std::thread reader([&] {
      for (bool last = false; !last;) {
        last = ends;
        faults.insert(file_error([&] { RunDirectory::check(path); }));
        faults.insert(file_error([&] { RunDirectory::open(path).require_whole(); }));
      }
    });
    writer.save_model(one_tensor(1));
    ends = true;
    reader.join();
    for (const std::string& fault : faults) {
      INFO(fault);
      CHECK((fault == "(no FileError)" || fault == path + ": holds no model yet: its first training goes on, or was cut short"));
    }
  }
}

TEST_CASE("What killed processes left is removed, and refuses nobody") {
  const TempDirectory directory;
  const fs::path path = directory / "run";
  fs::create_directories(path / ".tern-staging");
  spill(path / ".tern-staging/config.json", "{");
  spill(path / ".config.json.77.0.tmp", "{");
  CHECK(file_error([&] { RunDirectory::open(path); }).ends_with("holds no model yet: its first training goes on, or was cut short"));
  RunDirectory::create(path, small_config()).save_model(one_tensor(1));
  CHECK(names_in(path) == "config.json model.safetensors");
  spill(path / ".model.safetensors.999.3.tmp", "half");
  spill(path / ".other.999.3.tmp", "not ours");
  RunDirectory::create(path, small_config()).save_model(one_tensor(1));
  CHECK(names_in(path) == ".other.999.3.tmp config.json model.safetensors");
}

TEST_CASE("Files of different runs, and damaged ones, are told by their digests") {
  const TempDirectory directory;
  const fs::path path = directory / "run", other = directory / "other";
  for (const fs::path& at : {path, other}) {
    RunDirectory run = RunDirectory::create(at, JsonObject().set("preset", at.filename().string()));
    run.write_tokenizer("tokens of " + at.filename().string());
    run.save_model(one_tensor(1));
  }
  const auto fault = [&] { return file_error([&] { RunDirectory::open(path).require_whole(); }); };
  CHECK(fault() == "(no FileError)");
  const std::string changed = " is not the one that model.safetensors was written with: it was changed, or is another run's";
  for (const char* name : {"config.json", "tokenizer.json"}) {
    const std::string good = slurp(path / name);
    fs::copy_file(other / name, path / name, fs::copy_options::overwrite_existing);
    CHECK(fault() == (path / name).string() + ":" + changed);
    std::string flipped = good;
    flipped.back() = static_cast<char>(flipped.back() ^ 16);
    spill(path / name, name[0] == 'c' ? good + " " : flipped);
    CHECK(fault() == (path / name).string() + ":" + changed);
    spill(path / name, good);
  }
  fs::rename(path / "tokenizer.json", path / "tokens");
  CHECK(fault() == (path / "tokenizer.json").string() + ": is missing: model.safetensors was written with one");
  fs::rename(path / "tokens", path / "tokenizer.json");

  // Any byte of the model: its header's, its data's, its checksum's own.
  const std::string model = slurp(path / "model.safetensors");
  const std::vector<NamedTensor> target = {{"w", zeros({})}};
  for (std::size_t at = 8; at < model.size(); ++at) {
    std::string damaged = model;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    spill(path / "model.safetensors", damaged);
    INFO(at);
    CHECK(file_error([&] {
            RunDirectory::open(path).require_whole();
            load_safetensors_into(path / "model.safetensors", target);
          }) != "(no FileError)");
  }
  CHECK(target[0].tensor.item() == 0);

  save_safetensors(path / "model.safetensors", one_tensor(1));  // of a version before, or of another program
  CHECK(fault() == (path / "model.safetensors").string() + ": is not the model of config.json: it lacks the digests of its run");
  fs::remove(path / "model.safetensors");
  CHECK(fault().starts_with(path.string() + ": holds no model"));
}

TEST_CASE("Runs of other versions") {
  const TempDirectory directory;
  const fs::path path = directory / "run";
  fs::create_directory(path);
  spill(path / "config.json", "{\"tern_run\":1}");
  save_safetensors(path / "model.safetensors", one_tensor(1));
  RunDirectory::open(path).require_whole();
  spill(path / "config.json", "{\"tern_run\":3}");
  CHECK(file_error([&] { RunDirectory::open(path); }) ==
        (path / "config.json").string() + ": \"tern_run\" is 3: the run is of a later version, this one knows up to 2");
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

  RunDirectory::create(directory / "other", small_config(), Existing::replace_any).save_model(one_tensor(1));
  CHECK(RunDirectory::open(directory / "other").read_config().contains("preset"));
}

TEST_CASE("A run directory that cannot be written leaves nothing") {
  const TempDirectory directory;
  {
    const FullDisk full(4);
    CHECK_THROWS_AS(RunDirectory::create(directory / "a/b/c", small_config()), DiskError);
  }
  CHECK(directory.count() == 0);
  CHECK_THROWS_AS(JsonLog(directory / "none/log.jsonl"), FileError);
}
