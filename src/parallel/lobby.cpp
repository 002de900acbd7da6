#include "parallel/lobby.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>

#include "backend/error.h"

namespace tern::parallel {

namespace {

/// Number of callers that may wait: a quarter of the descriptors at most, as the process needs the others.
std::size_t most_callers() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return std::clamp<std::size_t>(limit.rlim_cur / 4, 1, 64);
}

}  // namespace

Lobby::Lobby(Socket listener, std::string expected) : listener_(std::move(listener)), expected_(std::move(expected)) {}

void Lobby::add_to(std::vector<pollfd>& entries) const {
  // poll() ignores a negative descriptor.
  entries.push_back({has_passed(closed_until_) ? listener_.fd() : -1, POLLIN, 0});
  for (const Caller& caller : callers_) entries.push_back({caller.socket.fd(), POLLIN, 0});
}

int Lobby::patience() const { return has_passed(closed_until_) ? -1 : poll_timeout(closed_until_); }

std::vector<Socket> Lobby::admit(std::span<const pollfd> entries) {
  std::vector<Socket> admitted;
  for (std::size_t i = 1; i < entries.size(); ++i) {
    if (!entries[i].revents) continue;
    Caller& caller = callers_[i - 1];
    if (!caller.socket.receive_some(caller.said, expected_.size() - caller.said.size()) || !expected_.starts_with(caller.said))
      caller.socket.close();
    else if (caller.said == expected_) admitted.push_back(std::move(caller.socket));
  }
  std::erase_if(callers_, [](const Caller& caller) { return !caller.socket.is_open(); });
  if (entries[0].revents) accept_one();
  return admitted;
}

void Lobby::accept_one() {
  using namespace std::chrono_literals;
  bool lacks_descriptors = false;
  Socket socket = listener_.accept(lacks_descriptors);
  if (lacks_descriptors && callers_.empty()) closed_until_ = deadline_in(100ms);
  if (!callers_.empty() && (lacks_descriptors || callers_.size() >= most_callers())) callers_.erase(callers_.begin());
  if (socket.is_open()) callers_.push_back({std::move(socket), {}});
}

}  // namespace tern::parallel
