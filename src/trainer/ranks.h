#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nn/module.h"
#include "parallel/data_parallel.h"
#include "tensor/random.h"

namespace tern::train {

/// Options of data parallel training. They affect results by rounding only.
struct RankOptions {
  std::string gradient_sync = "bucketed";  ///< parallel::GradientSync
  double bucket_size_mb = 25;              ///< MiB of gradients in a bucket
  std::string shard = "none";              ///< parallel::Shard
  double timeout = 30;                     ///< seconds to wait for other ranks
};

/// True for an error that was caused by the end or the absence of another process, and not by the user.
bool is_failure_of_other_rank(const Error& error);

/// A rank's part of a batch.
struct RankPart {
  BatchRows rows;  ///< within the batch
  /// The rank has no rows: `rows` is then the batch's first one, with weight 0, so that the rank draws as many random numbers as the others
  /// and takes part in each collective.
  bool is_empty = false;
};
/// A rank's rows of a batch. Parts are multiples of `multiple` rows, as equal as possible.
RankPart part_of(std::int64_t rows, std::int64_t multiple, int rank, int size);
/// The multiple of rows at which a part may begin, for a model that draws dropout masks of (columns, width), (columns, hidden) and (heads,
/// columns, columns) for each row of `columns` tokens: random numbers are positioned in blocks of four.
std::int64_t rows_multiple(std::int64_t columns, std::int64_t width, std::int64_t hidden);

/// The processes of a training, which a launcher has started, or this process alone.
///
/// Note [Ranks decide as one]
/// All ranks have the same options, data and weights and make the same batches, of which each takes its part. Other inputs of decisions (a
/// signal, the result of a validation, a clock) are either equal on all ranks, or agreed on by a collective, or used by rank 0 alone, which
/// writes files and prints.
class Ranks {
 public:
  /// Connects the ranks, and mutes the output of all but rank 0, except for errors. Throws Error if others do not connect in time.
  Ranks(const RankOptions& options, Device device);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return group_->rank(); }    ///< of this process, from 0
  int size() const { return group_->size(); }    ///< number of processes
  bool is_first() const { return rank() == 0; }  ///< true for rank 0
  bool is_alone() const { return size() == 1; }  ///< true for a single process

  /// The text "2 processes of "; "" for a single process.
  std::string describe() const;
  /// Makes a model data parallel: averages its gradients, and broadcasts rank 0's weights. Null for a single process.
  std::unique_ptr<parallel::DataParallel> parallel(nn::Module& model);
  /// The sharded state.
  parallel::Shard shard() const;
  /// This rank's part of `rows` rows.
  RankPart part(std::int64_t rows, std::int64_t multiple) const { return part_of(rows, multiple, rank(), size()); }

  // Collectives, to be called on all ranks in the same order. After leave() they apply to this process alone.

  /// The signal that has asked any of the ranks to stop; 0 if there is none. Once set it does not change.
  int stop_signal();
  /// Sets x, on the ranks' device, to the mean of all ranks' x.
  void average(const Tensor& x);
  /// Sets the values to rank 0's.
  void broadcast(std::vector<double>& values);
  /// Waits for all ranks.
  void barrier();
  /// Throws UsageError unless all ranks have the same text, such as a checksum. `what` is its name in the message.
  void require_same(const std::string& what, const std::string& text);
  /// The last collective, after which rank 0 continues alone.
  void leave();

 private:
  bool is_on_its_own() const { return is_alone() || has_left_; }

  const RankOptions options_;
  std::unique_ptr<parallel::ProcessGroup> group_;
  std::unique_ptr<parallel::ProcessGroup> host_;  ///< a CPU group, for decisions that need not wait for a GPU; null if group_ is one
  int agreed_signal_ = 0;
  bool has_left_ = false;
};

// The weights of a model in training, of which each rank may keep a part; `ranks` is null for a single process, otherwise all ranks call
// these.

namespace detail {

/// Gathers sharded parameters before they are read or written.
inline void gather(parallel::DataParallel* ranks, const Tensors& parameters) {
  if (ranks) ranks->gather(parameters);
}
/// Copies of tensors on the CPU.
std::vector<NamedTensor> copies(parallel::DataParallel* ranks, const std::vector<NamedTensor>& tensors);
/// Sets the parameters to their masters, rounded.
void round_masters(parallel::DataParallel* ranks, const nn::Module& model);
/// Sets the model's parameters of the same names, and their masters.
void write_parameters(parallel::DataParallel* ranks, const nn::Module& model, const std::vector<NamedTensor>& values);
/// True if all values are finite. Waits for the device once.
bool is_finite(parallel::DataParallel* ranks, const std::vector<NamedTensor>& tensors);

}  // namespace detail

}  // namespace tern::train
