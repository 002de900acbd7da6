#include "dist/ring.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "backend/error.h"

namespace tern::dist {

namespace {

using namespace std::chrono_literals;

constexpr char goodbye[] = "goodbye\n";
constexpr std::size_t rank_digits = 8;

}  // namespace

Ring::Ring(const LaunchEnvironment& environment, Store& store, std::chrono::milliseconds timeout) {
  const int rank = environment.rank, size = environment.size;
  const Deadline deadline = deadline_in(timeout);
  const Socket listener = Socket::listen(address_towards(environment.master_address), 0);
  store.set(fmt::format("ring/{}", rank), fmt::format("{} {}", listener.address(), listener.port()));

  next_.rank = (rank + 1) % size;
  const std::string address = store.get(fmt::format("ring/{}", next_.rank), timeout);
  const std::size_t space = address.find(' ');
  next_.socket = Socket::connect(address.substr(0, space), static_cast<std::uint16_t>(std::stoi(address.substr(space + 1))), deadline);
  next_.socket.send(fmt::format("{:>{}}", rank, rank_digits), deadline);

  previous_.rank = (rank + size - 1) % size;
  pollfd calling{listener.fd(), POLLIN, 0};
  for (;;) {
    const int count = ::poll(&calling, 1, poll_timeout(deadline));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      fail("dist",
           fmt::format("rank {} of {} did not come within {:g} s", previous_.rank, size, std::chrono::duration<double>(timeout).count()));
    previous_.socket = listener.accept();
    // Any program may connect to the port: connections that do not introduce themselves are dropped.
    if (previous_.socket.receive(rank_digits, deadline) == fmt::format("{:>{}}", previous_.rank, rank_digits)) break;
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

}  // namespace tern::dist
