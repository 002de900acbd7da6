#pragma once
#include <memory>
#include <vector>

#include "dist/process_group.h"
#include "tensor/context.h"

namespace tern {
class FlatStorage;
}

namespace tern::dist {

/// Note [Sharded parameters]
/// ZeRO's third stage, "fully sharded data parallel" (Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
/// 2023): a rank keeps 1/N of a unit's parameters, which lie in one flat block, and has all of them only while they are used.
///  * Fetch. The block is gathered when its memory is asked for (Note [Memory on demand]): an op of forward, the backward of one that has
///    saved a weight, the second run of a checkpointed layer, the writer of a file. No module needs hooks, a weight may be read outside its
///    own module, and a tied one in several. Since all ranks run the same model, all ask in the same order; what one rank alone reads hangs
///    until the timeout.
///  * Prefetch. Units are numbered as backward comes to them, from the model's end. A unit that arrives in forward begins the all_gather of
///    the one before its number, and one that arrives in backward, or whose first gradient is there, that of the one after it: beside its
///    own computation.
///  * Release. In forward a unit goes when an op has ended that asked for another unit, so that no op loses what it reads, and the last one
///    stays for backward. In backward it goes when its last gradient is there: all that read it has run. The root (tables, heads) and the
///    vectors stay from forward's first use to the end of backward: they are used at both ends, and one kernel reads the vectors of two
///    blocks.
///  * Autocast. The matrices of a block of f32 are gathered in autocast's 16 bits, half of the bytes, into memory of their own; those
///    of 32 bits are not gathered. A graph that has saved them holds no memory: they are fetched again in backward.
///  * Writes. An in-place edit of parameters that are here (a file that is loaded, averages that take their place) is noticed by the
///    block's version, and its own part goes into the rank's when the block goes. All ranks make the same.
/// Peak: 1/N of all, the root and the vectors, and two blocks.
class ShardedParameters final : public AfterOp, public std::enable_shared_from_this<ShardedParameters> {
 public:
  explicit ShardedParameters(ProcessGroup& group) : group_(group) {}
  ~ShardedParameters();

  /// Moves parameters of one dtype, in the order in which they lie in memory from now on, into a unit, with rank 0's values: its number.
  /// Those of 16 bits have masters in parts, too. `is_block`: it goes when another one comes.
  std::size_t add(const Tensors& parameters, bool is_block);
  /// (n), padded to N parts; its memory may be away.
  const Tensor& values(std::size_t unit) const { return units_[unit].values.whole; }
  /// (n / N): the rank's own, always here. Masters are undefined but for 16 bits.
  const Tensor& own_values(std::size_t unit) const { return units_[unit].values.own; }
  const Tensor& own_masters(std::size_t unit) const { return units_[unit].masters.own; }

  /// In a backward pass the first gradient of a unit's parameters is there.
  void begin_gradients(std::size_t unit) { prefetch(unit + 1); }
  /// In a backward pass the last one is final: all ops that read the unit have run.
  void end_gradients(std::size_t unit);
  /// Releases all of them, after writes to them are kept: before an update.
  void release_all();
  /// Graphs that have saved the values from before an update must not read those after it.
  void note_update();
  /// The values of all units are here from now on, and go no more.
  void keep();

  void after_op() override;

 private:
  struct Block {
    Tensor whole, own, arriving;
    Work work;
    std::uint32_t version = 0;  ///< of the whole when `own` was a part of it; an edit raises it before or after the block comes
  };
  struct Unit {
    Block values, masters, lowered;  ///< `lowered`: the values in 16 bits, once autocast has asked for them; its `own` is made for a gather
    bool is_block = false;
  };
  using Kind = Block Unit::*;

  static FlatStorage& storage_of(const Block& block);
  static bool is_here(const Block& block);
  Tensor on_demand(std::int64_t own_count, DType dtype, std::size_t unit, Kind kind);
  Tensor lowered(std::size_t unit, const Tensor& window, DType dtype);
  void fetch(std::size_t unit, Kind kind);
  void begin(Unit& unit, Kind kind);
  void install(Unit& unit, Kind kind);
  void keep_edits(Block& block);
  void release(Block& block);
  void prefetch(std::size_t unit);

  ProcessGroup& group_;
  std::vector<Unit> units_;
  std::size_t last_values_ = 0, last_masters_ = 0;  ///< the units that came last, in forward
  Kind block_kind_ = &Unit::values;                 ///< of blocks: `values` or `lowered`, as they were asked for last
  bool is_kept_ = false;
};

}  // namespace tern::dist
