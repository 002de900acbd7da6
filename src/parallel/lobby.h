#pragma once
#include <poll.h>

#include <span>
#include <string>
#include <vector>

#include "parallel/socket.h"

namespace tern::parallel {

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

}  // namespace tern::parallel
