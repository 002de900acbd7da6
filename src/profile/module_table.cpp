#include "profile/module_table.h"

namespace tern::profile {

std::size_t ModuleTable::Hash::operator()(const Entry& entry) const {
  const std::hash<const void*> hash;
  return hash(entry.module) * 31 + hash(entry.type) * 7 + entry.outer;
}

std::shared_ptr<ModuleTable> ModuleTable::in_use() {
  static std::mutex mutex;
  static std::weak_ptr<ModuleTable> last;
  const std::lock_guard lock(mutex);
  std::shared_ptr<ModuleTable> table = last.lock();
  if (!table) last = table = std::make_shared<ModuleTable>();
  return table;
}

std::uint32_t ModuleTable::number_of(Entry entry) {
  const std::lock_guard lock(mutex_);
  if (entry.outer >= entries_.size()) entry.outer = 0;  // the number is of another table
  const auto [place, is_new] = numbers_.try_emplace(entry, static_cast<std::uint32_t>(entries_.size()));
  if (is_new) entries_.push_back(entry);
  return place->second;
}

ModulePath ModuleTable::describe(std::uint32_t number, const ModuleNames& names) const {
  const std::lock_guard lock(mutex_);
  if (number == 0 || number >= entries_.size()) return {};
  std::string path;
  for (std::uint32_t at = number; at != 0; at = entries_[at].outer) {
    const std::string* const known = names.find(entries_[at].module);
    const bool is_known = known && !known->empty();
    path = (is_known ? *known : entries_[at].type) + (path.empty() ? "" : "." + path);
    if (is_known) break;
  }
  return {path, entries_[number].type};
}

}  // namespace tern::profile
