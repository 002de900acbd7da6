#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

// Formulas for the cost of training on several devices, which `tern-bench comm` and `tern-bench accounting` print.
//
// Note [Cost of several devices]
//  * Bandwidth. A collective of s bytes in t seconds has the algorithm bandwidth s / t. In the best algorithm each of N ranks sends and
//    receives a fraction f of the bytes, so that the bus bandwidth f s / t is the traffic of the links, independent of N: f = 2 (N - 1) / N
//    for all_reduce, (N - 1) / N for all_gather and reduce_scatter (s: the whole tensor), 1 for broadcast.
//  * Buckets. A call of s bytes takes o + s / w: a fixed overhead and a bandwidth. If gradients of s bytes are reduced in n buckets during
//    backward, the exposed time is that of n overheads and of the last bucket's transfer, which starts when backward ends: s / (n w) + n o.
//    The minimum is at n* = sqrt(s / (w o)) buckets of b* = sqrt(s w o) bytes.
//  * State. float32 weights, gradients and AdamW's two moments are 16 P bytes of P parameters. N ranks divide the moments among them
//    (ZeRO-1: (8 + 8 / N) P), the gradients too (ZeRO-2: (4 + 12 / N) P), or all (full sharding: 16 P / N). Parameters of 16 bits with
//    float32 masters, 2 + 2 + 4 + 8 bytes, have the same sum. (Rajbhandari et al., "ZeRO", 2020, section 3.)
//  * Traffic. A rank sends 2 (N - 1) / N of the gradients' bytes in a step, by all_reduce or, of ZeRO-1 and 2, by reduce_scatter of the
//    gradients and all_gather of the weights; 3 (N - 1) / N of full sharding, which gathers weights for forward and again for backward.
//  * Mesh. Of X ranks of full sharding (FSDP) times Y of tensor parallelism, each with C FLOP/s and links of W bytes/s along each of M_X
//    and M_Y axes of the network, the forward pass of two matrices D x F on B tokens in 16 bits computes 4 B D F / (X Y C) seconds, gathers
//    weights 4 D F / (Y W M_X) and activations 4 B D / (X W M_Y). Computing takes longer than the weights where each rank has
//    B / (X Y) > C / (Y W M_X) tokens, and longer than the activations where Y < F W M_Y / C. (Austin et al., "How to Scale Your Model",
//    2025, chapter 5.)
namespace tern::bench {

/// The fraction f for "all_reduce", "all_gather", "reduce_scatter" or "broadcast". Throws Error for another name or no ranks.
double bus_factor(const std::string& collective, int ranks);

/// A measured call.
struct Transfer {
  double bytes, seconds;
};
/// A model of a call: seconds = overhead + bytes / bandwidth.
struct TransferFit {
  double overhead = 0;   ///< o, seconds
  double bandwidth = 0;  ///< w, bytes per second
  double seconds(double bytes) const { return overhead + bytes / bandwidth; }
};
/// Fits the model by least squares of the relative errors, as times span powers of ten; an overhead below 0 becomes 0. Throws Error for
/// fewer than two sizes, for numbers that are not above 0, and if larger calls take no longer.
TransferFit fit_transfers(std::span<const Transfer> transfers);

/// The exposed time s / (n w) + n o in seconds.
double bucket_seconds(double bytes, double buckets, const TransferFit& fit);
struct Buckets {
  double count, bytes;
};
/// The optimum n* and b*: at least one bucket, and without an overhead infinitely many of 0 bytes.
Buckets best_buckets(double bytes, const TransferFit& fit);

/// Sharding of the training state.
enum class Sharding : std::uint8_t { none, moments, gradients, full };
/// The name: "data parallel", "ZeRO-1", "ZeRO-2", "full sharding".
const char* name(Sharding sharding);
inline constexpr Sharding shardings[] = {Sharding::none, Sharding::moments, Sharding::gradients, Sharding::full};

/// Bytes of a rank's float32 training state, without activations.
struct StateBytes {
  double weights = 0, gradients = 0, moments = 0;
  double after_init() const { return weights; }
  double before_step() const { return weights + gradients; }  ///< after backward; with flat buffers, all the time
  double after_step() const { return weights + gradients + moments; }
};
/// The state's bytes. Throws Error for no ranks.
StateBytes state_bytes(double parameters, Sharding sharding, int ranks);
/// Bytes that a rank sends in a step.
double sent_bytes(double parameters, Sharding sharding, int ranks);

/// X, Y, M_X, M_Y, W and C of the Note.
struct Mesh {
  std::int64_t fsdp = 16, tensor = 4, fsdp_axes = 2, tensor_axes = 1;
  double bandwidth = 1.8e11, flops = 4.6e14;
};
struct MeshBounds {
  double tokens;  ///< tokens a rank above which computation takes longer than the gather of weights
  double tensor;  ///< ranks of tensor parallelism below which computation takes longer than the gather of activations
};
/// The limits for feed-forward layers of `hidden` hidden units. Throws Error for a number that is not above 0.
MeshBounds mesh_bounds(const Mesh& mesh, double hidden);

}  // namespace tern::bench
