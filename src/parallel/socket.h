#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "backend/file.h"

namespace tern::parallel {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline deadline_in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }
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

}  // namespace tern::parallel
