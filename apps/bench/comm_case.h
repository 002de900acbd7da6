#pragma once
#include <string>

#include "bench/timing.h"
#include "parallel/process_group.h"

namespace tern::bench {

/// A collective of a size in bytes: that of the whole tensor if ranks have parts. The elements are rounded down to a multiple of the ranks,
/// at least one for each.
struct CommCase {
  std::string op = "all_reduce";  ///< or all_gather, reduce_scatter, broadcast
  DType dtype = DType::f32;
  double bytes = 1e6;
};

struct CommFigures {
  Times call;          ///< ms, on the slowest rank
  int calls = 0;       ///< number of measured calls
  double bytes = 0;    ///< bytes of the elements
  double alg_gbs = 0;  ///< bytes / time, in 1e9 bytes a second
  double bus_gbs = 0;  ///< Note [Cost of several devices]
};

/// Measures a collective. To be called on all ranks with the same case. First checks the result; then takes at least three samples in about
/// `seconds`, each after a barrier, and on a GPU of several calls without waits. Throws std::runtime_error for a wrong result, OutOfMemory,
/// on the CPU also if the machine has too little for all ranks, and as the collectives do.
CommFigures measure_comm(parallel::ProcessGroup& group, const CommCase& c, double seconds);

}  // namespace tern::bench
