#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "autodiff/anomaly.h"
#include "profile/profile.h"

namespace tern::profile {

/// The modules that ran under profilers, each with the one around it. All profilers and threads of a moment share the numbers: so a node
/// that one thread recorded has its module where another runs its gradient. Number 0 is what lies outside any module.
class ModuleTable {
 public:
  struct Entry {
    const void* module;
    const char* type;
    std::uint32_t outer;  ///< the number of the module around it
    bool operator==(const Entry&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Entry& entry) const;
  };

  /// That of the profilers that live now, or a new one.
  static std::shared_ptr<ModuleTable> in_use();
  ModuleTable() : entries_{{nullptr, "", 0}} {}

  std::uint32_t number_of(Entry entry);
  /// Without a name, the path is of the types of the modules around it. A number of another table, which a node of an earlier profile may
  /// have, is outside any module if it is not in this one.
  ModulePath describe(std::uint32_t number, const ModuleNames& names) const;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  ///< one stands after those around it
  std::unordered_map<Entry, std::uint32_t, Hash> numbers_;
};

}  // namespace tern::profile
