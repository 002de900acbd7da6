#pragma once
#include <cmath>
#include <memory>
#include <set>

#include "io/safetensors.h"
#include "support.h"

/// Tables of flags: a row gives a command a flag with another value, and says what must be seen of it; or a wrong value, and what is said.
/// A command is run once for all rows that ask for it. `TERN_FLAG=--clip test-programs "tern-translate train*"` checks a flag's rows alone.
namespace tern::programs::test {

/// A program and words, in which DATA stands for a corpus of short and long sentences, and OUT for a directory of the run's own.
struct Command {
  std::string program, words;
};

inline std::string name_of(const Command& command) {
  return fs::path(command.program).filename().string() + " " + command.words.substr(0, command.words.find(' '));
}

/// The corpus of DATA.
inline const fs::path& sentences() {
  static const TempDirectory directory;
  static const fs::path path = [] {
    write_corpus(directory / "data", 40, 4);
    return directory / "data";
  }();
  return path;
}

/// The data of TOKENS.
inline const fs::path& lm_tokens() {
  static const TempDirectory directory;
  static const fs::path path = [] {
    write_tokens(sentences(), directory / "tokens");
    return directory / "tokens";
  }();
  return path;
}

using Weights = std::map<std::string, std::vector<float>>;

inline Weights weights_of(const fs::path& run) {
  Weights result;
  for (const auto& [name, tensor] : io::load_safetensors(run / "model.safetensors").tensors) result[name] = tensor.to_vector<float>();
  return result;
}

/// A key of each line of the log that has it.
inline std::vector<double> logged(const fs::path& run, const char* key) {
  std::vector<double> result;
  for (const Json& line : json_lines(run / "log.jsonl"))
    if (line.contains(key)) result.push_back(line[key]);
  return result;
}

/// A command's end, and what it left.
struct Ran {
  TempDirectory directory;
  Result result;

  Ran(const Command& command, const std::string& more, const fs::path& data = sentences()) {
    Arguments words = words_of("60 " + command.program + " " + command.words + " " + more);
    for (std::string& word : words) {
      if (word == "DATA") word = data.string();
      if (word == "TOKENS") word = data == sentences() ? lm_tokens().string() : data.string();
      if (word.starts_with("OUT")) word = directory.path().string() + word.substr(3);
    }
    result = run("/usr/bin/timeout", words);  // a rank that waits for another would wait for long
  }
  /// OUT/run.
  fs::path path() const { return directory / "run"; }
  std::vector<double> log(const char* key) const { return logged(path(), key); }
  Json summary() const { return json_of(path() / "summary.json"); }
  Weights weights() const { return weights_of(path()); }
  /// OUT/rows.
  std::vector<Json> rows() const { return json_lines(directory / "rows"); }
};

inline double number_of(const Json& row, const std::string& key) { return row[key].get<double>(); }

/// The command with more words behind its own, which win: run if nobody has asked for it yet.
inline const Ran& ran(const Command& command, const std::string& more = "") {
  static std::map<std::string, std::unique_ptr<Ran>> all;
  std::unique_ptr<Ran>& result = all[fmt::format("{} {} {}", command.program, command.words, fmt::join(words_of(more), " "))];
  if (!result) result = std::make_unique<Ran>(command, more);
  INFO(command.words << " " << more << "\n" << result->result.err);
  REQUIRE(result->result.code == 0);
  return *result;
}

/// What a run with the flag must show, beside the same without it.
using Seen = std::function<void(const Ran& changed, const Ran& plain)>;

struct Flag {
  std::string words;      ///< the flag, and another value than the command's
  Seen seen;              ///< what shows that it acts
  std::string with = "";  ///< words of both runs
};

struct Refusal {
  std::string words, said;
};

struct FlagTable {
  Command command;
  std::vector<Flag> flags;
  std::vector<Refusal> refusals;
};

// The tables: every_flag_test.cpp sees to it that each flag in a program's help is in one of them, or in the name of a case.
const FlagTable& translate_train();
const FlagTable& recall_train();
const FlagTable& lm_train();
const std::vector<FlagTable>& recall_tables();
const std::vector<FlagTable>& bench_tables();
const FlagTable& compile_table();
const FlagTable& loops_table();
const FlagTable& grade_table();
const FlagTable& mixers_table();
const std::vector<FlagTable>& comm_tables();

inline bool is_asked_for(const std::string& words) {
  const char* only = std::getenv("TERN_FLAG");
  return only == nullptr || contains(words + " ", std::string(only) + " ");
}

inline void check_flags(const FlagTable& table) {
  for (const Flag& flag : table.flags) {
    if (!is_asked_for(flag.words)) continue;
    INFO(name_of(table.command) << " " << flag.with << " " << flag.words);
    flag.seen(ran(table.command, flag.with + " " + flag.words), ran(table.command, flag.with));
  }
}

/// Each ends with code 2 and one line before anything is read, as there is no corpus, or written. There is no GPU, either.
inline void check_refusals(const Command& command, const std::vector<Refusal>& refusals) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // for the programs: this one has no need of a GPU
  for (const auto& [words, said] : refusals) {
    if (!is_asked_for(words)) continue;
    INFO(name_of(command) << " " << words);
    const Ran refused(command, words, "/nonexistent");
    check_refused(refused.result, said, fs::path(command.program).filename());
    CHECK(refused.result.out.empty());
    CHECK(refused.directory.count() == fs::exists(refused.directory / "rows"));  // to which a bench would have added
  }
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

inline void check_equal(const std::vector<double>& found, const std::vector<double>& wanted, double epsilon = 1e-5) {
  REQUIRE(found.size() == wanted.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(wanted[i]).epsilon(epsilon));
}

/// The largest difference of two models' weights; infinite if names or sizes differ. The bias of keys is left out: it adds the same number
/// to all scores of a query, so that its gradient is 0 except for rounding, which Adam scales to steps of the usual size.
inline double distance(const Weights& a, const Weights& b) {
  const auto is_bias_of_keys = [](const std::string& name, std::size_t i, std::size_t size) {
    if (name.ends_with("attn.qkv.bias")) return i >= size / 3 && i < 2 * size / 3;
    return name.ends_with("attn.key_value.bias") && i < size / 2;
  };
  double largest = 0;
  if (a.size() != b.size()) return INFINITY;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size()) return INFINITY;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!is_bias_of_keys(name, i, values.size())) largest = std::max(largest, std::abs(double(values[i]) - double(other->second[i])));
  }
  return largest;
}

