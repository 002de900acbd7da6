#pragma once
#include <CLI/CLI.hpp>

namespace tern::bench {

/// `tern-bench attention`: the time and the memory of scaled dot-product attention, plain and fused, over lengths and head sizes.
void add_attention(CLI::App& app);

}  // namespace tern::bench
