#pragma once

// The threads that CPU kernels share (num_threads and set_num_threads are in backend/device.h).
namespace tern::backend {

/// Calls call(context, part) for each part in [0, parts), on this thread and on as many others as there are; returns when all are done.
/// The parts must not wait for one another: a part begins when a thread is free, and this thread takes all that no other has begun. Within
/// a part, and while another thread of the program is in run_parts, all parts run on this thread. `call` must not throw.
void run_parts(int parts, void (*call)(const void* context, int part), const void* context) noexcept;

/// The same for any callable as f(part).
template <class F>
void run_parts(int parts, const F& f) noexcept {
  run_parts(parts, [](const void* context, int part) { (*static_cast<const F*>(context))(part); }, &f);
}

}  // namespace tern::backend
