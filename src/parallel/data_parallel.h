#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/module.h"
#include "parallel/process_group.h"

namespace tern::train {
class Optimizer;
}

namespace tern::parallel {

/// Schedule of the averaging of gradients over the ranks. All values give the same gradients.
enum class GradientSync : std::uint8_t {
  per_parameter,  ///< after backward, one all_reduce for each parameter
  flat,           ///< after backward, one all_reduce for all parameters
  overlapped,     ///< during backward, one all_reduce for each parameter, started when its gradient is ready
  bucketed,       ///< during backward, one all_reduce for each bucket of adjacent parameters, started when all its gradients are ready
};
/// "per-parameter", "flat", "overlapped", "bucketed".
const char* name(GradientSync sync);
/// The GradientSync of a name; none if there is no such name.
std::optional<GradientSync> gradient_sync_of(const std::string& name);

/// Sharding of the training state among ranks (the stages of ZeRO, Rajbhandari et al. 2020). Each value includes those before it.
enum class Shard : std::uint8_t {
  none,        ///< every rank has all state
  optimizer,   ///< ZeRO-1: the optimizer's state, once shard_optimizer() is called
  gradients,   ///< ZeRO-2: also the gradients
  parameters,  ///< ZeRO-3, full sharding: also the parameters
};
/// "none", "optimizer", "gradients", "parameters".
const char* name(Shard shard);
/// The Shard of a name; none if there is no such name.
std::optional<Shard> shard_of(const std::string& name);

/// Options of DataParallel.
struct DataParallelOptions {
  GradientSync sync = GradientSync::bucketed;  ///< schedule of the averaging
  double bucket_size_mb = 25;                  ///< gradients of a bucket in MiB; a larger parameter has a bucket of its own
  std::optional<DType> reduce_dtype = {};      ///< dtype of gradients in collectives; their own if it is not set
  /// Averages gradients by reduce_scatter: each rank gets the mean of its own part of each bucket, and its other gradients are undefined.
  /// This sends half the bytes of all_reduce, and suffices for a sharded optimizer (parallel/data_parallel.h).
  bool scatter_gradients = false;
  /// From `gradients` on, scatter_gradients is implied and gradients are stored in parts: Note [Sharded gradients]. With `parameters`,
  /// parameters are, too: Note [Sharded parameters]. A bucket is then a unit: the matrices of one element of a list of modules
  /// ("blocks.3"), those that are in no list (tables, heads), or all vectors. From `gradients` on, the optimizer has to be sharded
  /// (shard_optimizer).
  Shard shard = Shard::none;
};

/// Note [Data parallel]
/// Each rank has a copy of the model and a part of the batch. All copies start with rank 0's parameters and stay equal, as gradients are
/// averaged over the ranks before they are used. With parts of equal size and a loss that is a mean, the average is the gradient of the
/// whole batch.
/// The parameters are moved into flat buffers (nn::flatten_parameters), so that a bucket is a slice of the flat gradients and no collective
/// needs a copy. Buckets are filled from the end of a buffer, in the order in which backward reaches the parameters. Vectors have buckets
/// of their own, since their gradients, which are sums over the batch, are reduced at the end of the pass. A parameter that a rank's loss
/// does not depend on has a gradient of zeros there, since each rank has to take part in each collective.
///
/// Note [Sharded gradients]
/// ZeRO's second stage. The full gradients of a bucket have memory from the first gradient that is written until reduce_scatter has
/// completed; then only the rank's part is kept, in memory of its own: 4 / N bytes a parameter on N ranks. A backward pass so holds the
/// full gradients of the bucket that is being filled, of at most two that are being reduced, and of those that wait for a parameter used
/// early in forward: a tied table, and the vectors, whose gradients are reduced at the end of the pass. Between steps grad() of a parameter
/// is zeros; segments() has the parts. Within NoSync full gradients accumulate on each rank, so that gradient accumulation needs their
/// memory. `flat` and `per_parameter`, which reduce after backward, save memory between steps only. A step cannot be captured in a graph,
/// as the addresses change from step to step.
class DataParallel {
 public:
  /// Flattens the module's trainable parameters, and broadcasts rank 0's parameters and buffers. The module and the group have to outlive
  /// this. Throws Error for a bucket size <= 0, and for a module without trainable parameters or on another device than the group's.
  DataParallel(nn::Module& module, ProcessGroup& group, const DataParallelOptions& options = {});
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  /// Starts the reductions that backward has not started, and waits for all as Work::wait does. To be called between backward and the use
  /// of gradients (train::UpdateOptions::synchronize). Throws Error if a collective failed, and for sharded gradients without a sharded
  /// optimizer (shard_optimizer), as no other one would see them.
  void finish_gradient_synchronization();

