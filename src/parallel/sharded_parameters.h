#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "autodiff/parameter_buffer.h"
#include "nn/module.h"
#include "parallel/process_group.h"

namespace tern {
class FlatStorage;
}

namespace tern::parallel {

/// The path of the element of a list of modules that a parameter belongs to, e.g. "blocks.3."; "" if there is none.
std::string block_of(const std::string& path);

/// Note [Sharded parameters]
/// ZeRO's third stage, "fully sharded data parallel" (Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel",
/// 2023): a rank keeps 1/N of a unit's parameters, which are stored in one flat block, and has the memory of the rest only while they are
/// used. Each module's forward is wrapped (nn::Module::before_forward):
///  * Before a module's forward the units of its parameters are gathered, but for those of elements of lists within it, which are gathered
///    at their own turn. All ranks run the same model and so gather in the same order; a forward on one rank alone hangs until the timeout.
///  * Before the backward of an op that saved a weight, its unit is gathered again.
///  * Prefetch. Units are numbered in the order of backward, from the model's end. A gather in forward starts the all_gather of the unit
///    numbered one lower; a gather in backward, and the first gradient of a unit, that of the unit numbered one higher. The all_gather
///    overlaps the computation of the current unit.
///  * Release. In forward a block is released when another one is gathered; the last one stays for backward. In backward a unit is released
///    when its last gradient is final, as everything that reads it has then run. The root (tables, heads) and the vectors stay from their
///    first use in forward to the end of backward: they are used at both ends, and one kernel reads the vectors of two blocks.
///  * Autocast. Under autocast the f32 matrices of a block are gathered in its 16-bit dtype, half the bytes, into memory of their own,
///  which
///    autocast takes for its casts of them (Autocast::use).
///  * Elsewhere parameters have no memory, and reading one is an error. DataParallel::gather() brings them, e.g. for files and averages.
///  * Writes. An in-place write to gathered parameters is detected by the block's version; at release the rank's part is copied back. All
///    ranks have to make the same write.
/// Peak memory: 1/N of all parameters, the root and the vectors, and two blocks.
class ShardedParameters final : public std::enable_shared_from_this<ShardedParameters> {
 public:
  explicit ShardedParameters(ProcessGroup& group) : group_(group) {}

  /// Moves parameters of one dtype into a new unit, in this order, broadcasts rank 0's values, and returns the unit's number. Parameters of
  /// 16 bits also have sharded masters. `is_block`: the unit is released in forward when another one is gathered.
  std::size_t add(const Tensors& parameters, bool is_block);
  /// Wraps the forwards of the module and of those below it.
  void wrap(nn::Module& module);

  /// (n), padded to N parts.
  const Tensor& values(std::size_t unit) const { return units_[unit].values.whole; }
  /// (n / N): the rank's part, always in memory. Masters are undefined unless the parameters have 16 bits.
  const Tensor& own_values(std::size_t unit) const { return units_[unit].values.own; }
  const Tensor& own_masters(std::size_t unit) const { return units_[unit].masters.own; }

  /// Gathers the units that hold these tensors, parameters or masters, in the place of other blocks.
  void gather(const Tensors& xs);
  /// To be called in backward when the first gradient of a unit is final.
  void begin_gradients(std::size_t unit) { prefetch(unit + 1); }
  /// To be called in backward when the last gradient of a unit is final: all ops that read the unit have run.
  void end_gradients(std::size_t unit);
  /// Releases all units, after copying writes back. To be called before an update.
  void release_all();
  /// To be called after an update: raises the versions, so that a graph that has saved the old values refuses to read the new ones.
  void note_update();
  /// Gathers all units for good.
  void keep();

 private:
  struct Block {
    Tensor whole, own, arriving;  ///< all elements, the rank's part, and the destination of a gather in progress
    Work work;                    ///< the gather in progress
    std::uint32_t version = 0;    ///< of `whole` when `own` was equal to its part; a write raises that of `whole`
  };
  struct Unit {
    Block values, masters, lowered;  ///< `lowered`: the values in autocast's dtype, once it has been used; its `own` exists during a gather
    Tensors parameters;
    bool is_block = false;
  };
  using Kind = Block Unit::*;

  static FlatStorage& storage_of(const Block& block);
  static bool is_here(const Block& block);
  Tensor freed(std::int64_t own_count, DType dtype, std::size_t unit, Kind kind);
  void begin_forward(const std::set<std::size_t>& needed);
  template <class F>
  void gather(std::size_t unit, Kind kind, const F& stays);
  void begin(Unit& unit, Kind kind);
  void install(Unit& unit, Kind kind);
  void write_back_edits(Block& block);
  void release(Block& block);
  void prefetch(std::size_t unit);

  ProcessGroup& group_;
  std::vector<Unit> units_;
  Kind block_kind_ = &Unit::values;  ///< the last gather of a block was of its `values` or of `lowered`
  bool is_kept_ = false;
};

}  // namespace tern::parallel
