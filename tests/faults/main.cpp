// Trainings that are killed, or whose disk fails, and what their directories hold then.
//
//   faults kills  PROGRAM N           SIGKILL at N random times, half of them within 5 ms after the directory appears
//   faults calls  PROGRAM SHIM STEP   over an earlier run, every STEP-th system call on its directory fails, in each of the shim's ways
//   faults again  PROGRAM SHIM STEP   likewise, while an earlier run goes on by --resume
//   faults resumes PROGRAM N          SIGKILL at random times, also where a killed training goes on, until N have gone on
//   faults signals PROGRAM N          SIGTERM, SIGINT and SIGHUP, likewise
//   faults signals PROGRAM N WIDTH TIMER [LAUNCHER]   likewise for a model of that width, to which TIMER, a shim, sends other signals all
//   the
//                                     time; with LAUNCHER, which is tern-launch, for two processes of it
//
// PROGRAM is tern-translate. From a width of 256 on, products are long enough for oneDNN. After each end: an earlier run is there as it
// was, or the new one is there whole; a next training is not refused; no line of a log is torn; and where there is a checkpoint, --resume
// gives the model and the log, bit for bit, of a training that was never ended. Ends with 1 if one of these does not hold, and prints
// counts.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
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
  long ends = 0, old_runs = 0, new_runs = 0, no_runs = 0, resumed = 0, faults = 0;

  void fault(const std::string& what) {
    ++faults;
    fmt::print("  FAULT: {}\n", what);
    std::fflush(stdout);
  }
  void print(const std::string& name) const {
    fmt::print("{:<22}{:>5} ends: {:>4} left the earlier run, {:>4} a new one, {:>4} none; {:>4} went on; {} faults\n", name, ends,
               old_runs, new_runs, no_runs, resumed, faults);
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

pid_t start_program(std::vector<std::string> words, const Variables& variables) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const int none = ::open("/dev/null", O_RDWR);
  for (const int stream : {0, 1, 2}) ::dup2(none, stream);
  ::alarm(60);  // whatever hangs ends by SIGALRM, which is nobody's exit code here
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

/// Training under test. Two processes where there is a launcher, else one.
struct Training {
  std::string program, width = "8", timer = {}, launcher = {};

  std::vector<std::string> command(const std::vector<std::string>& words) const {
    std::vector<std::string> all{program, "train"};
    if (!launcher.empty()) all.insert(all.begin(), {launcher, "-n", "2"});
    all.insert(all.end(), words.begin(), words.end());
    return all;
  }
  Variables with_timer(Variables variables) const {
    if (!timer.empty()) variables.emplace_back("LD_PRELOAD", timer);
    return variables;
  }
};

/// Of one update an epoch. `every`: updates between checkpoints.
pid_t start(const Training& training, const fs::path& data, const fs::path& out, int updates, const Variables& variables = {},
            long every = 0) {
  std::vector<std::string> words = training.command({"--data", data, "--src", "de", "--tgt", "en", "--out", out});
  std::istringstream small(
      "--preset quick --vocab 270 --length 24 --layers 1 --heads 1 --batch-tokens 0 --batch-size 16 --threads 1 "
      "--device cpu --schedule constant --warmup 0 --dropout 0.1 --bleu-every 0 --patience 0 --beam 1");
  for (std::string word; small >> word;) words.push_back(word);
  words.insert(words.end(), {"--width", training.width, "--ff", training.width});
  words.insert(words.end(), {"--updates", fmt::to_string(updates), "--epochs", fmt::to_string(updates)});
  words.insert(words.end(), {"--checkpoint-every", fmt::to_string(every)});
  return start_program(words, training.with_timer(variables));
}

pid_t start_again(const Training& training, const fs::path& out, int updates, const Variables& variables = {}) {
  const std::string count = fmt::to_string(updates);
  return start_program(
      training.command({"--resume", "--out", out, "--threads", "1", "--device", "cpu", "--updates", count, "--epochs", count}),
      training.with_timer(variables));
}

/// The exit code, or 128 + N for a death by signal N.
int finish(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/// Of all files but hidden ones.
Files contents(const fs::path& directory) {
  Files result;
  for (auto at = fs::recursive_directory_iterator(directory); at != fs::recursive_directory_iterator(); ++at)
    if (at->path().filename().string()[0] == '.') at.disable_recursion_pending();
    else if (at->is_regular_file()) result[fs::relative(at->path(), directory)] = slurp(at->path());
  return result;
}

/// Files of a training that was never ended, as far as it does not depend on time.
struct Outcome {
  std::string model, config, log;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome(const fs::path& run) {
  Outcome result{slurp(run / "model.safetensors"), slurp(run / "config.json"), ""};
  std::istringstream lines(slurp(run / "log.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json json = nlohmann::json::parse(line);
    json.erase("seconds");
    json.erase("tokens_per_second");
    json.erase("memory_bytes");
    result.log += json.dump() + "\n";
  }
  return result;
}

bool has_checkpoint(const fs::path& directory) {
  try {
    return !RunDirectory::require_checkpoints(directory).empty();
  } catch (const tern::io::FileError&) {
    return false;
  }
}

/// Lets a run go on to so many updates, where it has a checkpoint.
void check_resumes(const Training& training, const fs::path& directory, int updates, const Outcome& wanted, const std::string& name,
                   Tally& tally) {
  if (!has_checkpoint(directory)) return;
  if (const int code = finish(start_again(training, directory, updates)); code != 0)
    return tally.fault(fmt::format("{}: --resume ended with {}", name, code));
  if (outcome(directory) != wanted) return tally.fault(name + ": what went on is not what was never ended");
  ++tally.resumed;
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
  Outcome whole;          ///< of so many updates
  long microseconds = 0;  ///< that these took

  Place(Training training, int updates) {
    training.timer.clear();
    write_corpus(data);
    for (const auto& [path, count] : {std::pair(old, 2), std::pair(run, updates)}) {
      const auto begin = std::chrono::steady_clock::now();
      if (const int code = finish(start(training, data, path, count)); code != 0)
        throw std::runtime_error(fmt::format("training ended with {}", code));
      microseconds = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin).count();
    }
    whole = outcome(run);
  }
  void reset(bool has_old) const {
    fs::remove_all(run);
    fs::remove_all(spare);
    fs::create_directory(spare);
    if (has_old) fs::copy(old, run, fs::copy_options::recursive);
  }
  /// The directory as it is now, to be changed.
  fs::path copy() const {
    const fs::path path = temporary / "copy";
    fs::remove_all(path);
    if (fs::exists(run)) fs::copy(run, path, fs::copy_options::recursive);
    return path;
  }
};

long kills(const Training& training, long count) {
  const Place place(training, 2);
  const Files before = contents(place.old);
  Tally random, early;
  std::minstd_rand numbers(1);
  for (long i = 0; i < count; ++i) {
    const bool is_early = i % 2 == 0, has_old = i % 4 == 1;
    place.reset(has_old);
    const pid_t child = start(training, place.data, place.run, 1000);
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

long calls(const Training& training, const std::string& shim, long step, bool goes_on) {
  constexpr int updates = 3;
  const Place place(training, updates);
  const Files before = contents(place.old);
  const fs::path counted = place.temporary / "count";
  const auto run = [&](const std::string& kind, long at) {
    place.reset(true);
    const Variables variables{{"LD_PRELOAD", shim},
                              {"TERN_FAULT_ROOT", place.run},
                              {"TERN_FAULT_KIND", kind},
                              {"TERN_FAULT_AT", fmt::to_string(at)},
                              {"TERN_FAULT_SPARE", place.spare},
                              {"TERN_FAULT_COUNT", counted}};
    return finish(goes_on ? start_again(training, place.run, updates, variables)
                          : start(training, place.data, place.run, updates, variables, 1));
  };
  if (run("eio", 0) != 0) throw std::runtime_error("training under the shim failed");
  const long last = std::stol(slurp(counted));
  fmt::print("{} calls a training{}\n", last, goes_on ? " that goes on" : "");
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
      check_resumes(training, place.copy(), updates, place.whole, name, tally);
      check_directory(place.run, before, name, tally);
    }
    tally.print(kind);
    for (const auto& [code, count] : codes) fmt::print("  exit code {}: {}\n", code, count);
    faults += tally.faults;
  }
  return faults;
}

/// Ends at random times, by SIGKILL or by signals that write a checkpoint, until what went on comes to its end.
long ends(const Training& training, long count, bool kills) {
  constexpr int updates = 40;
  const Place place(training, updates);
  Tally tally;
  std::minstd_rand numbers(2);
  const auto end = [&](pid_t child, int signal, const std::string& name) {
    ::usleep(static_cast<useconds_t>(static_cast<long>(numbers()) % place.microseconds));
    ::kill(child, signal);
    ++tally.ends;
    const int code = finish(child);
    if (code != 0 && code != 128 + signal) tally.fault(fmt::format("{}: exit code {}", name, code));
    return code;
  };
  // Those that come before the first checkpoint do not count.
  for (long i = 0; tally.resumed < count && tally.faults == 0 && i < 5 * count; ++i) {
    const std::string name = fmt::format("end {}", i);
    constexpr int signals[] = {SIGTERM, SIGINT, SIGHUP};
    const int signal = kills ? SIGKILL : signals[i % 3];
    place.reset(false);
    const int code = end(start(training, place.data, place.run, updates, {}, static_cast<long>(numbers() % 4)), signal, name);
    if (!has_checkpoint(place.run)) {
      // Nothing is written before the first update.
      if (!kills && fs::exists(place.run)) tally.fault(name + ": something is left without a checkpoint");
      if (code == 0) tally.fault(name + ": a training that is done has no checkpoint");
      ++tally.no_runs;
      continue;
    }
    ++tally.new_runs;
    if (i % 2 == 1) end(start_again(training, place.run, updates), signal, name + ", again");
    check_resumes(training, place.run, updates, place.whole, name, tally);
  }
  tally.print(kills ? "kills, then --resume" : "signals, then --resume");
  if (tally.resumed < count) tally.fault(fmt::format("{} trainings of {} went on", tally.resumed, count));
  return tally.faults;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  try {
    const auto code = [](long faults) { return faults == 0 ? 0 : 1; };
    const std::string what = words.empty() ? "" : words[0];
    if (words.size() == 3 && what == "kills") return code(kills({words[1]}, std::stol(words[2])));
    if (words.size() == 3 && what == "resumes") return code(ends({words[1]}, std::stol(words[2]), true));
    if (what == "signals" && (words.size() == 3 || words.size() == 5 || words.size() == 6)) {
      Training training{words[1]};
      if (words.size() > 4) training.width = words[3], training.timer = words[4];
      if (words.size() > 5) training.launcher = words[5];
      return code(ends(training, std::stol(words[2]), false));
    }
    if (words.size() == 4 && (what == "calls" || what == "again"))
      return code(calls({words[1]}, words[2], std::stol(words[3]), what == "again"));
    fmt::print(stderr,
               "usage: faults kills|resumes PROGRAM N | faults signals PROGRAM N [WIDTH TIMER [LAUNCHER]] | "
               "faults calls|again PROGRAM SHIM STEP\n");
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "faults: {}\n", error.what());
    return 1;
  }
}
