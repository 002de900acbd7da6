// Trainings in several processes of which one fails.
//
//   rank-faults LAUNCHER PROGRAM SHIM N [SEED [TIMEOUT]]
//
// LAUNCHER is tern-launch, PROGRAM is tern-recall, SHIM cuts connections at SIGUSR2. N times a training of 2, 3 or 4 processes begins, and
// at a random moment one of them is killed, is stopped (SIGSTOP), or loses its connections. Then: the launcher and every process end in
// time, none is left; each other rank says why in one line; where there is a checkpoint it is whole, and --resume goes on from it, with the
// same number of ranks or another one. Ends with 1 if one of these does not hold, and prints counts.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "files.h"
#include "io/run_directory.h"

namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using tern::io::RunDirectory, tern::test::slurp, tern::test::TempDirectory;

/// Beyond those two, for a machine that does other things as well.
constexpr double slack = 5;

/// 128 examples in batches of 16.
constexpr std::int64_t updates_of_epoch = 8;

struct Kind {
  const char* name;
  int signal;
};
constexpr std::array<Kind, 3> kinds = {{{"killed", SIGKILL}, {"stopped", SIGSTOP}, {"cut off", SIGUSR2}}};

struct Tally {
  long count = 0, resumed = 0, in_startup = 0, faults = 0;
  double longest = 0;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

pid_t start(std::vector<std::string> words, const fs::path& said, const std::string& preload) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv("OMP_NUM_THREADS", "1", 1);
  if (!preload.empty()) ::setenv("LD_PRELOAD", preload.c_str(), 1);
  const int none = ::open("/dev/null", O_RDWR), file = ::open(said.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::dup2(none, 0);
  ::dup2(none, 1);
  ::dup2(file, 2);
  ::execv(argv[0], argv.data());
  ::_exit(127);
}

/// The exit code, or nothing where the process has not ended by then.
bool ends_within(pid_t child, double seconds, int& code) {
  for (const auto started = Clock::now(); seconds_since(started) < seconds; std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) != child) continue;
    code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    return true;
  }
  return false;
}

/// Rank and process of each.
std::map<int, pid_t> read_processes(const fs::path& file) {
  std::map<int, pid_t> result;
  std::istringstream in(fs::exists(file) ? slurp(file) : "");
  int rank = 0;
  for (pid_t process = 0; in >> rank >> process;) result[rank] = process;
  return result;
}

/// Of a process that was somebody's child: gone, or a zombie that nobody has asked for yet.
bool is_gone(pid_t process) {
  return ::kill(process, 0) != 0 || slurp(fmt::format("/proc/{}/stat", process)).find(") Z ") != std::string::npos;
}

std::vector<tern::io::CheckpointFile> checkpoints(const fs::path& run) {
  try {
    return RunDirectory::require_checkpoints(run);
  } catch (const tern::io::FileError&) {
    return {};
  }
}

class Campaign {
 public:
  Campaign(std::string launcher, std::string program, std::string shim, unsigned seed, double timeout)
      : launcher_(std::move(launcher)), program_(std::move(program)), shim_(std::move(shim)), numbers_(seed), timeout_(timeout) {}

  void run(long count) {
    for (long i = 0; i < count; ++i) one(i);
  }

  long report() const {
    long faults = 0;
    for (const auto& [name, tally] : tallies_) {
      fmt::print("{:<8}{:>5}: {:>4} went on by --resume, {:>3} ended before they had met; the longest took {:.1f} s; {} faults\n", name,
                 tally.count, tally.resumed, tally.in_startup, tally.longest, tally.faults);
      faults += tally.faults;
    }
    return faults;
  }

 private:
  /// Shorter than the timeout, as by default: the others see for themselves that one has ended.
  double grace() const { return timeout_ / 3; }

