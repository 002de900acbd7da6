// Run directories that are damaged, or made to do damage: decode says which file, and takes no memory on a file's word.
#include <cstring>

#include "support.h"

using namespace tern::programs::test;

namespace {

/// A small run without digests, as a version before wrote it.
const fs::path& trained() {
  static const TempDirectory directory;
  static const fs::path path = [] {
    write_corpus(directory / "data");
    done(run(translate, train(directory / "data", directory / "run")));
    without_digests(directory / "run");
    return directory / "run";
  }();
  return path;
}

/// 2 GB of address space are plenty for a model of 50 KB. Under AddressSanitizer, which maps terabytes, a large allocation is itself an
/// error.
Result decode(const fs::path& run) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr const char* script = "echo Hund | \"$0\" decode --device cpu --model \"$1\"";
#else
  constexpr const char* script = "ulimit -v 2000000; echo Hund | \"$0\" decode --device cpu --model \"$1\"";
#endif
  return shell(script, translate, {run.string()});
}

using Edit = std::function<std::string(std::string)>;

Edit holds(const std::string& text) {
  return [=](const std::string&) { return text; };
}
Edit cut(double share) {
  return [=](const std::string& text) { return text.substr(0, static_cast<std::size_t>(share * double(text.size()))); };
}
Edit json(const std::function<void(Json&)>& edit) {
  return [=](const std::string& text) {
    Json all = Json::parse(text);
    edit(all);
    return all.dump();
  };
}
Edit set(const std::string& key, const Json& value) {
  return json([=](Json& all) { all[key] = value; });
}

/// A tokenizer that has learned one merge less.
void forgets_a_merge(Json& tokenizer) {
  Json& merges = tokenizer["model"]["merges"];
  const std::string last = merges.back()[0].get<std::string>() + merges.back()[1].get<std::string>();
  merges.erase(merges.size() - 1);
  tokenizer["model"]["vocab"].erase(last);
}

std::string renamed(std::string model) { return model.replace(model.find("positions"), 9, "position5"); }

std::string poisoned(std::string model) {
  std::uint64_t header = 0;
  std::memcpy(&header, model.data(), sizeof header);
  const float nan = std::nanf("");
  std::memcpy(model.data() + 8 + header, &nan, sizeof nan);
  return model;
}

}  // namespace

TEST_CASE("A whole run decodes, also one of a version before, whose config.json lacks keys") {
  const TempDirectory directory;
  fs::copy(trained(), directory / "run");
  done(decode(directory / "run"));
  const fs::path config = directory / "run/config.json";
  spill(config, json([](Json& all) { all.erase("precision"); })(slurp(config)));
  done(decode(directory / "run"));
}

TEST_CASE("A directory that is no run is refused") {
  const TempDirectory directory;
  const auto refused = [](const fs::path& path, const char* said) { check_refused(run(translate, {"decode", "--model", path}), said); };
  refused(directory / "nope", "nope: there is no such run directory");
  refused(directory.path(), "config.json: could not be read: No such file");
  spill(directory / "file", "");
  refused(directory / "file", "file: is not a directory");
}

TEST_CASE("A damaged file of a run is named, with what was expected there") {
  std::vector<std::tuple<const char*, Edit, std::string>> faults = {
      {"config.json", holds(""), "config.json: expected valid JSON"},
      {"config.json", cut(0.5), "config.json: expected valid JSON"},
      {"config.json", holds("[]"), "config.json: expected a JSON object but got array"},
      {"config.json", holds("{}"), "config.json: "},
      {"config.json", set("width", "wide"), "expected the key \"width\" to be an integer but got \"wide\""},
      {"config.json", set("width", 16.5), "expected the key \"width\" to be an integer"},
      {"config.json", set("width", nullptr), "\"width\""},
      {"config.json", set("width", -16), "config.json: width: expected a whole number from 1 to 65536 but got -16"},
      {"config.json", set("width", 17), "config.json: heads: expected a divisor of the width 17 but got 2"},
      {"config.json", set("heads", 0), "config.json: heads: "},
      {"config.json", set("length", 1), "config.json: length: "},
      {"config.json", set("dropout", 2), "config.json: dropout: "},
      {"config.json", set("prefix_lm", 1), "\"prefix_lm\" to be true or false"},
      {"config.json", set("preset", "huge"), "config.json: preset: "},
      {"config.json", set("tgt", "de"), "config.json: tgt: expected another language"},
      {"config.json", set("src", "fr"), "tokenizer.json: expected a special token <eos_fr>"},
      {"config.json", json([](Json& all) { all.erase("layers"); }), "\"layers\" to be an integer but it is missing"},
      {"config.json", set("ff", 17), "model.safetensors: tensor \"blocks.0."},
      {"tokenizer.json", {}, "tokenizer.json: could not be read: No such file"},
      {"tokenizer.json", cut(0.5), "tokenizer.json: expected valid JSON"},
      {"tokenizer.json", holds("{}"), "tokenizer.json: "},
      {"tokenizer.json", json([](Json& all) { all["model"]["vocab"]["a"] = 1e18; }), "tokenizer.json: "},
      {"tokenizer.json", json(forgets_a_merge), "model.safetensors: tensor \"head.bias\": expected shape"},
      {"model.safetensors", {}, "holds no model: "},
      {"model.safetensors", holds(""), "model.safetensors: "},
      {"model.safetensors", [](const std::string& text) { return text.substr(0, text.size() - 1); }, "model.safetensors: tensor "},
      {"model.safetensors", [](const std::string& text) { return std::string(8, '\xFF') + text.substr(8); },
       "model.safetensors: expected a header of at most"},
      {"model.safetensors", renamed,
       "model.safetensors: does not fit the model: it lacks \"positions.weight\"; the model lacks \"position5.weight\""},
      {"model.safetensors", poisoned, "holds values that are not finite"},
  };
  for (const char* key : {"width", "layers", "heads", "ff", "length"})
    for (const std::int64_t size : {std::int64_t{1'000'000'000'000'000'000}, std::int64_t{1'000'000'000}})
      faults.emplace_back("config.json", set(key, size), fmt::format("config.json: {}: expected a whole number from", key));
  // In range each, and yet far more than the model's file holds.
  for (const auto& [key, size] : std::map<std::string, int>{{"width", 65536}, {"layers", 1024}, {"ff", 1048576}, {"length", 100000}})
    faults.emplace_back("config.json", set(key, size), "model.safetensors: does not fit the model in config.json");
  for (const auto& [name, edit, said] : faults) {
    INFO(name);
    const TempDirectory directory;
    const fs::path path = directory / "run", file = path / name;
    fs::copy(trained(), path);
    const std::string before = slurp(file);
    fs::remove(file);
    if (edit) spill(file, edit(before));
    const Result result = decode(path);
    check_refused(result, said);
    CHECK(result.out.empty());
  }
}
