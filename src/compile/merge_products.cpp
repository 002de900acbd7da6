#include <algorithm>
#include <bit>
#include <map>
#include <optional>

#include "compile/rewrite.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "tensor/sizes.h"

namespace tern::compiler {

namespace {

constexpr std::size_t none = Call::Place::none;
constexpr std::int64_t max_rows = 256;  ///< of a product; with more it is not much slower alone, and memory would be kept for longer

/// Bytes of an operand of all parts, which should be in the second level of cache when they are read.
std::int64_t max_bytes(bool is_gpu) { return is_gpu ? std::int64_t{16} << 20 : std::int64_t{512} << 10; }

/// The dimension of each view in which a product grows when others are added to it; -1 for a view that they share.
using Growth = std::vector<int>;

/// An operand or a result of a call.
struct Operand {
  View view;  ///< whose address is its offset in the block
  kernels::Access access;
  std::size_t block;
};

std::vector<Operand> operands_in(const Call& call) {
  std::vector<Operand> all;
  each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
    all.push_back({window_of(view, place), access, place.block});
  });
  return all;
}
std::int64_t offset_of(const Operand& x) { return reinterpret_cast<std::intptr_t>(x.view.data); }
/// Bytes from one part to the next of a matrix that grows in a dimension.
std::int64_t bytes_along(const View& x, int dim) { return x.shape[dim] * x.strides[dim] * static_cast<std::int64_t>(size_of(x.dtype)); }

/// The number of bytes from each operand to the next; nothing if they are no views of one kind at even distances.
std::optional<std::int64_t> distance_of(const std::vector<Operand>& all) {
  const std::int64_t distance = offset_of(all[1]) - offset_of(all[0]);
  for (std::size_t i = 1; i < all.size(); ++i)
    if (all[i].block != all[0].block || all[i].view.strides != all[0].view.strides || offset_of(all[i]) - offset_of(all[i - 1]) != distance)
      return std::nullopt;
  return distance;
}

/// Strides of a matrix whose lines lie one after the other in a dimension.
Strides packed(const Shape& shape, int dim) {
  Strides strides{1, 1};
  strides[dim] = shape[1 - dim];
  return strides;
}

/// Blocks that come to lie side by side.
class Neighbours {
 public:
  explicit Neighbours(std::size_t blocks) : next_(blocks, none), previous_(blocks, none) {}
  /// Makes blocks of one size follow each other; false, without effect, if others are beside them.
  bool join(const std::vector<std::size_t>& blocks) {
    const std::size_t before = joined_.size();
    for (std::size_t i = 1; i < blocks.size(); ++i) {
      const std::size_t left = blocks[i - 1], right = blocks[i];
      if (next_[left] == right) continue;
      std::size_t first = left;
      while (previous_[first] != none) first = previous_[first];
      if (next_[left] != none || previous_[right] != none || first == right) return undo(before), false;
      next_[left] = right, previous_[right] = left;
      joined_.push_back(left);
    }
    return true;
  }
  std::size_t count() const { return joined_.size(); }
  /// Takes all blocks apart that were joined after so many.
  void undo(std::size_t count) {
    for (; joined_.size() > count; joined_.pop_back()) previous_[std::exchange(next_[joined_.back()], none)] = none;
  }
  bool is_first(std::size_t block) const { return previous_[block] == none && next_[block] != none; }
  std::size_t next(std::size_t block) const { return next_[block]; }

 private:
  std::vector<std::size_t> next_, previous_, joined_;
};

class Merger {
 public:
  Merger(std::vector<Call>& calls, std::vector<Block>& blocks, bool is_gpu)
      : calls_(calls), blocks_(blocks), is_gpu_(is_gpu), neighbours_(blocks.size()) {}

  void run() {
    std::map<std::vector<std::int64_t>, std::vector<std::size_t>> kinds;
    for (const bool is_sum : {false, true})
      for (std::size_t i = 0; i < calls_.size(); ++i)
        if (const Growth growth = growth_of(calls_[i], is_sum); !growth.empty()) kinds[key_of(calls_[i], growth, is_sum)].push_back(i);
    std::erase_if(kinds, [](const auto& kind) { return kind.second.size() < 2; });
    if (kinds.empty()) return;
    before_ = dependences(calls_, blocks_);
    for (std::size_t i = 0; i < calls_.size(); ++i) parts_.push_back({i}), node_of_.push_back(i);
    rank();
    for (auto& [key, kind] : kinds) merge(std::move(kind), key[0] != 0);
    if (!merged_.empty()) rewrite();
  }

