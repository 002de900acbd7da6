#pragma once
#include <string>
#include <vector>

#include "bench/roofline.h"
#include "io/json_object.h"
#include "io/svg.h"

namespace tern::bench {

/// The roofline of a device (Williams, Waterman & Patterson, "Roofline", 2009), with each part at its FLOP per byte.
io::svg::Chart roofline(const DevicePeak& device, const std::vector<Count>& counts, int bytes_per_element);

/// The forward passes in rows of `tern-bench conv1d`, and of other libraries, under the measured roofline. A small signal stays in a CPU's
/// cache between calls, and may lie above the memory roof. Throws UsageError for rows without a copy, a GEMM or a forward pass of tern.
io::svg::Chart roofline(const std::vector<io::JsonObject>& rows);

}  // namespace tern::bench
