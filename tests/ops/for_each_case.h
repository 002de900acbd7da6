#pragma once
#include <cstring>
#include <unordered_set>
#include <utility>

#include "backend/memory_observer.h"
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

/// Fills the CPU's memory with NaN when it is allocated, so that nothing can be read that was not written, and sees when it is freed
/// whether bytes past those that were asked for have changed.
class GuardedMemory : public backend::MemoryObserver {
 public:
  GuardedMemory() { backend::observe_memory(Cpu{}, cpu, this); }
  ~GuardedMemory() { backend::observe_memory(Cpu{}, cpu, nullptr); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  void on_begin(const backend::MemoryStatistics&) noexcept override {}
  void on_memory(const backend::MemoryEvent& event) noexcept override {
    auto* const bytes = static_cast<unsigned char*>(const_cast<void*>(event.address));
    if (event.action == backend::MemoryAction::alloc) {
      std::memset(bytes, guard, event.bytes);
      guarded_.insert(bytes);
    } else if (event.action == backend::MemoryAction::free && guarded_.erase(bytes) == 1) {
      for (std::size_t i = event.requested; i < event.bytes; ++i) overruns_ += bytes[i] != guard;
    }
  }
  /// Bytes that were written past the end of what was freed since the last call.
  int overruns() { return std::exchange(overruns_, 0); }

 private:
  static constexpr unsigned char guard = 0xff;
  std::unordered_set<const void*> guarded_;  ///< what was filled here; memory that is older was not
  int overruns_ = 0;
};

}  // namespace tern::op_cases