 private:
  /// A product of several.
  struct Merged {
    std::vector<std::size_t> parts;  ///< calls, in the order in which they lie side by side
    Growth growth;
    std::vector<bool> is_copied;  ///< for each view: the operands are not side by side
    std::size_t first = 0;        ///< the part that runs first
  };

  /// Of a node: it is of the run, or it depends on none of the run.
  enum class Mark : std::uint8_t { unknown, of_run, apart };

  /// How a product grows, by rows of its result or by its depth; empty if it does not.
  Growth growth_of(const Call& call, bool is_sum) const {
    const auto* const product = call.kernel->as<kernels::Matmul>();
    Growth growth;
    if (product && product->c.dims() == 2 && product->write == Write::overwrite && !is_sum) growth = {0, -1, 0};
    else if (product && product->c.dims() == 2 && is_sum) growth = {1, 0, -1};
    else if (call.kernel->as<kernels::Linear>() && !is_sum) growth = {0, -1, -1, 0};
    else if (call.kernel->as<kernels::ColumnSums>() && is_sum) growth = {0, -1};
    const std::vector<Operand> operands = operands_in(call);
    for (std::size_t k = 0; k < growth.size(); ++k) {
      const Operand& x = operands[k];
      if (growth[k] >= 0 && (numel(x.view.shape) == 0 || x.view.shape[growth[k]] > max_rows ||
                             (x.access != kernels::Access::read && !is_whole(x, growth[k]))))
        return {};
      for (const Operand& other : operands)
        if (x.access != kernels::Access::read && &other != &x && other.block == x.block) return {};
    }
    return growth;
  }
  /// True if a matrix is all of a block that can be elsewhere.
  bool is_whole(const Operand& x, int dim) const {
    return x.block != none && blocks_[x.block].kind == Block::Kind::inner && offset_of(x) == 0 && x.view.strides[1 - dim] == 1 &&
           x.view.strides[dim] == x.view.shape[1 - dim] && bytes_along(x.view, dim) == static_cast<std::int64_t>(blocks_[x.block].bytes);
  }
  /// Equal for products that may be one: those of one weight, and those that are added to one sum.
  static std::vector<std::int64_t> key_of(const Call& call, const Growth& growth, bool is_sum) {
    const auto* const product = call.kernel->as<kernels::Matmul>();
    std::vector<std::int64_t> key{is_sum, -static_cast<std::int64_t>(growth.size()),
                                  std::bit_cast<std::int64_t>(product ? product->alpha : 1.0),
                                  static_cast<std::int64_t>(call.ways.matmul_precision)};
    const std::vector<Operand> operands = operands_in(call);
    for (std::size_t k = 0; k < growth.size(); ++k) {
      const View& x = operands[k].view;
      key.push_back(static_cast<std::int64_t>(x.dtype));
      key.insert(key.end(), x.shape.begin(), x.shape.end());
      if (growth[k] >= 0) continue;
      key.insert(key.end(), x.strides.begin(), x.strides.end());
      key.insert(key.end(), {static_cast<std::int64_t>(operands[k].block), offset_of(operands[k])});
    }
    return key;
  }

  void rank() {
    rank_.assign(calls_.size(), 0);
    order_ = in_order(before_, node_of_);
    for (std::size_t i = 0; i < order_.size(); ++i) rank_[order_[i]] = i;
  }

