#include "parallel/call_queue.h"

#include <fmt/format.h>

#include <condition_variable>
#include <csignal>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "backend/error.h"
#include "backend/observer.h"

namespace tern::parallel {

using namespace std::chrono_literals;

struct CallQueue::Call {
  const char* op;
  std::size_t bytes;
  std::function<void()> run;
  std::int64_t began_ns = 0, ended_ns = 0;
  std::exception_ptr error;
  bool is_done = false;
};

/// Shared by the thread, the Works and the queue, as any of them may live longest.
struct CallQueue::State {
  explicit State(std::string where_) : where(std::move(where_)) {}

  void run() {
    // A write to a connection that a peer has closed has to give EPIPE and not SIGPIPE, also on threads that an engine starts from here.
    sigset_t broken_pipe;
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, nullptr);

    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return is_stopped || is_ending || !calls.empty(); });
      if (is_stopped || calls.empty()) break;
      const std::shared_ptr<Call> call = calls.front();
      is_running = true;
      lock.unlock();
      std::exception_ptr error;
      std::string aborted;
      call->began_ns = backend::steady_ns();
      try {
        call->run();
      } catch (const CollectiveAborted& reason) {
        aborted = reason.what();
      } catch (...) {
        error = std::current_exception();
      }
      call->ended_ns = backend::steady_ns();
      call->run = nullptr;  // releases its tensors before the caller continues, which may check that they are not shared
      lock.lock();
      is_running = false;
      if (!aborted.empty()) stop(aborted);
      else if (!call->is_done) calls.pop_front(), complete(*call, error);
      changed.notify_all();
    }
    has_ended = true;
    changed.notify_all();
  }

  void stop(const std::string& reason) {
    if (fault.empty()) fault = reason;
    is_stopped = true;
    changed.notify_all();
  }

  void complete(Call& call, std::exception_ptr error) {
    call.error = std::move(error);
    call.is_done = true;
  }

  /// Completes a call that will not run, with the error.
  void refuse(Call& call) {
    if (message.empty()) message = fmt::format("[parallel] {} on {} failed: {}", call.op, where, fault);
    complete(call, std::make_exception_ptr(Error(message)));
  }

  const std::string where;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::shared_ptr<Call>> calls;  ///< the first one may be running
  std::string fault, message;
  bool is_running = false;
  bool is_stopped = false;  ///< no further call starts
  bool has_failed = false;  ///< fail() was called
  bool is_ending = false, has_ended = false;
};

class CallQueue::CallWork final : public Work::State {
 public:
  CallWork(std::shared_ptr<CallQueue::State> queue, std::shared_ptr<Call> call) : queue_(std::move(queue)), call_(std::move(call)) {}
  void wait() override {
    const std::int64_t began = backend::steady_ns();
    {
      std::unique_lock lock(queue_->mutex);
      queue_->changed.wait(lock, [this] { return call_->is_done; });
    }
    if (call_->error) std::rethrow_exception(call_->error);
    backend::tell([&](backend::Observer& told) {
      told.end_collective(call_->op, call_->began_ns, call_->ended_ns, backend::steady_ns() - began, static_cast<double>(call_->bytes));
    });
  }
  bool is_done() override {
    const std::lock_guard lock(queue_->mutex);
    return call_->is_done;
  }

 private:
  std::shared_ptr<CallQueue::State> queue_;
  std::shared_ptr<Call> call_;
};

CallQueue::CallQueue(std::string where) : state_(std::make_shared<State>(std::move(where))) {
  thread_ = std::thread([state = state_] { state->run(); });
}

CallQueue::~CallQueue() {
  finish();
  std::unique_lock lock(state_->mutex);
  // A call that outlived the patience of fail() may end now that the connections are closed.
  if (state_->changed.wait_for(lock, 200ms, [this] { return state_->has_ended; })) {
    lock.unlock();
    thread_.join();
  } else {
    thread_.detach();
  }
}

Work CallQueue::post(const char* op, std::size_t bytes, std::function<void()> call) {
  auto posted = std::make_shared<Call>(Call{op, bytes, std::move(call)});
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->has_failed) state_->refuse(*posted);
    else state_->calls.push_back(posted);
  }
  state_->changed.notify_all();
  return Work(std::make_unique<CallWork>(state_, std::move(posted)));
}

void CallQueue::abort(const std::string& reason) {
  const std::lock_guard lock(state_->mutex);
  state_->stop(reason);
}

std::string CallQueue::fault() const {
  const std::lock_guard lock(state_->mutex);
  return state_->fault;
}

void CallQueue::fail(const std::string& reason, std::chrono::milliseconds patience) {
  std::unique_lock lock(state_->mutex);
  state_->is_stopped = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, patience, [this] { return !state_->is_running; });
  if (std::exchange(state_->has_failed, true)) return;
  state_->fault = reason;
  for (const std::shared_ptr<Call>& call : state_->calls) state_->refuse(*call);
  state_->calls.clear();
  state_->changed.notify_all();
}

void CallQueue::finish() {
  std::unique_lock lock(state_->mutex);
  state_->is_ending = true;
  state_->changed.notify_all();
  state_->changed.wait(lock, [this] { return state_->has_ended || state_->has_failed; });
}

}  // namespace tern::parallel
