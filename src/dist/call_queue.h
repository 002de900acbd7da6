#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "dist/process_group.h"

namespace tern::dist {

/// Thrown by a call of a CallQueue that cannot end, as another rank is gone: what() says why.
struct BrokenOff : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A thread that makes an engine's calls, each a collective, one after the other in the order of post(). A call may hang when another rank
/// is gone. After fail() nothing waits for it: the thread ends when the call returns, and holds what the call holds until then. The
/// queue alone knows why a call broke off, so the owner polls fault(), and calls fail().
class CallQueue {
 public:
  /// `where` stands in messages: "rank 0 of 2".
  explicit CallQueue(std::string where);
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  /// Queues a call that moves `bytes` bytes. It must own all that it needs. What it throws is thrown by Work::wait().
  Work post(const char* op, std::size_t bytes, std::function<void()> call);
  /// From now on no call begins: what fault() says is `reason`, unless a call has broken off before.
  void break_off(const std::string& reason);
  /// The reason of a call that has broken off; "" for none.
  std::string fault() const;
  /// From now on no call begins, and the one that runs has `patience` to end. Then waits, and later posts, throw an Error,
  /// "[dist] OP on WHERE failed: REASON", with the first one's OP.
  void fail(const std::string& reason, std::chrono::milliseconds patience);
  /// Waits until all calls have been made, or fail() was called.
  void finish();

 private:
  struct Call;
  struct State;
  class CallWork;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace tern::dist