  /// Makes one of products of a kind, as far as nothing that depends on some leads to others.
  void merge(std::vector<std::size_t> kind, bool is_sum) {
    std::sort(kind.begin(), kind.end(), [&](std::size_t a, std::size_t b) { return rank_[node_of_[a]] < rank_[node_of_[b]]; });
    const Growth growth = growth_of(calls_[kind[0]], is_sum);
    std::int64_t bytes = 1;  // of the largest operand
    for (std::size_t k = 0; k < growth.size(); ++k)
      if (growth[k] >= 0) bytes = std::max(bytes, bytes_of(operands_in(calls_[kind[0]])[k].view));
    const auto limit = static_cast<std::size_t>(std::max<std::int64_t>(max_bytes(is_gpu_) / bytes, 2));
    const std::size_t most = ceil_div(kind.size(), ceil_div(kind.size(), limit));  // runs of even sizes
    std::vector<std::vector<std::size_t>> runs;
    std::vector<Mark> marks(calls_.size());
    for (const std::size_t call : kind) {
      if (parts_[node_of_[call]].size() > 1) continue;  // it is in another product
      if (runs.empty() || runs.back().size() == most || (is_sum && !accumulates(call)) || leads_to(runs.back(), call, is_sum, marks)) {
        runs.emplace_back();
        marks.assign(calls_.size(), Mark::unknown);
      }
      runs.back().push_back(call);
      marks[node_of_[call]] = Mark::of_run;
    }
    bool is_merged = false;
    for (const std::vector<std::size_t>& run : runs) is_merged |= run.size() > 1 && place(run, is_sum);
    if (is_merged) rank();
  }
  bool accumulates(std::size_t call) const {
    const auto* const product = calls_[call].kernel->as<kernels::Matmul>();
    return (product ? product->write : calls_[call].kernel->as<kernels::ColumnSums>()->write) == Write::accumulate;
  }
  /// True if the call depends on one of the run by others, or itself if it is not added to the same sum. The run has lower ranks.
  bool leads_to(const std::vector<std::size_t>& run, std::size_t call, bool is_sum, std::vector<Mark>& marks) const {
    std::vector<std::size_t> next{node_of_[call]};
    while (!next.empty()) {
      const std::size_t node = next.back();
      next.pop_back();
      for (const std::size_t part : parts_[node])
        for (const std::size_t other : before_[part]) {
          const std::size_t from = node_of_[other];
          if (from == node || marks[from] == Mark::apart || rank_[from] < rank_[node_of_[run[0]]]) continue;
          if (marks[from] == Mark::of_run) {
            if (is_sum && node == node_of_[call]) continue;
            return true;
          }
          marks[from] = Mark::apart;
          next.push_back(from);
        }
    }
    return false;
  }

