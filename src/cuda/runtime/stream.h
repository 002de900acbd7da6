#pragma once
#include "cuda/runtime/launch.h"

namespace tern::gpu {

/// A stream of its own, which does not wait for the default stream. Its memory pool stays when it goes.
class OwnedStream {
 public:
  explicit OwnedStream(Device device) {
    stream_.device = device;
    use(stream_);
    cudaStream_t created = nullptr;
    check(cudaStreamCreateWithFlags(&created, cudaStreamNonBlocking), "cudaStreamCreate");
    stream_.handle = created;
  }
  ~OwnedStream() { cudaStreamDestroy(handle(stream_)); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;

  Stream get() const { return stream_; }

 private:
  Stream stream_;
};

/// A point in a stream that another stream, or the host, can wait for.
class Event {
 public:
  /// Marks the work queued on the stream so far.
  explicit Event(Stream stream) {
    use(stream);
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
    if (const cudaError_t code = cudaEventRecord(event_, handle(stream)); code != cudaSuccess) {
      cudaEventDestroy(event_);
      fail_call(code, "cudaEventRecord");
    }
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  /// Work queued on the stream from now on waits for the mark.
  void delay(Stream stream) const {
    use(stream);
    check(cudaStreamWaitEvent(handle(stream), event_, 0), "cudaStreamWaitEvent");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A point in a stream with the time at which the device reached it.
class TimedEvent {
 public:
  explicit TimedEvent(Stream stream) {
    use(stream);
    check(cudaEventCreate(&event_), "cudaEventCreate");
    if (const cudaError_t code = cudaEventRecord(event_, handle(stream)); code != cudaSuccess) {
      cudaEventDestroy(event_);
      fail_call(code, "cudaEventRecord");
    }
  }
  ~TimedEvent() { cudaEventDestroy(event_); }
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;

  /// Waits for this point.
  double microseconds_since(const TimedEvent& earlier) const {
    float milliseconds = 0;
    check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    check(cudaEventElapsedTime(&milliseconds, earlier.event_, event_), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) * 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace tern::gpu
