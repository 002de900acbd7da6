#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist/data_parallel.h"
#include "tensor/random.h"

namespace tern::apps {

/// Options of data parallel training, which results do not depend on but for rounding.
struct RankOptions {
  std::string gradient_sync = "bucketed";  ///< dist::GradientSync
  double bucket_size_mb = 25;
  std::string shard = "none";  ///< dist::Shard
  double timeout = 30;         ///< seconds that a rank waits for the others
};
/// --gradient-sync, --bucket-size-mb and --shard, among the help's options of `group`.
void add_gradient_options(CLI::App& command, std::string& gradient_sync, double& bucket_size_mb, std::string& shard, const char* group);
/// Those, and --rank-timeout. A process that is alone takes them, and they do nothing.
void add_rank_options(CLI::App& command, RankOptions& options);

/// True for an error that tells of another process which has ended, has stopped or never came, and of no mistake of the user's.
bool is_failure_of_other_rank(const Error& error);

/// A rank's part of a batch.
struct RankPart {
  BatchRows rows;
  /// A part without rows: `rows` is then the batch's first one, which is to count for nothing. So the rank draws as many random numbers as
  /// the others, and takes part in each collective.
  bool is_empty = false;
};
/// Rows of a batch, as evenly as multiples of `multiple` allow.
RankPart part_of(std::int64_t rows, std::int64_t multiple, int rank, int size);
/// The multiple at which a part has to begin for a model whose random numbers are drawn for rows of `columns` tokens: (columns, width),
/// (columns, hidden) and (heads, columns, columns) each. Positions of random numbers count blocks of four.
std::int64_t rows_multiple(std::int64_t columns, std::int64_t width, std::int64_t hidden);

/// The processes of a training that a launcher has started together, or this one alone.
///
/// Note [Ranks decide as one]
/// All ranks have the same options, data and weights, make the same batches, and each takes its part of them. Whatever else decides how a
/// training goes on (a signal, a validation's result, a clock) is either the same on all ranks, or agreed on, or concerns rank 0 alone: the
/// one that writes files and prints.
class Ranks {
 public:
  /// Waits for the others: Error where they do not come. From here on this process prints nothing but errors unless it is rank 0.
  Ranks(const RankOptions& options, Device device);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  bool is_first() const { return rank() == 0; }
  bool is_alone() const { return size() == 1; }

  /// "2 processes of ", "" for one that is alone.
  std::string describe() const;
  /// The model's gradients become the mean of all ranks', and its weights those of rank 0. Null for a process that is alone.
  std::unique_ptr<dist::DataParallel> parallel(nn::Module& model);
  /// The state that is shared out among the ranks.
  dist::Shard shard() const;
  /// This rank's part of `rows` rows.
  RankPart part(std::int64_t rows, std::int64_t multiple) const { return part_of(rows, multiple, rank(), size()); }

  // Collectives, which all ranks call in the same order. After leave() they concern this process alone.

  /// The signal that has asked any of the ranks to stop, or 0. Once it is another number it stays so.
  int stop_signal();
  /// x, on the ranks' device, becomes the mean of all ranks'.
  void average(const Tensor& x);
  /// The values become those of rank 0.
  void broadcast(std::vector<double>& values);
  void barrier();
  /// Throws UsageError unless all ranks have the same text, e.g. a checksum; `what` names it.
  void require_same(const std::string& what, const std::string& text);
  /// The last collective: what follows is rank 0's.
  void leave();

 private:
  bool is_on_its_own() const { return is_alone() || has_left_; }

  const RankOptions options_;
  std::unique_ptr<dist::ProcessGroup> group_;
  std::unique_ptr<dist::ProcessGroup> host_;  ///< of CPUs, for decisions that are not to wait for a GPU; null where group_ serves
  int agreed_signal_ = 0;
  bool has_left_ = false;
};

}  // namespace tern::apps
