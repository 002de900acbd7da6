#pragma once

// The threads that CPU kernels share (num_threads and set_num_threads are in backend/device.h).
namespace tern::backend {

/// Calls call(context, part) for each part in [0, parts), on this thread and on as many others as there are; returns when all are done.
/// The parts must not wait for one another: a part begins when a thread is free, and this thread takes all that no other has begun. Within
/// a part, where num_threads() is 1, and while another thread of the program is in run_parts, all parts run on this thread. `call` must not
/// throw. Parts are short, as those of a kernel are, or long: milliseconds and more, which a thread that comes late is still of use for.
void run_parts(int parts, void (*call)(const void* context, int part), const void* context, bool are_long = false) noexcept;

/// The same for any callable as f(part).
template <class F>
void run_parts(int parts, const F& f, bool are_long = false) noexcept {
  run_parts(parts, [](const void* context, int part) { (*static_cast<const F*>(context))(part); }, &f, are_long);
}

}  // namespace tern::backend
