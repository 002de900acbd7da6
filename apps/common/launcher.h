#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tern::apps {

struct LaunchOptions {
  std::vector<std::string> command;                   ///< the program and its arguments
  int processes = 1;                                  ///< number of processes on this machine
  int machines = 1, machine = 0;                      ///< number of machines, with equal numbers of processes; index of this one
  std::string master;                                 ///< "address:port" of the first machine; empty for a single machine
  bool prefixes_output = false;                       ///< prefix each line of a process by "[rank] "
  std::string name = "tern-launch";                   ///< name of the launcher in its messages
  std::map<std::string, std::string> variables = {};  ///< further environment variables of the processes
  double grace = 10;                                  ///< seconds to shut down before the processes are killed
};

/// Starts the processes with the variables of parallel/store.h, and waits for all. Forwards a signal that asks this program to
/// stop; a second Ctrl-C kills the processes. If a process fails, it is named on stderr, and the others are asked to stop and killed after
/// the grace period. Returns 0, or the exit code of the process that failed first, or 128 + N if it died by signal N or all were stopped by
/// signal N. Throws UsageError for a program that cannot be started.
int launch(const LaunchOptions& options);

/// A directory in the system's temporary directory. The destructor removes it with its content.
class TemporaryDirectory {
 public:
  /// Makes a directory whose name begins with `program`. Throws FileError.
  explicit TemporaryDirectory(const std::string& program);
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace tern::apps
