#pragma once
#include <optional>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "dist/data_parallel.h"
#include "nn/decoder_lm.h"
#include "train/precision.h"

namespace tern::bench {

/// A model, its input, and how its step is run.
struct StepCase {
  std::string model = "mt", arch = "gpt2";
  train::Precision precision = train::Precision::fp32;
  std::optional<DType> autocast = {};  ///< of the forward pass, over float32 parameters
  std::int64_t batch = 32, length = 40, vocab = 10000;
  double dropout = 0.1;
  CheckpointPolicy activation_checkpointing = CheckpointPolicy::none;
  int warmup = 5, steps = 10;
  bool use_fused_kernel = false, capture = false;
  dist::DataParallelOptions parallel = {};  ///< ways and buckets in which ranks average gradients
  bool forward_only = false;                ///< without gradients, optimizer and what backward would need
  std::int64_t profile = 0;                 ///< further steps that are profiled; 0: none
  std::string out;                          ///< directory for what they give
};

/// The mode by its name in flags and rows: a train::Precision's, "autocast-bf16" or "autocast-fp16".
std::string mode(const StepCase& c);
std::vector<std::string> step_modes();
/// Throws Error for another name.
void set_mode(StepCase& c, const std::string& mode);

/// The names of the models: mt, the classic translator, ar, the associative-recall model, the sizes of the GPT-2 family, and those of GPT-3
/// that follow.
std::vector<std::string> step_models();
/// The same as "mt, ar, ...", for help texts.
std::string list_of_step_models();

/// Of the case's model.
nn::DecoderLMOptions model_options(const StepCase& c, Device device);
/// Throws OutOfMemory where the weights of `processes` processes, with gradients and moments where there are some, take more memory than
/// the machine has. The CPU's memory is overcommitted: a process that asks for too much is killed when it writes, and prints no row.
void require_memory(const nn::DecoderLMOptions& options, bool forward_only, int processes = 1);
/// For names "-full-checkpointing", and for titles ", full activation checkpointing"; empty without it.
std::string checkpointing_suffix(const StepCase& c);
std::string checkpointing_text(const StepCase& c);
/// Uniform tokens of the vocabulary, (B, T) of i64, from this thread's generator.
Tensor random_ids(const StepCase& c, Device device);

/// Times of a step and of its parts, memory and work. Of several ranks each figure is the slowest one's, or the largest, and the loss is
/// their mean.
struct StepFigures {
  Times step;     ///< by the host's clock, with a wait after each step
  Times forward;  ///< by the device's clock, within steps as written, what backward needs included; of forward_only the forward pass alone
  Times backward, update;
  Times host;                        ///< until the calls of a step return
  double burst_ms = 0;               ///< a step, without waits in between
  double alone_ms = 0;               ///< likewise, of several ranks that keep their gradients to themselves; 0 with sharded parameters
  int buckets = 0;                   ///< collectives of a step
  std::int64_t optimizer_bytes = 0;  ///< of moments and masters, on rank 0
  std::int64_t state_bytes = 0;      ///< of these, weights and gradients, between two steps of several ranks
  double inference_ms = 0;           ///< forward without recording
  double tflops = 0;  ///< of the burst, counted as 6 (of forward_only 2) operations a weight and token, and attention's products
  double peak_gib = 0;
  double profiled_ms = 0;   ///< a step under the profiler
  double loss = 0;          ///< of the last step: shows that the steps are those of a training, and of which
  std::int64_t params = 0;  ///< those that a token's products touch
  std::size_t graph_nodes = 0;
};

/// Throws OutOfMemory; on the CPU also where the weights, with gradients and moments where there are some, are more than the machine has.
/// In a group of several ranks each has a batch of its own, and the same step is data parallel: all call it with the same case.
StepFigures measure_step(const StepCase& c, Device device, dist::ProcessGroup* group = nullptr);

}  // namespace tern::bench
