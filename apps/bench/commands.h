#pragma once
#include <CLI/CLI.hpp>

// The subcommands of tern-bench.
namespace tern::bench {

/// `tern-bench step`: the time of a training step of a named model.
void add_step(CLI::App& app);
/// `tern-bench compile`: the time of functions written in plain ops, as written, captured and compiled, and their programs as text and
/// pictures.
void add_compile(CLI::App& app);
/// `tern-bench rules`: graphs that may replace others, enumerated, fingerprinted, judged and pruned, and how often they fit the programs of
/// `tern-bench compile`.
void add_rules(CLI::App& app);
/// `tern-bench loops`: a kernel's loops after each line of a schedule (study/loops): as text, proved, checked, and timed; and a search for
/// schedules.
void add_loops(CLI::App& app);
/// `tern-bench grade`: a CUDA kernel of the user's own, checked against float64 and timed beside the library's.
void add_grade(CLI::App& app);
/// `tern-bench memory`: the memory of a forward pass and of a training step by category, as pictures, snapshots and a report.
void add_memory(CLI::App& app);
/// `tern-bench ops`: the time of single operators, plain and fused, beside that of a copy of as many bytes.
void add_ops(CLI::App& app);
/// `tern-bench attention`: the time and the memory of scaled dot-product attention, plain and fused, over lengths and head sizes.
void add_attention(CLI::App& app);
/// `tern-bench mixers`: the time of a layer of each token mixer, beside attention's, and its state.
void add_mixers(CLI::App& app);
/// `tern-bench conv1d`: the time of the depthwise convolution and of its gradient, beside that of a copy.
void add_conv(CLI::App& app);
/// `tern-bench count`: FLOPs, bytes and arithmetic intensity of a transformer's parts, and their bound (compute or memory) on a device;
/// FLOPs and states of token mixers.
void add_count(CLI::App& app);
/// `tern-bench comm`: the time of collectives by size and number of ranks, the fixed overhead of a call, and the best bucket size for a
/// model's gradients.
void add_comm(CLI::App& app);
/// `tern-bench accounting`: memory of a model's training state and traffic of a step for any number of devices, by formulas.
void add_accounting(CLI::App& app);
/// `tern-bench report ROWS...`: a report in Markdown on the rows of `step`, `attention` and `ops`: times with their spread, memory, cases
/// that ran out of memory, and the effects of precision, fused kernels, activation checkpointing and a warm-up; and a roofline of `conv1d`.
void add_report(CLI::App& app);

}  // namespace tern::bench
