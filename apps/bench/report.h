#pragma once
#include "common/program.h"

namespace tern::bench {

/// `tern-bench report ROWS...`: what the rows of `step`, `attention` and `ops` say, as Markdown: times with their spread, memory, what ran
/// out of it, and what precision, fused kernels, activation checkpointing and a warm-up changed; and those of `conv1d` as a roofline.
void add_report(CLI::App& app);

}  // namespace tern::bench
