#include "compile/overview.h"

#include <fmt/format.h>

#include <algorithm>

#include "autodiff/anomaly.h"
#include "compile/groups.h"

namespace tern {

namespace {

std::string mebibytes(std::int64_t bytes) { return fmt::format("{:.3f} MiB", static_cast<double>(bytes) / (1 << 20)); }

/// "mul x3, tanh": names in the order of their first use, with how often.
std::string counted(const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, int>> counts;
  for (const std::string& name : names) {
    const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& x) { return x.first == name; });
    known == counts.end() ? void(counts.emplace_back(name, 1)) : void(++known->second);
  }
  std::string text;
  for (const auto& [name, count] : counts)
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", name, count > 1 ? fmt::format(" x{}", count) : "");
  return text;
}

}  // namespace

ProgramOverview compiler::Program::overview() const {
  constexpr const char* kinds[] = {"input", "outside", "constant", "kept", ""};
  ProgramOverview result;
  result.kernels = calls_.size();
  result.arena_bytes = static_cast<std::int64_t>(arena_bytes_);
  for (const Block& block : blocks_)
    result.blocks.push_back({kinds[static_cast<int>(block.kind)], static_cast<std::int64_t>(block.bytes),
                             static_cast<std::int64_t>(block.offset), block.is_used, block.first, block.last});
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    ProgramOverview::Group group;
    group.module = steps_[i].module;
    group.kernels = names_[i];
    group.is_product = steps_[i].kernels > 1;
    each_view(steps_[i], [&](const View& view, kernels::Access access, const Call::Place& place) {
      if (place.block == Call::Place::none) return;
      const auto known = std::find_if(group.operands.begin(), group.operands.end(),
                                      [&](const auto& x) { return x.block == place.block && x.offset == place.offset; });
      ProgramOverview::Operand& operand = known == group.operands.end() ? group.operands.emplace_back() : *known;
      operand.block = place.block;
      operand.offset = place.offset;
      if (const std::int64_t bytes = bytes_of(view); bytes > operand.bytes || operand.type.empty()) {
        operand.bytes = bytes;
        operand.type = fmt::format("{} {}", name(view.dtype), to_string(view.shape));
      }
      operand.is_read |= access != kernels::Access::write && !operand.is_written;
      operand.is_written |= access != kernels::Access::read;
    });
    result.groups.push_back(std::move(group));
  }
  return result;
}

std::int64_t ProgramOverview::alive_bytes() const {
  std::vector<std::int64_t> change(groups.size() + 1, 0);
  for (const Block& block : blocks)
    if (block.kind.empty() && block.is_used) change[block.first] += block.bytes, change[block.last + 1] -= block.bytes;
  std::int64_t alive = 0, most = 0;
  for (const std::int64_t by : change) most = std::max(most, alive += by);
  return most;
}

std::int64_t ProgramOverview::separate_bytes() const {
  std::int64_t sum = 0;
  for (const Block& block : blocks)
    if (block.kind.empty() && block.is_used) sum += block.bytes;
  return sum;
}

std::string ProgramOverview::groups_text() const {
  constexpr std::size_t max_listed = 12;
  std::string text;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const Group& group = groups[i];
    std::string read, written;
    std::int64_t bytes = 0;
    std::size_t listed = 0;
    for (const Operand& x : group.operands) {
      bytes += x.bytes * (int{x.is_read} + int{x.is_written});
      if (++listed > max_listed) continue;
      const std::string operand = fmt::format(" {}%{} {}", blocks[x.block].kind, x.block, x.type);
      if (x.is_read) read += operand;
      if (x.is_written) written += operand;
    }
    text += fmt::format("{:4} {:3} kernel{} {:>13}  {}:{} ->{}", i + 1, group.kernels.size(), group.kernels.size() == 1 ? " " : "s",
                        mebibytes(bytes), counted(group.kernels), read, written);
    if (listed > max_listed) text += fmt::format(" and {} more", listed - max_listed);
    if (!group.module.empty()) text += "  # " + group.module;
    text += '\n';
  }
  return text;
}

std::string ProgramOverview::memory_text() const {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (blocks[i].kind.empty() && blocks[i].is_used) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return blocks[a].first < blocks[b].first; });
  std::string text;
  for (const std::size_t i : order)
    text += fmt::format("%{:<6} {:>13} at {:>13}, groups {} to {}\n", i, mebibytes(blocks[i].bytes), mebibytes(blocks[i].offset),
                        blocks[i].first + 1, blocks[i].last + 1);
  return text + fmt::format("arena {}; in use at once {}; one by one {}\n", mebibytes(arena_bytes), mebibytes(alive_bytes()),
                            mebibytes(separate_bytes()));
}

}  // namespace tern

namespace tern::compiler {

std::string Program::text() const {
  constexpr const char* kinds[] = {"input", "outside", "constant", "kept", ""};
  std::string text;
  for (std::size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    text += fmt::format("{:4} {:<20} {:<16}", i + 1, detail::short_name(call.kernel->type()), call.op);
    each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
      if (place.block == Call::Place::none) return;
      constexpr const char* arrows[] = {"", "-> ", "<-> "};
      text += fmt::format(" {}{}%{} {}{}", arrows[static_cast<int>(access)], kinds[static_cast<int>(blocks_[place.block].kind)],
                          place.block, name(view.dtype), to_string(view.shape));
    });
    if (!call.module.empty()) text += "  # " + call.module;
    text += '\n';
  }
  return text;
}

}  // namespace tern::compiler