  /// Places the operands and results of a run side by side; false if results cannot be.
  bool place(const std::vector<std::size_t>& run, bool is_sum) {
    Merged merged{.parts = run, .growth = growth_of(calls_[run[0]], is_sum), .is_copied = {}, .first = run[0]};
    // In the order of x_t; the other order is tried, too, as other products may have placed some operands.
    const std::size_t growth_at = merged.growth[1] >= 0 ? 1 : 0;
    std::stable_sort(merged.parts.begin(), merged.parts.end(), [&](std::size_t a, std::size_t b) {
      const Call::Place &x = calls_[a].places[growth_at], &y = calls_[b].places[growth_at];
      return std::pair(x.block, x.offset) < std::pair(y.block, y.offset);
    });
    const std::size_t before = neighbours_.count();
    const auto copies = [&](const Merged& x) { return std::count(x.is_copied.begin(), x.is_copied.end(), true); };
    std::optional<Merged> best;
    for (int i = 0; i < 2; ++i, std::reverse(merged.parts.begin(), merged.parts.end())) {
      if (join(merged) && (!best || copies(merged) < copies(*best))) best = merged;
      neighbours_.undo(before);
    }
    if (!best) return false;
    join(*best);
    for (const std::size_t call : run) node_of_[call] = run[0];
    parts_[run[0]] = run;
    merged_[run[0]] = std::move(*best);
    return true;
  }
  /// An operand of each part.
  std::vector<Operand> operands_of(const Merged& merged, std::size_t k) const {
    std::vector<Operand> all;
    for (const std::size_t part : merged.parts) all.push_back(operands_in(calls_[part])[k]);
    return all;
  }
  /// Joins the blocks of a product's operands, as far as they can be; false if results cannot.
  bool join(Merged& merged) {
    merged.is_copied.assign(merged.growth.size(), false);
    for (std::size_t k = 0; k < merged.growth.size(); ++k) {
      if (merged.growth[k] < 0) continue;
      const int dim = merged.growth[k];
      const std::vector<Operand> all = operands_of(merged, k);
      if (all[0].view.strides[1 - dim] == 1 && distance_of(all) == bytes_along(all[0].view, dim)) continue;  // they are already
      std::vector<std::size_t> blocks;
      for (const Operand& x : all)
        if (is_whole(x, dim)) blocks.push_back(x.block);
      merged.is_copied[k] = blocks.size() < all.size() || !neighbours_.join(blocks);
      if (merged.is_copied[k] && all[0].access != kernels::Access::read) return false;
    }
    return true;
  }
  void rewrite() {
    const std::size_t count = blocks_.size();
    std::vector<Call::Place> moved(count);
    for (std::size_t first = 0; first < count; ++first) {
      if (!neighbours_.is_first(first)) continue;
      std::size_t bytes = 0;
      for (std::size_t block = first; block != none; block = neighbours_.next(block)) {
        moved[block] = {blocks_.size(), static_cast<std::int64_t>(bytes)};
        bytes += blocks_[block].bytes;
      }
      blocks_.push_back({.kind = Block::Kind::inner, .memory = nullptr, .bytes = bytes});
    }
    for (Call& call : calls_)
      for (Call::Place& place : call.places)
        if (place.block < count && moved[place.block].block != none)
          place = {moved[place.block].block, moved[place.block].offset + place.offset};
    for (const std::size_t node : order_)
      if (const auto merged = merged_.find(node); merged != merged_.end()) write(merged->second);
      else add(std::move(calls_[node]));
    calls_ = std::move(written_);
  }
  void add(Call call) {
    each_view(call, [&](const View&, kernels::Access access, const Call::Place& place) {
      if (access != kernels::Access::read)
        std::erase_if(copies_, [&](const auto& copy) { return copy.first[0] == static_cast<std::int64_t>(place.block); });
    });
    written_.push_back(std::move(call));
  }
  /// Adds a product of several, with copies of its operands before it.
  void write(const Merged& merged) {
    const Call& first = calls_[merged.first];
    Call call{first.kernel->copy(), calls_[merged.parts[0]].places, first.op, first.module, first.ways, merged.parts.size()};
    struct Visit : KernelCall::Visitor {
      const Merged& merged;
      std::size_t k = 0;
      explicit Visit(const Merged& merged_) : merged(merged_) {}
      void view(View& view, kernels::Access) override {
        const int dim = merged.growth[k];
        if (merged.is_copied[k++]) view.strides = packed(view.shape, dim);
        if (dim >= 0) view.shape[dim] *= static_cast<std::int64_t>(merged.parts.size());
      }
    } visitor(merged);
    call.kernel->visit(visitor);
    for (std::size_t k = 0; k < merged.growth.size(); ++k)
      if (merged.is_copied[k]) call.places[k] = {copied(merged, k), 0};
    add(std::move(call));
  }
  /// The block of a copy of an operand's parts: an earlier one, or one that is added, by one kernel if the parts are at even distances.
  std::size_t copied(const Merged& merged, std::size_t k) {
    const int dim = merged.growth[k];
    const auto n = static_cast<std::int64_t>(merged.parts.size());
    const std::vector<Operand> from = operands_of(merged, k);
    View x = from[0].view, y = x;
    y.strides = packed(x.shape, dim);
    const std::int64_t bytes = bytes_along(y, dim);
    const std::optional<std::int64_t> distance = distance_of(from);
    const auto repeat = [&](View& view, std::int64_t by) {  // the dimension that grows first, so that the transpose has the same copy
      view.shape = {n, view.shape[dim], view.shape[1 - dim]};
      view.strides = {by / static_cast<std::int64_t>(size_of(x.dtype)), view.strides[dim], view.strides[1 - dim]};
    };
    if (distance) repeat(x, *distance), repeat(y, bytes);
    std::vector<std::int64_t> key{static_cast<std::int64_t>(from[0].block), offset_of(from[0]), static_cast<std::int64_t>(x.dtype)};
    key.insert(key.end(), x.shape.begin(), x.shape.end());
    key.insert(key.end(), x.strides.begin(), x.strides.end());
    if (const auto known = copies_.find(key); distance && known != copies_.end()) return known->second;
    const std::size_t block = blocks_.size();
    blocks_.push_back({.kind = Block::Kind::inner, .memory = nullptr, .bytes = static_cast<std::size_t>(n * bytes)});
    for (std::size_t i = 0; i < (distance ? 1 : from.size()); ++i) {
      const kernels::Copy copy{distance ? x : from[i].view, y};
      add({std::make_unique<detail::KernelCallOf<kernels::Copy>>(copy),
           {{from[i].block, offset_of(from[i])}, {block, static_cast<std::int64_t>(i) * bytes}},
           {},
           calls_[merged.first].module,
           calls_[merged.first].ways});
    }
    if (distance) copies_[key] = block;
    return block;
  }

  std::vector<Call>& calls_;
  std::vector<Block>& blocks_;
  bool is_gpu_;
  std::vector<std::vector<std::size_t>> before_;  ///< for each call those that it depends on
  std::vector<std::vector<std::size_t>> parts_;   ///< calls of each node, which is the first of them
  std::vector<std::size_t> node_of_;              ///< for each call
  std::vector<std::size_t> order_, rank_;         ///< nodes in their order, and their places there
  Neighbours neighbours_;
  std::map<std::size_t, Merged> merged_;                     ///< by their nodes
  std::vector<Call> written_;                                ///< the calls of the program
  std::map<std::vector<std::int64_t>, std::size_t> copies_;  ///< blocks with copies of operands that are as they were
};

}  // namespace

void merge_products(std::vector<Call>& calls, std::vector<Block>& blocks, bool is_gpu) { Merger(calls, blocks, is_gpu).run(); }

}  // namespace tern::compiler
