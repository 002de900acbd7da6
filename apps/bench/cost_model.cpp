#include "bench/cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backend/error.h"

namespace tern::bench {

double bus_factor(const std::string& collective, int ranks) {
  if (ranks < 1) fail("bus_factor", fmt::format("expected at least one rank but got {}", ranks));
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (collective == "all_reduce") return 2 * others;
  if (collective == "all_gather" || collective == "reduce_scatter") return others;
  if (collective == "broadcast") return 1;
  fail("bus_factor", fmt::format("expected all_reduce, all_gather, reduce_scatter or broadcast but got {}", collective));
}

TransferFit fit_transfers(std::span<const Transfer> transfers) {
  constexpr const char* who = "fit_transfers";
  double largest = 0, least = INFINITY;
  for (const Transfer& x : transfers) {
    if (!(x.bytes > 0 && x.seconds > 0)) fail(who, fmt::format("expected numbers above 0 but got {} bytes in {} s", x.bytes, x.seconds));
    largest = std::max(largest, x.bytes);
    least = std::min(least, x.bytes);
  }
  if (!(largest > least)) fail(who, "expected calls of at least two sizes");
  // The normal equations of sum over calls ((o + k s) / t - 1)^2 with sizes s in parts of the largest one: [a b; b c] (o, k) = (d, e).
  double a = 0, b = 0, c = 0, d = 0, e = 0;
  for (const Transfer& x : transfers) {
    const double one = 1 / x.seconds, size = x.bytes / largest / x.seconds;
    a += one * one, b += one * size, c += size * size, d += one, e += size;
  }
  const double determinant = a * c - b * b;
  double overhead = (c * d - b * e) / determinant, slope = (a * e - b * d) / determinant;
  if (!(overhead > 0)) overhead = 0, slope = e / c;
  if (!(slope > 0)) fail(who, "expected larger calls to take longer");
  return {.overhead = overhead, .bandwidth = largest / slope};
}

double bucket_seconds(double bytes, double buckets, const TransferFit& fit) {
  return bytes / (buckets * fit.bandwidth) + buckets * fit.overhead;
}

Buckets best_buckets(double bytes, const TransferFit& fit) {
  const double count = std::max(1.0, std::sqrt(bytes / (fit.bandwidth * fit.overhead)));
  return {.count = count, .bytes = bytes / count};
}

const char* name(Sharding sharding) {
  constexpr const char* names[] = {"data parallel", "ZeRO-1", "ZeRO-2", "full sharding"};
  return names[static_cast<int>(sharding)];
}

StateBytes state_bytes(double parameters, Sharding sharding, int ranks) {
  if (ranks < 1) fail("state_bytes", fmt::format("expected at least one rank but got {}", ranks));
  const auto of = [&](double bytes, Sharding least) { return bytes * parameters / (sharding >= least ? ranks : 1); };
  return {.weights = of(4, Sharding::full), .gradients = of(4, Sharding::gradients), .moments = of(8, Sharding::moments)};
}

double sent_bytes(double parameters, Sharding sharding, int ranks) {
  return 4 * parameters * bus_factor("all_gather", ranks) * (sharding == Sharding::full ? 3 : 2);
}

MeshBounds mesh_bounds(const Mesh& mesh, double hidden) {
  if (mesh.fsdp < 1 || mesh.tensor < 1 || mesh.fsdp_axes < 1 || mesh.tensor_axes < 1 ||
      !(mesh.bandwidth > 0 && mesh.flops > 0 && hidden > 0))
    fail("mesh_bounds", "expected numbers above 0");
  const double per_link = mesh.flops / mesh.bandwidth;
  return {.tokens = per_link / static_cast<double>(mesh.tensor * mesh.fsdp_axes),
          .tensor = hidden * static_cast<double>(mesh.tensor_axes) / per_link};
}

}  // namespace tern::bench
