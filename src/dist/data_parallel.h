#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/process_group.h"
#include "nn/parameter_buffer.h"

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
std::optional<GradientSync> gradient_sync_of(const std::string& name);

struct DataParallelOptions {
  GradientSync sync = GradientSync::bucketed;
  double bucket_size_mb = 25;              ///< of gradients, in 2^20 bytes; a parameter that is larger has a bucket of its own
  std::optional<DType> reduce_dtype = {};  ///< gradients go over the wire in it; as they are where it is not said
  /// Each rank gets the mean of its own part of each bucket alone, by reduce_scatter: half of what all_reduce sends, and enough for a
  /// sharded optimizer (dist/sharded_optimizer.h). What is left in the other parts is undefined.
  bool scatter_gradients = false;
};

/// Note [Data parallel]
/// Each rank has a copy of the model and a part of the batch. The copies begin equal, as rank 0's, and stay so: each rank's gradients
/// become the mean of all ranks' before they are used. With parts of one size and a loss that is a mean, that is the gradient of the whole
/// batch.
/// The parameters are moved into flat buffers (nn::flatten_parameters), so that a bucket is a slice of the flat gradients, and no
/// collective needs a copy. Buckets are filled from the end of a buffer, as backward comes from a model's end; vectors have buckets of
/// their own, since their gradients, sums over the batch, are added up at the end of the pass. A parameter that a rank's loss did not reach
/// counts as a gradient of zeros there, since each rank must take part in each collective.
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
  /// as Work::wait does. Throws Error where a collective failed.
  void finish_gradient_synchronization();

  /// While one lives, backward passes only add to the rank's own gradients: all but the last of a batch that goes through in parts.
  class NoSync {
   public:
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
    Tensor parameters, gradients;  ///< (n)
    std::int64_t part = 0;
  };
  std::vector<Segment> segments() const;
  ProcessGroup& group() const { return group_; }
  /// The bytes of each collective of a step, in the order in which they begin at the soonest.
  std::vector<std::size_t> bucket_bytes() const;

 private:
  struct Bucket;
  struct State;

  void check(const Tensors& trained) const;
  void send_values(const std::vector<nn::FlatParameters>& flat);
  void make_buckets(Tensors trained, const std::vector<nn::FlatParameters>& flat);

  ProcessGroup& group_;
  std::shared_ptr<State> state_;  ///< which the parameters' hooks ask for: they live as long as the parameters
};

}  // namespace tern::dist
