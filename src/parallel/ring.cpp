#include "parallel/ring.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include "backend/error.h"
#include "backend/parse.h"
#include "parallel/lobby.h"

namespace tern::parallel {

namespace {

using namespace std::chrono_literals;

constexpr char goodbye[] = "goodbye\n";

std::string introduction(int rank) { return fmt::format("tern-ring {:>8}\n", rank); }

/// Untrusted text for a message.
std::string shown(std::string text) {
  text.resize(std::min<std::size_t>(text.size(), 60));
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

/// Connects to a rank at what the store has as its address and port.
Socket connect(int rank, const std::string& where, Deadline deadline) {
  const std::size_t space = where.find(' ');
  const auto port = space == std::string::npos ? std::nullopt : backend::parse_number<std::uint16_t>(where.substr(space + 1));
  if (!port)
    fail("parallel",
         fmt::format("rank {}: expected its address and port in the store, as \"127.0.0.1 12345\", but got \"{}\": does another "
                     "program write to the store?",
                     rank, shown(where)));
  return Socket::connect(shown(where.substr(0, space)), *port, fmt::format("rank {}", rank), deadline);
}

}  // namespace

Ring::Ring(const LaunchEnvironment& environment, Store& store, std::chrono::milliseconds timeout) {
  const int rank = environment.rank, size = environment.size;
  const Deadline deadline = deadline_in(timeout);
  next_.rank = (rank + 1) % size;
  previous_.rank = (rank + size - 1) % size;
  Lobby lobby(Socket::listen(address_towards(environment.master_address), 0), introduction(previous_.rank));
  store.set(fmt::format("ring/{}", rank), fmt::format("{} {}", lobby.address(), lobby.port()));
  const std::string key = fmt::format("ring/{}", next_.rank);
  next_.socket = connect(next_.rank, store.get(key, timeout), deadline);
  next_.socket.send(introduction(rank), deadline);

  while (!previous_.socket.is_open()) {
    std::vector<pollfd> entries;
    lobby.add_to(entries);
    const int patience = lobby.patience(), left = poll_timeout(deadline);
    const int count = ::poll(entries.data(), entries.size(), patience < 0 ? left : std::min(patience, left));
    if (count > 0)
      for (Socket& socket : lobby.admit(entries)) previous_.socket = std::move(socket);
    if (!previous_.socket.is_open() && has_passed(deadline))
      fail("parallel",
           fmt::format("rank {} of {} did not come within {:g} s", previous_.rank, size, std::chrono::duration<double>(timeout).count()));
  }
}

std::string Ring::wait(std::chrono::milliseconds time) {
  // poll() ignores the negative descriptor of a closed socket.
  pollfd both[] = {{next_.socket.fd(), POLLIN, 0}, {previous_.socket.fd(), POLLIN, 0}};
  if (::poll(both, 2, static_cast<int>(time.count())) <= 0) return {};
  std::string reason;
  if (both[0].revents != 0) reason = read_from(next_);
  if (reason.empty() && both[1].revents != 0) reason = read_from(previous_);
  return reason;
}

std::string Ring::read_from(Neighbour& neighbour) {
  char text[512];
  const ssize_t count = ::recv(neighbour.socket.fd(), text, sizeof text, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  neighbour.socket.close();
  std::string line(text, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  if (line == goodbye) return {};
  if (line.empty()) return fmt::format("rank {} has ended", neighbour.rank);
  if (line.back() == '\n') line.pop_back();
  return line;
}

void Ring::send(const std::string& line) noexcept {
  for (Neighbour* const neighbour : {&next_, &previous_}) {
    // A short line fits into the socket's buffer, unless the neighbour has stopped reading.
    if (neighbour->socket.is_open())
      static_cast<void>(::send(neighbour->socket.fd(), line.data(), line.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
    neighbour->socket.close();
  }
}

void Ring::tell(const std::string& reason) noexcept { send(reason.substr(0, 500) + "\n"); }
void Ring::say_goodbye() noexcept { send(goodbye); }

}  // namespace tern::parallel