  /// Suspends synchronisation: while a NoSync lives, backward passes add to the rank's own gradients only. For all but the last part of a
  /// batch whose gradients are accumulated.
  class NoSync {
   public:
    /// Suspends synchronisation until the destructor. They may be nested.
    explicit NoSync(DataParallel& model);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DataParallel& model_;
    bool before_;
  };

  /// Adds trainable parameters that were frozen, or not the module's, when this was made: flattens them, broadcasts rank 0's values, and
  /// appends buckets of their own. To be called on all ranks, between steps. Throws Error as the constructor does.
  void add(const Tensors& parameters);

  /// A bucket: adjacent parameters of a flat buffer, which are reduced together. With sharding, rank r owns elements
  /// [r * part, (r + 1) * part); the remainder from size * part on, fewer than `size` vectors of 16 bytes, belongs to all ranks.
  struct Segment {
    Tensor parameters;           ///< (n)
    Tensor gradients;            ///< (n)
    std::int64_t part = 0;       ///< elements of each rank's part
    Tensor own_gradients = {};   ///< with sharded gradients: the rank's part, then the remainder; else undefined
    Tensor own_parameters = {};  ///< (part), with sharded parameters; else undefined
    Tensor own_masters = {};     ///< (part), with sharded parameters of 16 bits; else undefined
  };
  /// The buckets, in the order in which backward can complete them.
  std::vector<Segment> segments() const;
  /// Bytes of parameters and gradients that this rank holds at present: its own parts, and what is gathered.
  std::size_t bytes_here() const;
  ProcessGroup& group() const { return group_; }  ///< the group of the collectives
  Shard shard() const;                            ///< DataParallelOptions::shard

  /// Gathers the sharded parameters among these tensors, and the masters, for code that reads or writes them outside of the forward of
  /// their modules, e.g. for a file. They stay until a module or a call of gather() uses other ones, and not beyond an update. To be called
  /// on all ranks, which have to make the same writes. Does nothing for other tensors.
  void gather(const Tensors& parameters);
  /// Ends training with sharded parameters: gathers all of them on each rank for good. To be called on all ranks. Does nothing for
  /// parameters that are not sharded.
  void keep_parameters();

  /// Bytes of each collective of a step, in the order in which backward can start them.
  std::vector<std::size_t> bucket_bytes() const;

 private:
  friend class BucketExchange;
  friend void shard_optimizer(train::Optimizer& optimizer, DataParallel& model);
  struct Bucket;
  struct State;

  void check(const Tensors& trained) const;
  void send_values(const std::vector<nn::FlatParameters>& flat);
  void make_buckets(Tensors trained, const std::vector<nn::FlatParameters>& flat);
  void make_units(const std::vector<NamedTensor>& trained);
  void complete_bucket(std::size_t number);

  nn::Module& module_;
  ProcessGroup& group_;
  std::shared_ptr<State> state_;  ///< shared with the gradient hooks of the parameters, which live as long as these
};

/// Shards the optimizer of a data parallel model (ZeRO's first stage, Note [Exchange]): each rank keeps the moments of its part of
/// every bucket and updates that part; all_gather then collects the parameters. Works with any optimizer whose parameters are all the
/// model's, including those that are added later (DataParallel::add, then the optimizer's add_group). Gradients are reduced by all_reduce
/// or, with DataParallelOptions::scatter_gradients, by reduce_scatter, which together with the all_gather sends no more than without
/// sharding. The weights equal those of the unsharded optimizer up to rounding of the gradients' sums. step(), state() and
/// gather_masters() are to be called on all ranks. Implies overlap_optimizer; the all_gather of a bucket runs during the update of the
/// next.
void shard_optimizer(train::Optimizer& optimizer, DataParallel& model);

/// Overlaps the optimizer of a data parallel model with the reductions: it updates the buckets that have been reduced while the last ones
/// are still in progress (Note [Exchange]). train::update then calls UpdateOptions::synchronize only if it clips or scales
/// gradients. The weights are bitwise the same. With GradientSync::flat and per_parameter it waits for all gradients.
void overlap_optimizer(train::Optimizer& optimizer, DataParallel& model);

}  // namespace tern::parallel
