// Run directories that are damaged, or made to do damage: decode says which file, and takes no memory on a file's word.
#include <cstring>

#include "io/safetensors.h"
#include "support.h"

using namespace tern::programs::test;

namespace {

class Run {
 public:
  Run() {
    static const Trained trained;
    fs::copy(trained.path, path);
  }
  void check_decodes() const { CHECK(decode().code == 0); }
  void refused(const std::string& message) const {
    const Result result = decode();
    check_refused(result, message);
    CHECK(result.out.empty());
  }
  std::string read(const char* name) const { return slurp(path / name); }
  void write(const char* name, const std::string& text) const { spill(path / name, text); }
  /// Sets a value of config.json.
  void set(const char* key, const Json& value) const {
    Json config = Json::parse(read("config.json"));
    config[key] = value;
    write("config.json", config.dump());
  }

 private:
  struct Trained {
    TempDirectory directory;
    fs::path path = directory / "run";
    Trained() {
      write_corpus(directory / "data");
      run(translate, train(directory / "data", path));
      without_digests(path);
    }
  };
  /// 2 GB of address space are plenty for a model of 50 KB. Under AddressSanitizer, which maps terabytes, a large
  /// allocation is itself an error.
  Result decode() const {
#if defined(__SANITIZE_ADDRESS__)
    constexpr const char* script = "echo Hund | \"$0\" decode --device cpu --model \"$1\"";
#else
    constexpr const char* script = "ulimit -v 2000000; echo Hund | \"$0\" decode --device cpu --model \"$1\"";
#endif
    return shell(script, translate, {path.string()});
  }

  TempDirectory directory_;

 public:
  fs::path path = directory_ / "run";
};

}  // namespace

TEST_CASE("A whole run decodes, also one of a version before") { Run().check_decodes(); }

TEST_CASE("A directory that is no run") {
  const TempDirectory directory;
  const auto decode = [](const fs::path& path) { return run(translate, {"decode", "--model", path}); };
  check_refused(decode(directory / "nope"), "nope: there is no such run directory");
  check_refused(decode(directory.path()), "config.json: could not be read: No such file");
  spill(directory / "file", "");
  check_refused(decode(directory / "file"), "file: is not a directory");
}

TEST_CASE("A config.json of the wrong kind") {
  const Run run;
  const std::string config = run.read("config.json");
  run.write("config.json", "");
  run.refused("config.json: expected valid JSON");
  run.write("config.json", config.substr(0, config.size() / 2));
  run.refused("config.json: expected valid JSON");
  run.write("config.json", "[]");
  run.refused("config.json: expected a JSON object but got array");
  run.write("config.json", "{}");
  run.refused("config.json: ");
  const std::vector<std::tuple<const char*, Json, const char*>> cases = {
      {"width", "wide", "expected the key \"width\" to be an integer but got \"wide\""},
      {"width", 16.5, "expected the key \"width\" to be an integer"},
      {"width", nullptr, "\"width\""},
      {"width", -16, "config.json: width: expected a whole number from 1 to 65536 but got -16"},
      {"width", 17, "config.json: heads: expected a divisor of the width 17 but got 2"},
      {"heads", 0, "config.json: heads: "},
      {"length", 1, "config.json: length: "},
      {"dropout", 2, "config.json: dropout: "},
      {"prefix_lm", 1, "\"prefix_lm\" to be true or false"},
      {"preset", "huge", "config.json: preset: "},
      {"tgt", "de", "config.json: tgt: expected another language"},
      {"src", "fr", "tokenizer.json: expected a special token <eos_fr>"},
  };
  for (const auto& [key, value, message] : cases) {
    run.write("config.json", config);
    run.set(key, value);
    run.refused(message);
  }
  Json lacking = Json::parse(config);
  lacking.erase("layers");
  run.write("config.json", lacking.dump());
  run.refused("\"layers\" to be an integer but it is missing");
  Json earlier = Json::parse(config);
  earlier.erase("precision");
  run.write("config.json", earlier.dump());
  run.check_decodes();
}

TEST_CASE("A config.json with absurd sizes takes no memory") {
  const Run run;
  const std::string config = run.read("config.json");
  for (const char* key : {"width", "layers", "heads", "ff", "length"}) {
    for (const std::int64_t size : {std::int64_t{1'000'000'000'000'000'000}, std::int64_t{1'000'000'000}}) {
      run.write("config.json", config);
      run.set(key, size);
      run.refused(fmt::format("config.json: {}: expected a whole number from", key));
    }
  }
  // In range each, and yet far more than the model's file holds.
  for (const auto& [key, size] : std::map<std::string, int>{{"width", 65536}, {"layers", 1024}, {"ff", 1048576}, {"length", 100000}}) {
    run.write("config.json", config);
    run.set(key.c_str(), size);
    run.refused("model.safetensors: does not fit the model in config.json");
  }
}

TEST_CASE("A tokenizer.json of the wrong kind") {
  const Run run;
  const std::string tokenizer = run.read("tokenizer.json");
  run.write("tokenizer.json", tokenizer.substr(0, tokenizer.size() / 2));
  run.refused("tokenizer.json: expected valid JSON");
  run.write("tokenizer.json", "{}");
  run.refused("tokenizer.json: ");
  Json edited = Json::parse(tokenizer);
  edited["model"]["vocab"]["a"] = 1e18;
  run.write("tokenizer.json", edited.dump());
  run.refused("tokenizer.json: ");
  fs::remove(run.path / "tokenizer.json");
  run.refused("tokenizer.json: could not be read: No such file");
}

TEST_CASE("A tokenizer of another model") {
  const Run run;
  Json edited = Json::parse(run.read("tokenizer.json"));
  Json& merges = edited["model"]["merges"];
  const std::string last = merges.back()[0].get<std::string>() + merges.back()[1].get<std::string>();
  merges.erase(merges.size() - 1);
  edited["model"]["vocab"].erase(last);
  run.write("tokenizer.json", edited.dump());
  run.refused("model.safetensors: tensor \"head.bias\": expected shape");
}

TEST_CASE("A model.safetensors of the wrong kind") {
  const Run run;
  const std::string model = run.read("model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, model.data(), sizeof header);
  run.write("model.safetensors", "");
  run.refused("model.safetensors: ");
  run.write("model.safetensors", model.substr(0, model.size() - 1));
  run.refused("model.safetensors: tensor ");
  run.write("model.safetensors", std::string(8, '\xFF') + model.substr(8));
  run.refused("model.safetensors: expected a header of at most");
  std::string renamed = model;
  renamed.replace(renamed.find("positions"), 9, "position5");
  run.write("model.safetensors", renamed);
  run.refused("model.safetensors: does not fit the model: it lacks \"positions.weight\"; the model lacks \"position5.weight\"");
  const float nan = std::nanf("");
  std::string poisoned = model;
  std::memcpy(poisoned.data() + 8 + header, &nan, sizeof nan);
  run.write("model.safetensors", poisoned);
  run.refused("holds values that are not finite");
  fs::remove(run.path / "model.safetensors");
  run.refused("holds no model: ");
  run.write("model.safetensors", model);
  run.check_decodes();
}

TEST_CASE("A model of other sizes than the configuration's") {
  const Run run;
  run.set("ff", 17);
  run.refused("model.safetensors: tensor \"blocks.0.");
}