// What rows of several programs see.

inline Seen both(const Seen& one, const Seen& other) {
  return [=](const Ran& changed, const Ran& plain) {
    one(changed, plain);
    other(changed, plain);
  };
}
/// A command's rows.
using Rows = std::vector<Json>;
inline Seen rows(const std::function<void(const Rows&)>& check) {
  return [=](const Ran& changed, const Ran&) { check(changed.rows()); };
}
/// A text of standard output.
inline Seen says(const std::string& text) {
  return [text](const Ran& changed, const Ran& plain) {
    CHECK(contains(changed.result.out, text));
    CHECK_FALSE(contains(plain.result.out, text));
  };
}
/// The values of a key in the log.
inline Seen logs(const char* key, const std::vector<double>& values, double epsilon = 1e-12) {
  return [=](const Ran& changed, const Ran&) { check_equal(changed.log(key), values, epsilon); };
}
/// The learning rate of each update, as a multiple of --lr.
inline Seen rates(double lr, std::vector<double> factors) {
  for (double& factor : factors) factor *= lr;
  return logs("lr", factors);
}
/// Texts of a file.
inline Seen writes(const char* file, const std::vector<const char*>& texts) {
  return [=](const Ran& changed, const Ran&) {
    const std::string written = slurp(changed.directory / file);
    for (const char* text : texts) CHECK(contains(written, text));
  };
}
/// Dropout: each update has another loss than without it, and validation has the same. The weights stay where they are.
inline void acts_in_training_alone(const Ran& changed, const Ran& plain) {
  const std::vector<double> dropped = changed.log("loss"), whole = plain.log("loss");
  REQUIRE(dropped.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(std::abs(dropped[i] - whole[i]) > 1e-5);
  CHECK(std::abs(dropped[0] - dropped[1]) > 1e-5);
  check_equal(changed.log("valid_loss"), plain.log("valid_loss"), 1e-7);
}
/// 16 bits: the losses of float32 but for the roundings, which show.
inline Seen rounds_by(double epsilon) {
  return [=](const Ran& changed, const Ran& plain) {
    const std::vector<double> rounded = changed.log("valid_loss"), exact = plain.log("valid_loss");
    check_equal(rounded, exact, epsilon);
    double most = 0;
    for (std::size_t i = 0; i < rounded.size(); ++i) most = std::max(most, std::abs(rounded[i] / exact[i] - 1));
    CHECK(most > 1e-6);
    CHECK(contains(slurp(changed.path() / "model.safetensors"), "F32"));  // the masters
    CHECK_FALSE(contains(slurp(changed.path() / "model.safetensors"), "F16"));
  };
}
/// Fused kernels round otherwise than plain ones, and no more than that.
inline void fuses(const Ran& changed, const Ran& plain) {
  says("fused kernels")(changed, plain);
  CHECK(changed.summary()["use_fused_kernel"] == true);
  CHECK(plain.summary()["use_fused_kernel"] == false);
  const double apart = distance(changed.weights(), plain.weights());
  CHECK((apart > 0 && apart < 1e-4));
  check_equal(changed.log("loss"), plain.log("loss"));
}
/// Compiled updates: most ran as programs, and all is the same, bit for bit.
inline void runs_programs(const Ran& changed, const Ran& plain) {
  says("plain kernels, each step compiled")(changed, plain);
  const std::string& out = changed.result.out;
  const std::size_t line = out.find("\ncompiled ");
  REQUIRE(line != std::string::npos);
  INFO(out.substr(line + 1, out.find('\n', line + 1) - line));
  const double updates = static_cast<double>(plain.log("loss").size());
  CHECK(std::stod(out.substr(out.find("which ran ", line) + 10)) >= 0.6 * updates);
  for (const char* key : {"loss", "grad_norm", "valid_loss", "train_loss"}) CHECK(changed.log(key) == plain.log(key));
  CHECK(changed.weights() == plain.weights());
}
/// Checkpointing: the same weights from less memory.
inline void saves_memory(const Ran& changed, const Ran& plain) {
  CHECK(changed.weights() == plain.weights());
  CHECK(changed.log("memory_bytes").back() < 0.95 * plain.log("memory_bytes").back());
}

}  // namespace tern::programs::test
