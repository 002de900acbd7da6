#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "parallel/process_group.h"

namespace tern::parallel {

/// Thrown by a call of a CallQueue that cannot complete because another rank is gone; what() gives the reason.
struct CollectiveAborted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A thread that runs an engine's collectives one after the other, in the order of post(). A call may hang if another rank is gone. After
/// fail() nobody waits for it: the thread, and the tensors of the call, live until the call returns. The owner polls fault(), which gives
/// the reason of a call that was aborted, and then calls fail().
class CallQueue {
 public:
  /// `where` is for messages: "rank 0 of 2".
  explicit CallQueue(std::string where);
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  /// Queues a call that moves `bytes` bytes and owns all that it uses. Work::wait() rethrows its exception.
  Work post(const char* op, std::size_t bytes, std::function<void()> call);
  /// Starts no further call, and sets fault() to `reason` if it is empty.
  void abort(const std::string& reason);
  /// The reason of the first abort; "" if there was none.
  std::string fault() const;
  /// Starts no further call, and gives the running one `patience` to end. Then all waits, and later posts, throw Error with the message
  /// "[parallel] OP on WHERE failed: REASON", where OP is the first call that failed.
  void fail(const std::string& reason, std::chrono::milliseconds patience);
  /// Waits until all calls have ended or fail() was called.
  void finish();

 private:
  struct Call;
  struct State;
  class CallWork;

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace tern::parallel
