#pragma once
#include <chrono>
#include <string>

#include "parallel/launch_environment.h"
#include "parallel/socket.h"

namespace tern::parallel {

/// A ring of TCP connections, each rank with the next and the last with the first, by which ranks notice that another one has died while
/// the engine would wait for it. The connections are silent until a rank ends: it says goodbye, or its connections break. A reported
/// failure is passed on by tell().
class Ring {
 public:
  /// Connects a ring of two ranks or more. Throws Error if a neighbour does not connect within the timeout.
  Ring(const LaunchEnvironment& environment, Store& store, std::chrono::milliseconds timeout);

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
