#pragma once
#include <concepts>
#include <cstdint>

namespace tern::parallel {

/// A time span, to and from std::chrono::milliseconds. Other durations of whole seconds or milliseconds convert to it:
/// `GroupOptions{.timeout = std::chrono::seconds(60)}`. It stands here because `<chrono>` would be 0.1 s of each file that includes tern.h.
class Milliseconds {
 public:
  /// So many milliseconds.
  explicit constexpr Milliseconds(std::int64_t count) : count_(count) {}
  /// A duration of std::chrono that is a whole number of milliseconds.
  template <template <class, class> class Duration, std::integral Count, class Period>
    requires(1000 * Period::num % Period::den == 0)
  constexpr Milliseconds(const Duration<Count, Period>& time)  // NOLINT(google-explicit-constructor): without a loss
      : count_(time.count() * (1000 * Period::num / Period::den)) {}
  /// std::chrono::milliseconds.
  template <class Duration>
    requires(Duration::period::num == 1 && Duration::period::den == 1000)
  constexpr operator Duration() const {  // NOLINT(google-explicit-constructor): without a loss
    return Duration(count_);
  }

  constexpr std::int64_t count() const { return count_; }  ///< number of milliseconds

 private:
  std::int64_t count_;
};

}  // namespace tern::parallel
