#include "common/launcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <thread>

#include "backend/file.h"
#include "common/program.h"
#include "io/files.h"
#include "parallel/socket.h"
#include "trainer/terminal.h"

namespace tern::apps {

namespace {

using Clock = std::chrono::steady_clock;
using backend::FileDescriptor;
using backend::Pipe;

/// Forwards a process's stdout or stderr with the rank before each line.
class Output {
 public:
  Output(FileDescriptor from, int to, int rank) : from_(std::move(from)), to_(to), prefix_(fmt::format("[{}] ", rank)) {}
  int fd() const { return from_.get(); }
  /// Forwards the available bytes. False at the end.
  bool read() {
    char bytes[1 << 14];
    const ssize_t count = ::read(from_.get(), bytes, sizeof bytes);
    if (count < 0) return errno == EINTR || errno == EAGAIN;
    text_.append(bytes, static_cast<std::size_t>(count));
    std::string lines;
    // \r ends the lines of a progress bar.
    for (std::size_t end; (end = text_.find_first_of("\n\r")) != std::string::npos; text_.erase(0, end + 1))
      lines += prefix_ + text_.substr(0, end + 1);
    if (count == 0 && !text_.empty()) lines += prefix_ + std::exchange(text_, "") + "\n";
    write(lines);
    return count > 0;
  }

 private:
  void write(const std::string& text) const {
    for (std::size_t written = 0; written < text.size();) {
      const ssize_t count = ::write(to_, text.data() + written, text.size() - written);
      if (count < 0 && errno != EINTR) {  // nobody reads any more, or the disk is full: the processes go on
        if (to_ == STDOUT_FILENO) train::lose_output(errno);
        return;
      }
      if (count > 0) written += static_cast<std::size_t>(count);
    }
  }

  FileDescriptor from_;
  int to_;
  std::string prefix_, text_;
};

struct Process {
  pid_t pid = 0;
  int rank = 0;
  std::optional<int> status;
};

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options) : options_(options) {
    const std::size_t colon = options.master.rfind(':');
    address_ = colon == std::string::npos ? "127.0.0.1" : options.master.substr(0, colon);
    // For programs that connect by address. Those of tern on one machine use a FileStore in the directory, as a port may be taken
    // meanwhile.
    port_ = colon == std::string::npos ? std::to_string(parallel::Socket::listen("127.0.0.1", 0).port()) : options.master.substr(colon + 1);
    if (options.machines == 1) directory_.emplace("tern-launch");
  }

  int run() {
    for (int i = 0; i < options_.processes; ++i) start(i);
    for (;;) {
      const bool any_left = reap();
      if (!any_left && outputs_.empty()) break;
      pass_on_signals();
      if (kill_at_ && Clock::now() >= *kill_at_) {
        signal_all(SIGKILL);
        kill_at_.reset();
      }
      if (!any_left && !drain_until_) drain_until_ = Clock::now() + std::chrono::seconds(2);
      if (drain_until_ && Clock::now() >= *drain_until_) break;  // a grandchild holds a pipe open
      wait_for_output();
    }
    return code_ ? *code_ : passed_on_ != 0 ? 128 + passed_on_ : 0;
  }

