#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <set>

#include "compile/rewrite.h"

namespace tern::compiler {

namespace {

constexpr std::int64_t least_gain = std::int64_t{256} << 10;  ///< bytes; less is in the cache
constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max() / 4;

/// Maximum flow from node 0 to node 1 by shortest paths.
class Flow {
 public:
  int add_node() {
    edges_.emplace_back();
    return static_cast<int>(edges_.size()) - 1;
  }
  void add_edge(int from, int to, std::int64_t capacity) {
    edges_[static_cast<std::size_t>(from)].push_back({to, capacity, edges_[static_cast<std::size_t>(to)].size()});
    edges_[static_cast<std::size_t>(to)].push_back({from, 0, edges_[static_cast<std::size_t>(from)].size() - 1});
  }
  /// Its size; afterwards is_before() tells the nodes before the first of the minimum cuts.
  std::int64_t maximum() {
    std::int64_t total = 0;
    while (find_path()) {
      std::int64_t least = unlimited;
      for (int node = 1; node != 0; node = reached_[static_cast<std::size_t>(node)].first) least = std::min(least, edge_to(node).capacity);
      for (int node = 1; node != 0; node = reached_[static_cast<std::size_t>(node)].first) {
        Edge& edge = edge_to(node);
        edge.capacity -= least;
        edges_[static_cast<std::size_t>(node)][edge.reverse].capacity += least;
      }
      total += least;
    }
    return total;
  }
  bool is_before(int node) const { return reached_[static_cast<std::size_t>(node)].first >= 0; }

 private:
  struct Edge {
    int to;
    std::int64_t capacity;
    std::size_t reverse;
  };
  Edge& edge_to(int node) {
    const auto& [from, index] = reached_[static_cast<std::size_t>(node)];
    return edges_[static_cast<std::size_t>(from)][index];
  }
  bool find_path() {
    reached_.assign(edges_.size(), {-1, 0});
    reached_[0] = {0, 0};
    std::deque<int> next{0};
    while (!next.empty()) {
      const int node = next.front();
      next.pop_front();
      const auto& edges = edges_[static_cast<std::size_t>(node)];
      for (std::size_t i = 0; i < edges.size(); ++i)
        if (edges[i].capacity > 0 && !is_before(edges[i].to)) {
          reached_[static_cast<std::size_t>(edges[i].to)] = {node, i};
          next.push_back(edges[i].to);
        }
    }
    return is_before(1);
  }

  std::vector<std::vector<Edge>> edges_{2};
  std::vector<std::pair<int, std::size_t>> reached_;  ///< for each node the one before it, or -1, and the edge there
};

class Recomputer {
 public:
  Recomputer(std::vector<Group>& groups, std::vector<Call>& calls, std::vector<Block>& blocks, bool is_gpu)
      : is_gpu_(is_gpu), groups_(groups), calls_(calls), blocks_(blocks), uses_(blocks.size()) {
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (const std::size_t call : groups[g].all_calls())
        each_view(calls[call], [&](const View&, kernels::Access access, const Call::Place& place) {
          if (place.block == Call::Place::none) return;
          if (access == kernels::Access::read) uses_[place.block].readers.insert(g);
          else uses_[place.block].writers.push_back({g, call, access == kernels::Access::update});
        });
  }

  void run() {
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      if (!is_open(g)) continue;
      std::map<std::size_t, std::set<std::size_t>> values;  // that the group reads, of each group
      for (const Use& use : groups_[g].uses)
        if (const Writer* const writer = writer_of(use.block); writer && !use.is_written && writer->group < g && is_open(writer->group))
          values[writer->group].insert(use.block);
      for (const auto& [from, blocks] : values) recompute(from, g, blocks);
    }
  }

 private:
  struct Writer {
    std::size_t group, call;
    bool updates;
  };
  struct BlockUses {
    std::vector<Writer> writers;
    std::set<std::size_t> readers;  ///< groups
  };
  /// Nodes of a value in the flow, between which its capacity is.
  struct Node {
    int in, out;
  };

  bool is_open(std::size_t group) const {
    return groups_[group].is_open && groups_[group].same.empty() && (is_gpu_ || runs_in_chunks(groups_[group]));
  }
  /// The only call that writes a block which the program makes; null if there is none.
  const Writer* writer_of(std::size_t block) const {
    const bool is_made = blocks_[block].kind == Block::Kind::inner || blocks_[block].kind == Block::Kind::kept;
    const std::vector<Writer>& writers = uses_[block].writers;
    return is_made && writers.size() == 1 && !writers[0].updates ? writers.data() : nullptr;
  }
  /// True if nothing writes the block from a group to a later one.
  bool stays(std::size_t block, std::size_t from, std::size_t to) const {
    return std::none_of(uses_[block].writers.begin(), uses_[block].writers.end(),
                        [&](const Writer& writer) { return writer.group >= from && writer.group <= to; });
  }
  /// Bytes that it costs to have the group `to` read a value of `from`: twice, if nobody else needs it in memory.
  std::int64_t cost_of(std::size_t block, const View& view, std::size_t from, std::size_t to) const {
    const std::set<std::size_t>& readers = uses_[block].readers;
    const bool is_for_this = blocks_[block].kind == Block::Kind::inner &&
                             std::all_of(readers.begin(), readers.end(), [&](std::size_t g) { return g == from || g == to; });
    return bytes_of(view) * (is_for_this ? 2 : 1);
  }
  bool reads(std::size_t group, std::size_t block) const {
    return std::any_of(groups_[group].uses.begin(), groups_[group].uses.end(), [&](const Use& use) { return use.block == block; });
  }

