#pragma once
#include <poll.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/file.h"
#include "parallel/store.h"

namespace tern::parallel {

using Deadline = std::chrono::steady_clock::time_point;
/// A number of seconds, of which an infinite one is 31 years: a deadline is within the clock's range.
inline std::chrono::milliseconds milliseconds_of(double seconds) {
  const double count = 1000 * seconds;
  return std::chrono::milliseconds(count > 0 ? std::llround(std::fmin(count, 1e12)) : 0);
}
inline Deadline deadline_in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }
inline Deadline deadline_in(double seconds) { return deadline_in(milliseconds_of(seconds)); }
inline bool has_passed(Deadline deadline) { return std::chrono::steady_clock::now() >= deadline; }
/// Milliseconds until the deadline, rounded up, for poll(); 0 if it has passed.
int poll_timeout(Deadline deadline);

/// A TCP socket. Interrupted system calls are repeated. Functions throw Error, which names the peer, if the deadline passes, the connection
/// ends, or the system reports a fault.
class Socket {
 public:
  Socket() = default;

  /// Listens on an address of this machine. Port 0 is any free port.
  static Socket listen(const std::string& host, std::uint16_t port);
  /// Connects to a process, which `who` names in errors, repeatedly until it listens or the deadline passes.
  static Socket connect(const std::string& host, std::uint16_t port, const std::string& who, Deadline deadline);
  /// Takes over a connected descriptor.
  static Socket adopt(int fd, std::string peer) { return {fd, std::move(peer)}; }
  /// The next connection of a listening socket, once poll() reports one; a closed socket if it has gone, or if this process or machine
  /// lacks a descriptor or memory for it.
  Socket accept(bool& lacks_descriptors) const;

  void send(const std::string& bytes, Deadline deadline);
  std::string receive(std::size_t count, Deadline deadline);
  /// @{
  /// Without a wait: sends a part of the bytes, and returns its length; appends the bytes that have come, `most` of them at most. False if
  /// the connection has ended.
  bool send_some(std::string_view bytes, std::size_t& sent);
  bool receive_some(std::string& bytes, std::size_t most);
  /// @}

  bool is_open() const { return fd_.is_open(); }
  int fd() const { return fd_.get(); }
  std::uint16_t port() const;                        ///< local port
  std::string address() const;                       ///< local address, without the port
  const std::string& peer() const { return peer_; }  ///< who is at the other end, for messages
  void close() noexcept { fd_.close(); }

 private:
  Socket(int fd, std::string peer) : fd_(fd), peer_(std::move(peer)) {}
  void wait(short events, Deadline deadline) const;
  [[noreturn]] void fail(const std::string& what) const;

  backend::FileDescriptor fd_;
  std::string peer_;
};

/// The local address of a route to `host`. Sends nothing.
std::string address_towards(const std::string& host);

/// The door of a port, which any program on the network may call: it lets in those who introduce themselves with the expected words, and
/// turns away all others. Nobody waits for a caller that says nothing. At most 64 wait here, and fewer where the process may have few
/// descriptors: a newer one then takes the place of the oldest.
class Lobby {
 public:
  Lobby(Socket listener, std::string expected);

  /// Appends what poll() has to wait for.
  void add_to(std::vector<pollfd>& entries) const;
  /// Milliseconds that poll() may wait at most; -1 without a limit.
  int patience() const;
  /// Takes the callers, and returns those that have introduced themselves. `entries` are what add_to() appended, after poll().
  std::vector<Socket> admit(std::span<const pollfd> entries);

  std::uint16_t port() const { return listener_.port(); }
  std::string address() const { return listener_.address(); }

 private:
  struct Caller {
    Socket socket;
    std::string said;
  };

  void accept_one();

  Socket listener_;
  std::string expected_;
  std::vector<Caller> callers_;  ///< the oldest first
  Deadline closed_until_{};      ///< there is no descriptor for another caller
};

/// A ring of TCP connections, each rank with the next and the last with the first, by which ranks notice that another one has died while
/// the engine would wait for it. The connections are silent until a rank ends: it says goodbye, or its connections break. A reported
/// failure is passed on by tell().
class Ring {
 public:
  /// Connects a ring of two ranks or more. Throws Error if a neighbour does not connect within `timeout` seconds.
  Ring(const LaunchEnvironment& environment, Store& store, double timeout);

  /// Waits up to `time` for a failure, and returns its reason; "" if there is none.
  std::string wait(std::chrono::milliseconds time);
  /// Sends the reason of a failure to the neighbours.
  void tell(const std::string& reason) noexcept;
  /// Tells the neighbours that this rank ends without a failure.
  void say_goodbye() noexcept;

 private:
  struct Neighbour {
    int rank = 0;
    Socket socket;
  };

  std::string read_from(Neighbour& neighbour);
  void send(const std::string& line) noexcept;

  Neighbour next_, previous_;
};

}  // namespace tern::parallel
