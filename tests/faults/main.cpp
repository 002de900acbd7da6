// Trainings that are killed, or whose disk fails, and what their directories hold then.
//
//   faults kills  PROGRAM N           SIGKILL at N random times, half of them within 5 ms after the directory appears
//   faults calls  PROGRAM SHIM STEP   over an earlier run, every STEP-th system call on its directory fails, in each of the shim's ways
//
// PROGRAM is tern-translate. After each end: an earlier run is there as it was, or the new one is there whole; a next training is not
// refused; no line of a log is torn. Ends with 1 if one of these does not hold, and prints counts.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "files.h"
#include "io/run_directory.h"

namespace {

namespace fs = std::filesystem;
using tern::io::RunDirectory, tern::test::slurp, tern::test::spill, tern::test::TempDirectory;
using Files = std::map<std::string, std::string>;
using Variables = std::vector<std::pair<std::string, std::string>>;

/// Counts of what happened, and of what must not.
struct Tally {
  long ends = 0, old_runs = 0, new_runs = 0, no_runs = 0, faults = 0;

  void fault(const std::string& what) {
    ++faults;
    fmt::print("  FAULT: {}\n", what);
    std::fflush(stdout);
  }
  void print(const std::string& name) const {
    fmt::print("{:<22}{:>5} ends: {:>4} left the earlier run, {:>4} a new one, {:>4} none; {} faults\n", name, ends, old_runs, new_runs,
               no_runs, faults);
    std::fflush(stdout);
  }
};

void write_corpus(const fs::path& directory) {
  fs::create_directories(directory);
  for (const char* split : {"train", "valid", "test"})
    for (const char* language : {"de", "en"}) {
      std::string text;
      for (int i = 0; i < 16; ++i) text += fmt::format("{} {} {}\n", language, i % 5, i % 3);
      spill(directory / fmt::format("{}.{}", split, language), text);
    }
}

pid_t start(const std::string& program, const fs::path& data, const fs::path& out, int updates, const Variables& variables = {}) {
  std::vector<std::string> words{program, "train", "--data", data, "--src", "de", "--tgt", "en", "--out", out};
  std::istringstream small(
      "--preset quick --vocab 270 --length 24 --width 8 --layers 1 --heads 1 --ff 8 --batch-size 16 --threads 1 --device cpu");
  for (std::string word; small >> word;) words.push_back(word);
  words.insert(words.end(), {"--updates", fmt::to_string(updates), "--epochs", fmt::to_string(updates)});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const int none = ::open("/dev/null", O_RDWR);
  for (const int stream : {0, 1, 2}) ::dup2(none, stream);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

/// The exit code, or 128 + N for a death by signal N.
int finish(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Files contents(const fs::path& directory) {
  Files result;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file() && entry.path().filename().string()[0] != '.') result[entry.path().filename()] = slurp(entry.path());
  return result;
}

void check_log(const fs::path& log, const std::string& name, Tally& tally) {
  const std::string text = slurp(log);
  if (!text.empty() && text.back() != '\n') tally.fault(name + ": the log ends within a line");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (!nlohmann::json::accept(line)) return tally.fault(name + ": a torn line in the log: " + line);
}

/// Checks the files of a directory after an end. `before` is empty where no run stood there.
void check_directory(const fs::path& directory, const Files& before, const std::string& name, Tally& tally) {
  ++tally.ends;
  const bool is_moving = fs::exists(directory / ".tern-complete");
  if (!before.empty() && !is_moving && contents(directory) == before) {
    ++tally.old_runs;
  } else if (fs::exists(directory)) {
    try {
      const RunDirectory run = RunDirectory::open(directory);
      run.require_whole();
      tern::io::load_safetensors(run.model());
      check_log(run.log(), name, tally);
      ++tally.new_runs;
    } catch (const std::exception& error) {
      if (before.empty()) ++tally.no_runs;
      else tally.fault(fmt::format("{}: the earlier run is lost: {}", name, error.what()));
    }
  } else {
    before.empty() ? void(++tally.no_runs) : tally.fault(name + ": the directory is gone");
  }
  try {
    const RunDirectory next = RunDirectory::create(directory, {});
  } catch (const std::exception& error) {
    tally.fault(fmt::format("{}: a next training is refused: {}", name, error.what()));
  }
  for (const auto& entry : fs::directory_iterator(directory.parent_path()))
    if (entry.path() == directory)
      for (const auto& left : fs::directory_iterator(directory))
        if (left.path().filename().string()[0] == '.')
          tally.fault(fmt::format("{}: {} is left over", name, left.path().filename().string()));
}

struct Place {
  const TempDirectory temporary;
  const fs::path data = temporary / "data", old = temporary / "old", run = temporary / "run", spare = temporary / "spare";

  explicit Place(const std::string& program) {
    write_corpus(data);
    if (const int code = finish(start(program, data, old, 2)); code != 0)
      throw std::runtime_error(fmt::format("training ended with {}", code));
  }
  void reset(bool has_old) const {
    fs::remove_all(run);
    fs::remove_all(spare);
    fs::create_directory(spare);
    if (has_old) fs::copy(old, run);
  }
};

long kills(const std::string& program, long count) {
  const Place place(program);
  const Files before = contents(place.old);
  Tally random, early;
  std::minstd_rand numbers(1);
  for (long i = 0; i < count; ++i) {
    const bool is_early = i % 2 == 0, has_old = i % 4 == 1;
    place.reset(has_old);
    const pid_t child = start(program, place.data, place.run, 1000);
    if (is_early)
      for (int tries = 0; !fs::exists(place.run) && tries < 10'000'000; ++tries) continue;
    ::usleep(is_early ? static_cast<useconds_t>(numbers() % 5000) : static_cast<useconds_t>(numbers() % 400'000));
    ::kill(child, SIGKILL);
    finish(child);
    check_directory(place.run, has_old ? before : Files{}, fmt::format("kill {}", i), is_early ? early : random);
  }
  random.print("kills at random times");
  early.print("kills in first 5 ms");
  return random.faults + early.faults;
}

long calls(const std::string& program, const std::string& shim, long step) {
  const Place place(program);
  const Files before = contents(place.old);
  const fs::path counted = place.temporary / "count";
  const auto run = [&](const std::string& kind, long at) {
    place.reset(true);
    return finish(start(program, place.data, place.run, 3,
                        {{"LD_PRELOAD", shim},
                         {"TERN_FAULT_ROOT", place.run},
                         {"TERN_FAULT_KIND", kind},
                         {"TERN_FAULT_AT", fmt::to_string(at)},
                         {"TERN_FAULT_SPARE", place.spare},
                         {"TERN_FAULT_COUNT", counted}}));
  };
  if (run("eio", 0) != 0) throw std::runtime_error("training under the shim failed");
  const long last = std::stol(slurp(counted));
  fmt::print("{} calls a training\n", last);
  if (last < 30) throw std::runtime_error("expected the shim to count more calls");
  long faults = 0;
  for (const std::string kind : {"eio", "enospc", "eintr", "short", "cut", "cut-names"}) {
    Tally tally;
    std::map<int, long> codes;
    for (long at = 1; at <= last; at += step) {
      const int code = run(kind, at);
      ++codes[code];
      const std::string name = fmt::format("{} at call {}", kind, at);
      // A fault of the disk is 1 where it cost the model, and nothing where it did not; the shim ends a training whose power it cuts.
      const bool is_cut = kind.starts_with("cut");
      if (is_cut ? code != 99 : code != 0 && code != 1) tally.fault(fmt::format("{}: exit code {}", name, code));
      check_directory(place.run, before, name, tally);
    }
    tally.print(kind);
    for (const auto& [code, count] : codes) fmt::print("  exit code {}: {}\n", code, count);
    faults += tally.faults;
  }
  return faults;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    if (words.size() == 3 && words[0] == "kills") return kills(words[1], std::stol(words[2])) == 0 ? 0 : 1;
    if (words.size() == 4 && words[0] == "calls") return calls(words[1], words[2], std::stol(words[3])) == 0 ? 0 : 1;
    fmt::print(stderr, "usage: faults kills PROGRAM N | faults calls PROGRAM SHIM STEP\n");
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "faults: {}\n", error.what());
    return 1;
  }
}
