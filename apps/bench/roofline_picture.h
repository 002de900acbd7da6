#pragma once
#include <string>
#include <vector>

#include "bench/roofline.h"
#include "common/plot/chart.h"
#include "io/json_object.h"

namespace tern::bench {

/// The device's roofs, and on them each part at its FLOP per byte: no kernel can be above. Williams, Waterman & Patterson, "Roofline",
/// 2009.
apps::Chart roofline(const DevicePeak& device, const std::vector<Count>& counts, int bytes_per_element);

/// The forward passes among rows of `tern-bench conv1d`, and of its peers, under the roofs that it measured. A small signal stays in a
/// CPU's cache between calls, and may lie above the memory's roof. Throws UsageError for rows without a copy, a product or a forward pass
/// of ours.
apps::Chart roofline(const std::vector<io::JsonObject>& rows);

}  // namespace tern::bench
