#pragma once
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "catch.h"
#include "files.h"
#include "io/safetensors.h"
#include "json_lines.h"
#include "message.h"
#include "program_paths.h"

/// The programs are run as a user runs them: as processes, with arguments, standard streams and files.
namespace tern::programs::test {

using tern::test::contents, tern::test::json_lines, tern::test::slurp, tern::test::spill, tern::test::TempDirectory;
using Json = nlohmann::json;
using Arguments = std::vector<std::string>;
namespace fs = std::filesystem;

inline const std::string translate = translate_program, bench = bench_program, recall = recall_program, lm = lm_program,
                         launch = launch_program;

struct Result {
  int code = 0;  ///< as a shell shows it: 128 + N for a death by signal N
  std::string out, err;
};

/// Starts a program; `out` and `err` are files.
inline pid_t start(const std::string& program, const Arguments& arguments, const std::string& in, const std::string& out,
                   const std::string& err) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv("OMP_NUM_THREADS", "1", 1);
  ::signal(SIGPIPE, SIG_DFL);
  const int streams[] = {::open(in.c_str(), O_RDONLY), ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666),
                         ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666)};
  for (int i = 0; i < 3; ++i)
    if (::dup2(streams[i], i) < 0) ::_exit(126);
  ::execv(program.c_str(), argv.data());
  ::_exit(127);
}

inline int finish(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

inline Result run(const std::string& program, const Arguments& arguments, const std::string& input = "") {
  const TempDirectory directory;
  const std::string in = directory / "in", out = directory / "out", err = directory / "err";
  spill(in, input);
  const int code = finish(start(program, arguments, in, out, err));
  return {code, slurp(out), slurp(err)};
}

/// With a shell, for redirections: the arguments begin at $1, and the program is $0.
inline Result shell(const std::string& script, const std::string& program, const Arguments& arguments = {}) {
  Arguments all{"-c", script, program};
  for (const std::string& argument : arguments) all.push_back(argument);
  return run("/bin/sh", all);
}

using tern::contains;

/// A result that has to be a success.
inline Result done(Result result) {
  INFO(result.err);
  REQUIRE(result.code == 0);
  return result;
}

inline Arguments words_of(const std::string& text) {
  std::istringstream in(text);
  Arguments words;
  for (std::string word; in >> word;) words.push_back(word == "\"\"" ? "" : word);
  return words;
}

inline Arguments with(Arguments arguments, const Arguments& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

inline std::vector<std::string> split_lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::ptrdiff_t count_lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

/// Waits for what another process does; false after a minute.
inline bool wait_until(const std::function<bool()>& holds) {
  for (int i = 0; i < 12'000; ++i) {
    if (holds()) return true;  // asked once: what holds now may be over at the next look
    ::usleep(5000);
  }
  return false;
}

/// A mistake of the user's: exit code 2, and one line on stderr that begins with the program's name and says `part`.
inline void check_refused(const Result& result, const std::string& part, const std::string& program = "tern-translate") {
  INFO("stderr: " << result.err);
  CHECK(result.code == 2);
  CHECK(result.err.rfind(program + ": ", 0) == 0);
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(result.err.size() < 300 + 2 * fs::temp_directory_path().string().size());
  INFO("expected: " << part);
  CHECK(contains(result.err, part));
}

/// Simple sentences, the same on every run, with up to clauses - 1 more objects.
inline void write_corpus(const fs::path& directory, std::size_t train = 48, std::size_t clauses = 1) {
  const std::vector<std::pair<std::string, std::string>> nouns = {
      {"Hund", "dog"}, {"Mann", "man"}, {"Baum", "tree"}, {"Vogel", "bird"}, {"König", "king"}};
  const std::vector<std::pair<std::string, std::string>> verbs = {{"sieht", "sees"}, {"hört", "hears"}, {"kennt", "knows"}};
  fs::create_directories(directory);
  std::size_t next = 0;
  for (const auto& [split, pairs] : std::map<std::string, std::size_t>{{"train", train}, {"valid", 8}, {"test", 12}}) {
    std::string src, tgt;
    for (std::size_t i = 0; i < pairs; ++i, next += 7) {
      const auto &subject = nouns[next % 5], &verb = verbs[next % 3], &object = nouns[next / 5 % 5];
      src += fmt::format("Der {} {} den {}", subject.first, verb.first, object.first);
      tgt += fmt::format("The {} {} the {}", subject.second, verb.second, object.second);
      for (std::size_t more = 0; more < i % clauses; ++more) {
        src += fmt::format(" und den {}", nouns[(next + more) % 5].first);
        tgt += fmt::format(" and the {}", nouns[(next + more) % 5].second);
      }
      src += ".\n";
      tgt += ".\n";
    }
    spill(directory / (split + ".de"), src);
    spill(directory / (split + ".en"), tgt);
  }
}

/// Of the recipe's presets the smaller one, as a plain decoder-only LM: without regularisation, averages and stopping early.
inline const std::string plain_lm =
    "--preset quick --architecture prefix-lm --positions learned --restart-positions True --tied-head False --init default "
    "--attention-dropout -1 --label-smoothing 0 --ema 0 --batch-tokens 0 --epochs 8 --bleu-every 0 --patience 0 --beam 1 ";

/// The arguments of a training that takes a moment; later ones override them.
inline Arguments train(const fs::path& data, const fs::path& out, const Arguments& more = {}) {
  const Arguments small =
      words_of(plain_lm +
               "--threads 1 --vocab 320 --length 40 --width 16 --layers 1 --heads 2 --ff 16 --dropout 0 --batch-size 64 "
               "--updates 3 --warmup 0");
  return with(with({"train", "--data", data, "--src", "de", "--tgt", "en", "--out", out}, small), more);
}

/// The tokens of a corpus's English sentences.
inline void write_tokens(const fs::path& corpus, const fs::path& out) {
  done(run(lm, {"prepare", corpus / "train.en", "--valid", corpus / "valid.en", "--vocab", "300", "--out", out}));
}

/// A training's log without what depends on the machine's speed.
inline std::vector<Json> log_of(const fs::path& run) {
  std::vector<Json> log = json_lines(run / "log.jsonl");
  for (Json& line : log)
    for (const char* key : {"seconds", "tokens_per_second", "examples_per_second", "memory_bytes"}) line.erase(key);
  return log;
}

inline Json json_of(const fs::path& path) { return Json::parse(slurp(path)); }

/// Makes a run one without digests, as a version before wrote it: with them any change of a file is refused at once (endings_test.cpp), and
/// what is behind that would go untested.
inline void without_digests(const fs::path& run) {
  Json config = json_of(run / "config.json");
  config["tern_run"] = 1;
  spill(run / "config.json", config.dump());
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : io::load_safetensors(run / "model.safetensors").tensors) tensors.push_back({name, tensor});
  io::save_safetensors(run / "model.safetensors", tensors);
}

}  // namespace tern::programs::test
