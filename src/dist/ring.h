#pragma once
#include <chrono>
#include <string>

#include "dist/launch_environment.h"
#include "dist/socket.h"

namespace tern::dist {

/// Connections between neighbours, each rank with the next and the last with the first, over which nothing is said until a rank ends: how
/// all learn of one that dies where the engine itself would wait for it. A rank that leaves says goodbye; one that is told of a failure
/// passes it on.
class Ring {
 public:
  /// Of two ranks or more. Throws Error where a neighbour does not come in time.
  Ring(const LaunchEnvironment& environment, Store& store, std::chrono::milliseconds timeout);

  /// Waits up to `time` for news. Says why the others should be given up, "" for no reason.
  std::string wait(std::chrono::milliseconds time);
  /// Tells the neighbours why this rank gives up.
  void tell(const std::string& reason) noexcept;
  void say_goodbye() noexcept;

 private:
  struct Neighbour {
    int rank = 0;
    Socket socket;
  };

  std::string news_of(Neighbour& neighbour);
  void send(const std::string& line) noexcept;

  Neighbour next_, previous_;
};

}  // namespace tern::dist
