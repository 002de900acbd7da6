#pragma once
#include <map>
#include <string>
#include <vector>

namespace tern::apps {

struct LaunchOptions {
  std::vector<std::string> command;                   ///< the program and its arguments
  int processes = 1;                                  ///< on this machine
  int machines = 1, machine = 0;                      ///< of equal numbers of processes; this one's number
  std::string master;                                 ///< "address:port" of the first machine; empty where there is but one
  bool prefixes_output = false;                       ///< each line of a process begins with "[rank] "
  std::string name = "tern-launch";                   ///< of the program that starts them, in its messages
  std::map<std::string, std::string> variables = {};  ///< further ones of the environment, for each process
  double grace = 10;                                  ///< seconds that processes have to end in good order before they are killed
};

/// Starts the processes with the variables of dist/launch_environment.h, and waits for all. A signal that asks this program to stop is
/// passed on to each of them; a second Ctrl-C kills them. If one fails, the others are asked to stop, and killed after the grace; it is
/// named on stderr. Returns 0, the exit code of the one that failed first, 128 + N if it died by signal N, or if all were asked to stop by
/// it. Throws UsageError for a program that cannot be started.
int launch(const LaunchOptions& options);

}  // namespace tern::apps
