#pragma once
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "autodiff/anomaly.h"
#include "profile/profile.h"

namespace tern::profile {

/// Numbers for the modules that ran under profilers, each with its parent. All profilers and threads that live at a time share a table, so
/// that a node keeps its module when another thread runs its gradient. Number 0 is the outside of all modules.
class ModuleTable {
 public:
  struct Entry {
    const void* module;
    const char* type;
    std::uint32_t outer;  ///< number of the parent
    bool operator==(const Entry&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Entry& entry) const;
  };

  /// The table of the profilers that live now, or a new one.
  static std::shared_ptr<ModuleTable> in_use();
  ModuleTable() : entries_{{nullptr, "", 0}} {}

  std::uint32_t number_of(Entry entry);
  /// The path and type of a module. If it has no name, the path consists of the types of its parents. A number that this table lacks, as a
  /// node of an earlier profile may have, counts as outside any module.
  ModulePath describe(std::uint32_t number, const ModuleNames& names) const;

 private:
  mutable std::mutex mutex_;
  std::vector<Entry> entries_;  ///< by number; parents come first
  std::unordered_map<Entry, std::uint32_t, Hash> numbers_;
};

}  // namespace tern::profile
