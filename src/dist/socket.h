#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "backend/file_descriptor.h"

namespace tern::dist {

using Deadline = std::chrono::steady_clock::time_point;
inline Deadline deadline_in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }
inline bool has_passed(Deadline deadline) { return std::chrono::steady_clock::now() >= deadline; }
/// The timeout of a poll() that ends at the deadline, in milliseconds, rounded up; 0 where it has passed.
int poll_timeout(Deadline deadline);

/// A TCP socket. Calls that are interrupted go on; a deadline that passes, an end of the connection and other faults are Errors that name
/// the peer.
class Socket {
 public:
  Socket() = default;

  /// On an address of this machine; any free port for 0.
  static Socket listen(const std::string& host, std::uint16_t port);
  /// Tries again until something listens there.
  static Socket connect(const std::string& host, std::uint16_t port, Deadline deadline);
  static Socket adopt(int fd, std::string peer) { return {fd, std::move(peer)}; }
  /// Of a listening socket, once poll() reports a connection.
  Socket accept() const;

  void send(const std::string& bytes, Deadline deadline);
  std::string receive(std::size_t count, Deadline deadline);

  bool is_open() const { return fd_.is_open(); }
  int fd() const { return fd_.get(); }
  std::uint16_t port() const;   ///< of this side
  std::string address() const;  ///< of this side, without the port
  void close() noexcept { fd_.close(); }

 private:
  Socket(int fd, std::string peer) : fd_(fd), peer_(std::move(peer)) {}
  void wait(short events, Deadline deadline) const;
  [[noreturn]] void fail(const std::string& what) const;

  backend::FileDescriptor fd_;
  std::string peer_;
};

/// The address of this machine from which another one is reached. Sends nothing.
std::string address_towards(const std::string& host);

}  // namespace tern::dist
