#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/parameter_buffer.h"

namespace tern::train {
class Optimizer;
}

namespace tern::dist {

/// When gradients are averaged over the ranks, and in how many collectives. All give the same gradients.
enum class GradientSync : std::uint8_t {
  per_parameter,  ///< after backward, one all_reduce for each parameter
  flat,           ///< after backward, one for all
  overlapped,     ///< one for each parameter, begun when its gradient is ready, beside the rest of backward
  bucketed,       ///< one for each bucket of neighbours, begun when all gradients in it are ready
};
/// "per-parameter", "flat", "overlapped", "bucketed".
const char* name(GradientSync sync);
/// The GradientSync of that name, if there is one.
std::optional<GradientSync> gradient_sync_of(const std::string& name);

/// Sharding of the training state among ranks (ZeRO's stages): each value includes those before it.
enum class Shard : std::uint8_t {
  none,        ///< every rank has all
  optimizer,   ///< ZeRO-1: the optimizer's state of its part alone, once shard_optimizer() is called
  gradients,   ///< ZeRO-2: and the gradients
  parameters,  ///< ZeRO-3, full sharding: and the parameters
};
/// "none", "optimizer", "gradients", "parameters".
const char* name(Shard shard);
/// The value of that name, if there is one.
std::optional<Shard> shard_of(const std::string& name);

/// Options of DataParallel.
struct DataParallelOptions {
  GradientSync sync = GradientSync::bucketed;  ///< when gradients are averaged
  double bucket_size_mb = 25;                  ///< of gradients, in 2^20 bytes; a parameter that is larger has a bucket of its own
  std::optional<DType> reduce_dtype = {};      ///< gradients go over the wire in it; as they are where it is not said
  /// Each rank gets the mean of its own part of each bucket alone, by reduce_scatter: half of what all_reduce sends, and enough for a
  /// sharded optimizer (dist/data_parallel_optimizer.h). What is left in the other parts is undefined.
  bool scatter_gradients = false;
  /// From `gradients` on gradients are scattered, and kept in parts: Note [Sharded gradients]. With `parameters` these are so, too: Note
  /// [Sharded parameters], and a bucket is a unit, which is the matrices of one element of a list of modules ("blocks.3"), those that are
  /// in none (tables, heads), or all vectors. An optimizer must be sharded (shard_optimizer).
  Shard shard = Shard::none;
};

/// Note [Data parallel]
/// Each rank has a copy of the model and a part of the batch. The copies begin equal, as rank 0's, and stay so: each rank's gradients
/// become the mean of all ranks' before they are used. With parts of one size and a loss that is a mean, that is the gradient of the whole
/// batch.
/// The parameters are moved into flat buffers (nn::flatten_parameters), so that a bucket is a slice of the flat gradients, and no
/// collective needs a copy. Buckets are filled from the end of a buffer, as backward comes from a model's end; vectors have buckets of
/// their own, since their gradients, sums over the batch, are added up at the end of the pass. A parameter that a rank's loss did not reach
/// counts as a gradient of zeros there, since each rank must take part in each collective.
///
/// Note [Sharded gradients]
/// ZeRO's second stage: the memory of a bucket's gradients is there from the first gradient that is written until reduce_scatter has made
/// each rank's part of it, which alone is kept, in memory of its own: 4 / N bytes a parameter. So a backward pass has whole gradients of
/// the bucket that fills, of two that are on their way at most, and of buckets that wait for a parameter which is used early in forward:
/// a tied table, and vectors, whose gradients are added up at the end of the pass. Parameters' own grad() are zeros between steps;
/// segments() has the parts. Within NoSync gradients add up whole on each rank, and that is the memory of a batch in several parts. With
/// `flat` and `per_parameter`, which reduce after backward, nothing is saved but between steps. A step cannot be recorded in a graph, as
/// memory is at other addresses in each.
class DataParallel {
 public:
  /// Flattens the module's parameters, and gives it rank 0's parameters and buffers. Parameters that are frozen now stay out. The module
  /// and the group outlive this. Throws Error for a size that is not above 0, and a module without parameters to train or on another
  /// device.
  DataParallel(nn::Module& module, ProcessGroup& group, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// To be called between backward and the use of gradients (train::UpdateOptions::synchronize): begins what backward has not, and waits
  /// as Work::wait does. Throws Error where a collective failed, and of sharded gradients, which no other optimizer would see, before
  /// shard_optimizer() was called.
  void finish_gradient_synchronization();

  /// While one lives, backward passes only add to the rank's own gradients: all but the last of a batch that goes through in parts.
  class NoSync {
   public:
    /// From now on, until it ends; they nest.
    explicit NoSync(DataParallel& model);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& model_;
    bool before_;
  };

  /// Trains parameters that were frozen, or not the module's, when this was made: they are flattened, get rank 0's values, and have buckets
  /// of their own after the others. All ranks call it, between steps. Throws Error as the constructor does.
  void add(const Tensors& parameters);

  /// A bucket: neighbours in the flat buffers, which go over the wire together. Rank r has elements [r * part, (r + 1) * part) of it where
  /// work is shared, and all have those from size * part on, fewer than `size` vectors of 16 bytes.
  struct Segment {
    Tensor parameters;           ///< (n)
    Tensor gradients;            ///< (n)
    std::int64_t part = 0;       ///< elements of each rank's part
    Tensor own_gradients = {};   ///< of sharded gradients the rank's part, then the elements that all ranks have; else undefined
    Tensor own_parameters = {};  ///< (part): of sharded parameters; else undefined
    Tensor own_masters = {};     ///< (part): of sharded parameters of 16 bits; else undefined
  };
  /// The buckets, in the order in which backward can complete them; of sharded gradients the rank's parts.
  std::vector<Segment> segments() const;
  /// The bytes of parameters and gradients on this rank now: its own parts, and gathered ones.
  std::size_t bytes_here() const;
  ProcessGroup& group() const { return group_; }  ///< that collectives go through
  Shard shard() const;                            ///< as the options said

  /// Of sharded parameters, which else come and go: the rank has all of them from now on, and trains no more. All ranks call it, and after
  /// that the model is the rank's own. Of other parameters nothing.
  void keep_parameters();

  /// The bytes of each collective of a step, in the order in which backward can begin them.
  std::vector<std::size_t> bucket_bytes() const;

 private:
  friend class BucketArrival;   // dist/data_parallel_optimizer.cpp
  friend class BucketSharding;  // likewise
  friend void shard_optimizer(train::Optimizer& optimizer, DataParallel& model);
  struct Bucket;
  struct State;

  void check(const Tensors& trained) const;
  void send_values(const std::vector<nn::FlatParameters>& flat);
  void make_buckets(Tensors trained, const std::vector<nn::FlatParameters>& flat);
  void make_units(const std::vector<NamedTensor>& trained);
  void complete_bucket(std::size_t number);

  ProcessGroup& group_;
  std::shared_ptr<State> state_;  ///< which the parameters' hooks ask for: they live as long as the parameters
};

}  // namespace tern::dist
