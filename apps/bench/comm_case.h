#pragma once
#include <string>

#include "bench/timing.h"
#include "dist/process_group.h"

namespace tern::bench {

/// A collective, by its bytes: of the whole, where ranks have parts. Elements are rounded down to as many on each rank, one at least.
struct CommCase {
  std::string op = "all_reduce";  ///< or all_gather, reduce_scatter, broadcast
  DType dtype = DType::f32;
  double bytes = 1e6;
};

struct CommFigures {
  Times call;          ///< ms, of the slowest rank
  int calls = 0;       ///< measured
  double bytes = 0;    ///< of the elements that were sent
  double alg_gbs = 0;  ///< bytes / time, in 1e9 bytes a second
  double bus_gbs = 0;  ///< Note [Cost of several devices]
};

/// All ranks call it with the same case. Results are checked first; then about `seconds` are measured, three samples at least: each begins
/// when all ranks are there, and is on a GPU of several calls without a wait in between. Throws std::runtime_error for a wrong result,
/// OutOfMemory, on the CPU where the machine has not enough for all ranks, and what collectives throw.
CommFigures measure_comm(dist::ProcessGroup& group, const CommCase& c, double seconds);

}  // namespace tern::bench
