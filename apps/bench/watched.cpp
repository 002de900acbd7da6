#include "bench/watched.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>

#include "io/files.h"

namespace tern::bench {

Watched::Watched() {
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) throw std::runtime_error("expected to start a process but the system has none");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    return;
  }
  pipe_.to.close();
  std::string text, place = "the start";
  int milliseconds = -1, status = 0;
  bool is_late = false;
  while (true) {
    pollfd entry{pipe_.from.get(), POLLIN, 0};
    is_late = io::uninterrupted([&] { return ::poll(&entry, 1, milliseconds); }) == 0;
    if (is_late) ::kill(child, SIGKILL);
    char buffer[4096];
    const auto count = is_late ? 0 : io::uninterrupted([&] { return ::read(entry.fd, buffer, sizeof(buffer)); });
    if (count <= 0) break;
    text.append(buffer, static_cast<std::size_t>(count));
    for (std::size_t end = text.find('\n'); end != std::string::npos; text.erase(0, end + 1), end = text.find('\n')) {
      const std::size_t space = text.find(' ');
      milliseconds = std::stoi(text.substr(0, space));
      place = text.substr(space + 1, end - space - 1);
    }
  }
  io::uninterrupted([&] { return ::waitpid(child, &status, 0); });
  if (is_late)
    throw std::runtime_error(
        fmt::format("{}: expected an end within {:g} s but there was none: is a loop endless?", place, milliseconds / 1e3));
  if (WIFSIGNALED(status)) throw std::runtime_error(fmt::format("{}: expected an end but got signal {}", place, WTERMSIG(status)));
  ::_exit(WEXITSTATUS(status));
}

void Watched::at(const std::string& place, double seconds) const {
  const std::string line = fmt::format("{} {}\n", seconds > 0 ? static_cast<int>(seconds * 1e3) : -1, place);
  if (io::uninterrupted([&] { return ::write(pipe_.to.get(), line.data(), line.size()); }) < 0) ::_exit(1);  // nobody watches
}

}  // namespace tern::bench
