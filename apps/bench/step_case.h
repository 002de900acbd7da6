#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "compile/compile.h"
#include "nn/transformer.h"
#include "parallel/data_parallel.h"
#include "train/precision.h"

namespace tern::bench {

/// A model, its input, and the execution of its step.
struct StepCase {
  std::string model = "mt", arch = "gpt2";
  train::Precision precision = train::Precision::fp32;
  std::optional<DType> autocast = {};  ///< dtype of autocast in the forward pass, with float32 parameters
  std::int64_t batch = 32, length = 40, vocab = 10000;
  double dropout = 0.1;
  CheckpointPolicy activation_checkpointing = CheckpointPolicy::none;
  int warmup = 5, steps = 10;
  bool use_fused_kernel = false;
  Step::Way way = Step::Way::as_written;
  parallel::DataParallelOptions parallel = {};  ///< synchronisation of gradients
  bool forward_only = false;                    ///< inference: no gradients, optimizer or saved tensors
  std::int64_t profile = 0;                     ///< further steps to profile; 0: none
  std::string out;                              ///< directory of the profile
};

/// The name of a mode in flags and rows: that of a train::Precision, "autocast-bf16" or "autocast-fp16".
std::string mode(const StepCase& c);
std::vector<std::string> step_modes();
/// Sets the mode of a name. Throws Error for an unknown name.
void set_mode(StepCase& c, const std::string& mode);

/// The names of the models: mt, the classic translator, ar, the associative-recall model, the sizes of the GPT-2 family, and those of GPT-3
/// that follow.
std::vector<std::string> step_models();
/// The names as text "mt, ar, ...", for the help.
std::string list_of_step_models();

/// The options of the case's model.
nn::DecoderLMOptions model_options(const StepCase& c, Device device);
/// Throws OutOfMemory if the weights of `processes` processes, with gradients and moments if there are any, exceed the machine's memory.
/// The system overcommits memory: a process that allocates too much is killed when it writes, and prints no row.
void require_memory(const nn::DecoderLMOptions& options, bool forward_only, int processes = 1);
/// Each case with each of the values.
template <class Values, class Set>
void vary(std::vector<StepCase>& cases, const Values& values, const Set& set) {
  std::vector<StepCase> result;
  for (const StepCase& c : cases)
    for (const auto& value : values) set(result.emplace_back(c), value);
  cases = std::move(result);
}
/// The beginning of a row: the case's sizes and execution, the latter with `more` behind.
io::JsonObject case_row(const StepCase& c, const std::string& more = "");
/// The suffix "-full-checkpointing" for names, and ", full activation checkpointing" for titles; empty without checkpointing.
std::string checkpointing_suffix(const StepCase& c);
std::string checkpointing_text(const StepCase& c);
/// Random tokens of the vocabulary, uniform, (B, T) of i64, from this thread's generator.
Tensor random_ids(const StepCase& c, Device device);

/// Times, memory and work of a step. With several ranks each figure is the maximum over the ranks, and the loss is their mean.
struct StepFigures {
  Times step;     ///< host time, with a wait after each step
  Times forward;  ///< device time within eager steps, with saving for backward unless forward_only
  Times backward, update;
  Times host;                        ///< host time until the calls of a step return
  double burst_ms = 0;               ///< time of a step in a sequence without waits
  double alone_ms = 0;               ///< the same without synchronisation of gradients, for several ranks; 0 with sharded parameters
  int buckets = 0;                   ///< collectives of a step
  std::int64_t optimizer_bytes = 0;  ///< bytes of moments and masters, on rank 0
  std::int64_t state_bytes = 0;      ///< these, weights and gradients between two steps, for several ranks
  double inference_ms = 0;           ///< time of the forward pass without gradients
  double tflops = 0;                 ///< rate of the burst: 6 (forward_only: 2) operations per weight and token, and the GEMMs of attention
  double peak_gib = 0;
  double profiled_ms = 0;   ///< time of a step under the profiler
  double loss = 0;          ///< loss of the last step, as a check
  std::int64_t params = 0;  ///< parameters in GEMMs of a token
  std::size_t graph_nodes = 0;
  std::string programs;  ///< report of a compiled step
};

/// Measures a case. In a group of several ranks the step is data parallel, with a batch for each rank; to be called on all ranks with the
/// same case. Throws OutOfMemory, on the CPU also if weights, gradients and moments exceed the machine's memory.
StepFigures measure_step(const StepCase& c, Device device, parallel::ProcessGroup* group = nullptr);

}  // namespace tern::bench
