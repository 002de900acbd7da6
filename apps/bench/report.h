#pragma once
#include "common/program.h"

namespace tern::bench {

/// `tern-bench report ROWS...`: a report in Markdown on the rows of `step`, `attention` and `ops`: times with their spread, memory, cases
/// that ran out of memory, and the effects of precision, fused kernels, activation checkpointing and a warm-up; and a roofline of `conv1d`.
void add_report(CLI::App& app);

}  // namespace tern::bench