 private:
  void start(int local_rank) {
    const int rank = options_.machine * options_.processes + local_rank;
    Pipe fault;
    std::optional<Pipe> out, err;
    if (options_.prefixes_output) out.emplace(), err.emplace();
    std::vector<char*> arguments;
    for (const std::string& word : options_.command) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    const std::map<std::string, std::string> variables = environment(rank, local_rank);
    const pid_t parent = ::getpid(), pid = ::fork();
    if (pid < 0) throw std::runtime_error(fmt::format("no process could be started: {}", std::strerror(errno)));
    if (pid == 0) {
      // A process group of their own: the terminal's Ctrl-C then reaches the launcher only, which forwards it once.
      ::setpgid(0, group_);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // if the launcher dies
      if (::getppid() != parent) ::_exit(1);
      for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
      if (out) ::dup2(out->to.get(), STDOUT_FILENO), ::dup2(err->to.get(), STDERR_FILENO);
      for (const int each : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGXFSZ}) ::signal(each, SIG_DFL);
      ::execvp(arguments[0], arguments.data());
      const int error = errno;
      [[maybe_unused]] const ssize_t said = ::write(fault.to.get(), &error, sizeof error);
      ::_exit(127);
    }
    ::setpgid(pid, group_);
    if (group_ == 0) group_ = pid;
    processes_.push_back({pid, rank, {}});
    fault.to.close();
    int error = 0;
    ssize_t said;
    while ((said = ::read(fault.from.get(), &error, sizeof error)) < 0 && errno == EINTR) {
    }
    if (said == sizeof error) {
      signal_all(SIGKILL);
      for (const Process& each : processes_) ::waitpid(each.pid, nullptr, 0);
      throw apps::UsageError(fmt::format("{}: {}", options_.command[0], std::strerror(error)));
    }
    if (out) {
      outputs_.emplace_back(std::move(out->from), STDOUT_FILENO, rank);
      outputs_.emplace_back(std::move(err->from), STDERR_FILENO, rank);
    }
  }

  std::map<std::string, std::string> environment(int rank, int local_rank) const {
    std::map<std::string, std::string> variables{{"RANK", std::to_string(rank)},
                                                 {"WORLD_SIZE", std::to_string(options_.machines * options_.processes)},
                                                 {"LOCAL_RANK", std::to_string(local_rank)},
                                                 {"LOCAL_WORLD_SIZE", std::to_string(options_.processes)},
                                                 {"MASTER_ADDR", address_},
                                                 {"MASTER_PORT", port_}};
    variables.insert(options_.variables.begin(), options_.variables.end());
    if (directory_) variables["TERN_STORE_DIR"] = directory_->path().string();
    // By default each process would use all processors.
    if (!std::getenv("OMP_NUM_THREADS")) variables["OMP_NUM_THREADS"] = std::to_string(std::max(1, num_threads() / options_.processes));
    return variables;
  }

  /// Collects processes that have ended. False if none is left.
  bool reap() {
    const Process* failed = nullptr;
    for (Process& process : processes_) {
      int status = 0;
      if (process.status || ::waitpid(process.pid, &status, WNOHANG) != process.pid) continue;
      process.status = status;
      // Among processes that ended at the same time, one that was killed by a signal is the cause of the others' failures.
      if (is_failure(status) && (!failed || (WIFSIGNALED(status) && !WIFSIGNALED(*failed->status)))) failed = &process;
    }
    if (failed && !code_) fail(*failed, *failed->status);
    return std::any_of(processes_.begin(), processes_.end(), [](const Process& process) { return !process.status; });
  }

  static int exit_code(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

  /// A process that was asked to stop ends with 0, or with the code of the signal.
  bool is_failure(int status) const { return status != 0 && (passed_on_ == 0 || exit_code(status) != 128 + passed_on_); }

  void fail(const Process& process, int status) {
    code_ = exit_code(status);
    const std::string how = WIFSIGNALED(status) ? fmt::format("died by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
                                                : fmt::format("ended with exit code {}", WEXITSTATUS(status));
    const auto left = std::count_if(processes_.begin(), processes_.end(), [](const Process& each) { return !each.status; });
    train::write_message(fmt::format("{}: rank {} (process {}) {}{}\n", options_.name, process.rank, process.pid, how,
                                     left > 0 ? ": the others are asked to end" : ""));
    ask_to_end(SIGTERM);
  }

  void ask_to_end(int signal) {
    signal_all(signal);
    kill_at_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.grace));
  }

  void pass_on_signals() {
    const int signal = train::stop_signal();
    if (signal == 0 || passed_on_ == signal) return;
    passed_on_ = signal;
    // No grace period here: the processes may be writing a checkpoint. A second Ctrl-C kills them, and one that fails ends the others.
    signal_all(signal);
  }

  void signal_all(int signal) const {
    if (group_ > 0) ::kill(-group_, signal);  // with the processes that they have started
  }

  /// Waits for output, for a short time at most, so that signals and ended processes are noticed soon.
  void wait_for_output() {
    constexpr int moment_ms = 20;
    std::vector<pollfd> entries;
    for (const Output& output : outputs_) entries.push_back({output.fd(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), moment_ms) <= 0) return;
    for (std::size_t i = entries.size(); i-- > 0;)
      if (entries[i].revents && !outputs_[i].read()) outputs_.erase(outputs_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  const LaunchOptions& options_;
  std::string address_, port_;
  std::optional<TemporaryDirectory> directory_;
  pid_t group_ = 0;
  std::vector<Process> processes_;
  std::vector<Output> outputs_;
  std::optional<int> code_;
  int passed_on_ = 0;  ///< the forwarded signal; 0: none
  std::optional<Clock::time_point> kill_at_, drain_until_;
};

}  // namespace

TemporaryDirectory::TemporaryDirectory(const std::string& program) {
  const char* const use = "used for temporary files (set TMPDIR to another directory)";
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  const char* const named = std::getenv("TMPDIR");
  if (error) io::fail_file(named ? named : "/tmp", use, error.value());
  std::string name = (parent / (program + "-XXXXXX")).string();
  if (!::mkdtemp(name.data())) io::fail_file(parent, use, errno);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

int launch(const LaunchOptions& options) {
  const train::StopSignals signals;
  return Launcher(options).run();
}

}  // namespace tern::apps