  /// Adds the node of a value that `to` reads, or needs to compute one, with those that it is computed from.
  Node add_value(Flow& flow, std::map<std::size_t, Node>& nodes, std::size_t block, const View& view, std::size_t from, std::size_t to) {
    if (const auto known = nodes.find(block); known != nodes.end()) return known->second;
    const Node node{flow.add_node(), flow.add_node()};
    nodes[block] = node;
    const Writer* const writer = writer_of(block);
    if (!writer || writer->group != from) {  // an operand of the group
      flow.add_edge(0, node.in, unlimited);
      flow.add_edge(node.in, node.out, !stays(block, from, to) ? unlimited : reads(to, block) ? 0 : bytes_of(view));
      return node;
    }
    flow.add_edge(node.in, node.out, cost_of(block, view, from, to));
    each_view(calls_[writer->call], [&](const View& operand, kernels::Access access, const Call::Place& place) {
      if (place.block == Call::Place::none || access != kernels::Access::read) return;
      flow.add_edge(add_value(flow, nodes, place.block, operand, from, to).out, node.in, unlimited);
    });
    return node;
  }

  /// Makes group `to` compute again what it reads of the values of group `from`, if that pays.
  void recompute(std::size_t from, std::size_t to, const std::set<std::size_t>& values) {
    Flow flow;
    std::map<std::size_t, Node> nodes;
    std::int64_t before = 0;
    for (const std::size_t value : values) {
      const View* view = nullptr;
      each_view(calls_[writer_of(value)->call], [&](const View& v, kernels::Access, const Call::Place& place) {
        if (place.block == value) view = &v;
      });
      const Node node = add_value(flow, nodes, value, *view, from, to);
      flow.add_edge(node.out, 1, unlimited);
      before += cost_of(value, *view, from, to);
    }
    const std::int64_t after = flow.maximum();
    if (before - after < least_gain) return;
    std::set<std::size_t> chosen;  // calls behind the cut
    const auto choose = [&](const auto& self, std::size_t block) -> void {
      const Node node = nodes.at(block);
      const Writer* const writer = writer_of(block);
      const bool is_read = flow.is_before(node.in) && !flow.is_before(node.out);
      if (is_read || !writer || writer->group != from || !chosen.insert(writer->call).second) return;
      each_view(calls_[writer->call], [&](const View&, kernels::Access access, const Call::Place& place) {
        if (place.block != Call::Place::none && access == kernels::Access::read) self(self, place.block);
      });
    };
    for (const std::size_t value : values) choose(choose, value);
    if (!chosen.empty()) join(from, to, chosen);
  }

  /// Joins copies of the calls, which write blocks of their own, to the group, whose calls read those.
  void join(std::size_t from, std::size_t to, const std::set<std::size_t>& chosen) {
    const std::size_t first_call = calls_.size(), first_block = blocks_.size();
    std::map<std::size_t, std::size_t> own;
    std::vector<std::size_t> added;
    const auto renamed = [&](std::vector<Call::Place> places) {
      for (Call::Place& place : places)
        if (const auto found = own.find(place.block); found != own.end()) place.block = found->second;
      return places;
    };
    for (const std::size_t call : chosen) {
      each_view(calls_[call], [&](const View&, kernels::Access access, const Call::Place& place) {
        if (place.block == Call::Place::none || access == kernels::Access::read) return;
        own[place.block] = blocks_.size();
        blocks_.push_back({.kind = Block::Kind::inner, .memory = nullptr, .bytes = blocks_[place.block].bytes});
      });
      added.push_back(calls_.size());
      calls_.push_back(
          {calls_[call].kernel->copy(), renamed(calls_[call].places), calls_[call].op, calls_[call].module, calls_[call].ways});
    }
    std::map<std::size_t, std::vector<Call::Place>> places;
    for (const std::size_t call : groups_[to].calls) {
      places[call] = calls_[call].places;
      calls_[call].places = renamed(calls_[call].places);
    }
    std::optional<Group> mine = group_of(groups_[to].calls, groups_[to].shape, groups_[to].row_dims, calls_);
    std::optional<Group> both;
    for (const bool in_rows : {false, true}) {
      if (both || !mine || (in_rows && !groups_[from].row_dims)) continue;
      mine->level = groups_[to].level;
      if (const auto copies = group_of(added, groups_[from].shape, in_rows ? groups_[from].row_dims : std::nullopt, calls_))
        both = merged(*mine, *copies, calls_, blocks_);
    }
    if (!both) {
      for (auto& [call, old] : places) calls_[call].places = std::move(old);
      calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(first_call), calls_.end());
      blocks_.resize(first_block);
      return;
    }
    // The copies come first.
    std::stable_partition(both->calls.begin(), both->calls.end(), [&](std::size_t call) { return call >= first_call; });
    groups_[to] = std::move(*both);
    uses_.resize(blocks_.size());
    for (auto& [old, now] : own) {
      uses_[old].readers.erase(to);
      uses_[now] = {{*writer_of(old)}, {to}};
      uses_[now].writers[0].group = to;
    }
    for (const Use& use : groups_[to].uses)
      if (!use.is_written) uses_[use.block].readers.insert(to);
  }

  bool is_gpu_;
  std::vector<Group>& groups_;
  std::vector<Call>& calls_;
  std::vector<Block>& blocks_;
  std::vector<BlockUses> uses_;  ///< of each block
};

}  // namespace

void recompute(std::vector<Group>& groups, std::vector<Call>& calls, std::vector<Block>& blocks, bool is_gpu) {
  Recomputer(groups, calls, blocks, is_gpu).run();
}

}  // namespace tern::compiler