  void one(long number) {
    const Kind kind = kinds[static_cast<std::size_t>(number) % kinds.size()];
    const int ranks = 2 + static_cast<int>(numbers_() % 3), victim = static_cast<int>(numbers_() % static_cast<unsigned>(ranks));
    const TempDirectory directory;
    const fs::path run = directory / "run", said = directory / "said", pids = directory / "pids";
    Tally& tally = tallies_[kind.name];
    ++tally.count;
    const auto fault = [&](const std::string& what) {
      ++tally.faults;
      fmt::print("  FAULT: number {}, rank {} of {} {}: {}\n{}", number, victim, ranks, kind.name, what, slurp(said));
      std::fflush(stdout);
    };

    std::vector<std::string> words = words_of(fmt::format("{} -n {} --grace {} --output prefix /bin/sh -c", launcher_, ranks, grace()));
    words.push_back(fmt::format("echo $RANK $$ >> {}; exec \"$0\" \"$@\"", pids.string()));
    for (const std::string& word : words_of(
             fmt::format("{} train --out {} --preset quick --device cpu --threads 1 --pairs 4 --train-examples 128 --valid-examples 16 "
                         "--test-examples 16 --batch-size 16 --width 16 --layers 1 --dropout 0.1 --schedule constant --lr 0.001 "
                         "--epochs 1000000 --checkpoint-every {} --rank-timeout {}",
                         program_, run.string(), numbers_() % 8, timeout_)))
      words.push_back(word);
    const pid_t launcher = start(words, said, shim_);
    for (const auto started = Clock::now(); read_processes(pids).size() < static_cast<std::size_t>(ranks) && seconds_since(started) < 10;)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::map<int, pid_t> processes = read_processes(pids);
    // Three of four while they train, and the others while they begin.
    if (numbers_() % 4 != 0)
      for (const auto started = Clock::now(); checkpoints(run).empty() && seconds_since(started) < 10;)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::this_thread::sleep_for(std::chrono::milliseconds(numbers_() % 400));
    const auto injected = Clock::now();
    if (processes.contains(victim)) ::kill(processes.at(victim), kind.signal);
    int code = 0;
    while (!ends_within(launcher, 0.05, code)) {
      // One that has no connections yet loses those that it makes.
      if (kind.signal == SIGUSR2 && processes.contains(victim)) ::kill(processes.at(victim), SIGUSR2);
      if (seconds_since(injected) < timeout_ + grace() + slack) continue;
      fault("a hang");
      ::kill(launcher, SIGKILL);
      ends_within(launcher, 5, code);
      return;
    }
    tally.longest = std::max(tally.longest, seconds_since(injected));
    check(processes, victim, kind, code, slurp(said), tally, fault);
    if (!checkpoints(run).empty()) resume(run, directory / "said-again", number, tally, fault);
  }

  template <class Fault>
  void check(const std::map<int, pid_t>& processes, int victim, const Kind& kind, int code, const std::string& said, Tally& tally,
             const Fault& fault) const {
    if (code == 0) fault("the launcher ended with 0");
    for (const auto& [rank, process] : processes)
      if (!is_gone(process)) fault(fmt::format("rank {} is left", rank));
    if (said.find("tern-launch: rank ") == std::string::npos) fault("the launcher does not name the process that failed first");
    bool has_met = true;
    for (const auto& [rank, process] : processes) {
      if (rank == victim && kind.signal != SIGUSR2) continue;
      // Lines of this rank.
      long lines = 0;
      std::string line, last;
      for (std::istringstream in(said); std::getline(in, line);)
        if (line.starts_with(fmt::format("[{}] ", rank))) ++lines, last = line;
      // Before it waits for the others a process takes the launcher's request to end as any program does; while it waits it says so.
      const bool met = lines > 0 && last.find(" while it waited for the other processes") == std::string::npos;
      has_met = has_met && met;
      if (lines > 1 || (met && last.find("[parallel] ") == std::string::npos))
        fault(fmt::format("rank {} says {} lines: {}", rank, lines, last));
    }
    if (!has_met) {
      ++tally.in_startup;
      const auto says = [&](const char* text) { return said.find(text) != std::string::npos; };
      if (says("[parallel] ") && !says(" connecting on rank ") && !says(" no process has set ") && !says(" did not come within "))
        fault("a rank says nothing though the others had met it");
    }
  }

  template <class Fault>
  void resume(const fs::path& run, const fs::path& said, long number, Tally& tally, const Fault& fault) {
    try {
      tern::io::load_safetensors(checkpoints(run).back().path);
    } catch (const std::exception& error) {
      return fault(fmt::format("the last checkpoint is not whole: {}", error.what()));
    }
    const long ranks = number % 8 == 0 ? 2 : 1;
    const std::string launcher = ranks > 1 ? fmt::format("{} -n {} ", launcher_, ranks) : "";
    const std::int64_t epochs = checkpoints(run).back().update / updates_of_epoch + 1;
    const pid_t again = start(words_of(fmt::format("{}{} train --resume --out {} --device cpu --threads 1 --epochs {}", launcher, program_,
                                                   run.string(), epochs)),
                              said, "");
    int code = 0;
    if (!ends_within(again, 20, code)) {
      ::kill(again, SIGKILL);
      ends_within(again, 5, code);
      return fault("what goes on does not end");
    }
    if (code != 0) return fault(fmt::format("--resume ended with {}: {}", code, slurp(said)));
    ++tally.resumed;
  }

  const std::string launcher_, program_, shim_;
  std::minstd_rand numbers_;
  const double timeout_;
  std::map<std::string, Tally> tallies_;
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() < 4 || words.size() > 6) {
    fmt::print(stderr, "usage: rank-faults LAUNCHER PROGRAM SHIM N [SEED [TIMEOUT]]\n");
    return 2;
  }
  try {
    Campaign campaign(words[0], words[1], words[2], words.size() > 4 ? static_cast<unsigned>(std::stoul(words[4])) : 1,
                      words.size() > 5 ? std::stod(words[5]) : 6);
    campaign.run(std::stol(words[3]));
    return campaign.report() == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "rank-faults: {}\n", error.what());
    return 1;
  }
}
