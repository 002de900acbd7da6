#include "parallel/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "backend/error.h"
#include "backend/parse.h"

namespace tern::parallel {

namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// `who`, if not empty, names the process in the error.
Addresses resolve(const std::string& host, std::uint16_t port, bool listens, const std::string& who = "") {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); code != 0)
    tern::fail("parallel", fmt::format("{}{}expected the name or address of a machine but got \"{}\": {}", who, who.empty() ? "" : ": ",
                                       host, ::gai_strerror(code)));
  return {found, ::freeaddrinfo};
}

std::string text_of(const std::string& host, std::uint16_t port) { return fmt::format("{}:{}", host, port); }

std::string name_of(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
  ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
  return fmt::format("{}:{}", host, port);
}

/// True for the error of a call that has nothing to do now, and may have later.
bool is_moment(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int open_socket(const addrinfo& address) {
  const int fd = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol);
  if (fd < 0) return fd;
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

}  // namespace

int poll_timeout(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
}

void Socket::fail(const std::string& what) const { tern::fail("parallel", fmt::format("{}: {}", peer_, what)); }

Socket Socket::listen(const std::string& host, std::uint16_t port) {
  const Addresses addresses = resolve(host, port, true);
  int error = 0;
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    Socket socket(open_socket(*address), text_of(host, port));
    const int on = 1;
    if (socket.is_open()) ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    // A caller that has gone before accept() must not make it wait for the next.
    if (socket.is_open()) ::fcntl(socket.fd(), F_SETFL, O_NONBLOCK);
    if (socket.is_open() && ::bind(socket.fd(), address->ai_addr, address->ai_addrlen) == 0 && ::listen(socket.fd(), 1024) == 0)
      return socket;
    error = errno;
  }
  tern::fail("parallel", fmt::format("{} cannot be listened on: {}; is the port in use, and is it this machine's address?",
                                     text_of(host, port), std::strerror(error)));
}

Socket Socket::connect(const std::string& host, std::uint16_t port, const std::string& who, Deadline deadline) {
  using namespace std::chrono_literals;
  std::string reason = "no answer";
  for (auto pause = 5ms;; pause = std::min<std::chrono::milliseconds>(2 * pause, 200ms)) {
    const Addresses addresses = resolve(host, port, false, who);
    for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
      Socket socket(open_socket(*address), text_of(host, port));
      if (!socket.is_open()) continue;
      // Non-blocking, so that an address that drops packets does not block past the deadline.
      ::fcntl(socket.fd(), F_SETFL, O_NONBLOCK);
      int error = ::connect(socket.fd(), address->ai_addr, address->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS || error == EINTR) {
        try {
          socket.wait(POLLOUT, deadline);
        } catch (const Error&) {
          continue;
        }
        socklen_t size = sizeof error;
        ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
      if (error == 0) return socket;
      reason = std::strerror(error);
    }
    if (has_passed(deadline - pause))
      tern::fail("parallel", fmt::format("{} does not answer ({}): does the process of {} run there?", text_of(host, port), reason, who));
    std::this_thread::sleep_for(pause);
  }
}

Socket Socket::accept(bool& lacks_descriptors) const {
  for (;;) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    const int accepted = ::accept4(fd(), reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (accepted >= 0) return {accepted, name_of(address, size)};
    lacks_descriptors = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (errno != EINTR) return {};
  }
}

void Socket::wait(short events, Deadline deadline) const {
  for (;;) {
    pollfd entry{fd(), events, 0};
    const int count = ::poll(&entry, 1, poll_timeout(deadline));
    if (count > 0) return;
    if (count == 0) fail("no answer in time");
    if (errno != EINTR) fail(std::strerror(errno));
  }
}

void Socket::send(const std::string& bytes, Deadline deadline) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(fd(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count > 0) sent += static_cast<std::size_t>(count);
    else if (errno == EAGAIN || errno == EWOULDBLOCK) wait(POLLOUT, deadline);
    else if (errno != EINTR) fail(std::strerror(errno));
  }
}

std::string Socket::receive(std::size_t count, Deadline deadline) {
  std::string bytes(count, '\0');
  for (std::size_t received = 0; received < count;) {
    const ssize_t got = ::recv(fd(), bytes.data() + received, count - received, 0);
    if (got > 0) received += static_cast<std::size_t>(got);
    else if (got == 0) fail("the connection was closed");
    else if (errno == EAGAIN || errno == EWOULDBLOCK) wait(POLLIN, deadline);
    else if (errno != EINTR) fail(std::strerror(errno));
  }
  return bytes;
}

bool Socket::send_some(std::string_view bytes, std::size_t& sent) {
  const ssize_t count = ::send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  sent = static_cast<std::size_t>(std::max<ssize_t>(count, 0));
  return count >= 0 || is_moment(errno);
}

bool Socket::receive_some(std::string& bytes, std::size_t most) {
  const std::size_t before = bytes.size();
  bytes.resize(before + most);
  const ssize_t count = ::recv(fd(), bytes.data() + before, most, MSG_DONTWAIT);
  const int error = errno;
  bytes.resize(before + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
  return count > 0 || (count < 0 && is_moment(error));
}

std::uint16_t Socket::port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

std::string Socket::address() const {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST] = "";
  if (::getsockname(fd(), reinterpret_cast<sockaddr*>(&address), &size) == 0)
    ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::string address_towards(const std::string& host) {
  const Addresses addresses = resolve(host, 9, false);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    const int fd = ::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    const Socket socket = Socket::adopt(fd, host);
    if (::connect(fd, address->ai_addr, address->ai_addrlen) == 0)
      return socket.address();  // a datagram socket: connect only chooses a route
  }
  tern::fail("parallel", fmt::format("there is no route to {}", host));
}

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

Ring::Ring(const LaunchEnvironment& environment, Store& store, double timeout) {
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
      fail("parallel", fmt::format("rank {} of {} did not come within {:g} s", previous_.rank, size, timeout));
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
