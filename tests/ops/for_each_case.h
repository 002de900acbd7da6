#pragma once
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "backend/memory.h"
#include "catch.h"
#include "op_cases.h"

namespace tern::op_cases {

/// Calls f(row, case, dtype) for every case of the table in each of its dtypes on the device, and says which one threw.
template <class F>
void for_each_case(F f, Device device = cpu) {
  for (const Row& row : table()) {
    for (std::size_t i = 0; i < row.cases.size(); ++i) {
      const Case& op = row.cases[i];
      for (DType dtype : dtypes_of(row, op, device)) {
        const std::string what = describe(row, op, i, dtype);
        INFO(what);
        try {
          f(row, op, dtype);
        } catch (const std::exception& error) {
          FAIL_CHECK("threw " << error.what());
        }
      }
    }
  }
}

/// Fills memory past the bytes that were asked for, and sees when it is freed whether that has changed. On the CPU all is filled, with NaN,
/// so that nothing can be read that was not written.
class GuardedMemory : public backend::MemoryObserver {
 public:
  explicit GuardedMemory(Device device = cpu) : device_(device) { observe(this); }
  ~GuardedMemory() override { observe(nullptr); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  void on_begin(const backend::MemoryStatistics&) noexcept override {}
  void on_memory(const backend::MemoryEvent& event) noexcept override {
    auto* const bytes = static_cast<unsigned char*>(const_cast<void*>(event.address));
    if (event.action == backend::MemoryAction::alloc) {
      const std::size_t first = device_ == cpu ? 0 : event.requested;
      const std::vector<unsigned char> filling(event.bytes - first, guard);
      with_backend(device_, [&](auto dev) { backend::copy_from_host(dev, bytes + first, filling.data(), filling.size(), event.stream); });
      guarded_[bytes] = event.requested;
    } else if (event.action == backend::MemoryAction::free && guarded_.contains(bytes)) {
      const std::size_t first = guarded_.extract(bytes).mapped();
      std::vector<unsigned char> found(event.bytes - first);
      with_backend(device_, [&](auto dev) { backend::copy_to_host(dev, found.data(), bytes + first, found.size(), event.stream); });
      overruns_ += std::ssize(found) - std::count(found.begin(), found.end(), guard);
    }
  }
  /// Bytes that were written past the end of what was freed since the last call.
  std::ptrdiff_t overruns() { return std::exchange(overruns_, 0); }

 private:
  static constexpr unsigned char guard = 0xff;
  void observe(MemoryObserver* observer) {
    with_backend(device_, [&](auto dev) { backend::observe_memory(dev, device_, observer); });
  }

  Device device_;
  std::unordered_map<const void*, std::size_t> guarded_;  ///< bytes asked for; of what was allocated here alone
  std::ptrdiff_t overruns_ = 0;
};

}  // namespace tern::op_cases
