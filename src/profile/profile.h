#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "backend/device.h"

namespace tern::profile {

/// An index that leads nowhere.
inline constexpr std::uint32_t none = 0xffffffff;

/// Kinds of spans, the outermost first.
enum class Kind : std::uint8_t {
  step,    ///< a training step, as the program marks it
  pass,    ///< "forward", "backward", "optimizer", "recompute", ...
  module,  ///< a module's forward
  op,      ///< a call of an op; within "backward", the gradient of one: all of a node's backward function
  inner,   ///< an op that such a function calls
  kernel,  ///< a kernel on the CPU, or the launch of one on a GPU
};

/// A time on the host. Spans of one thread nest.
struct Span {
  Kind kind = Kind::op;         ///< of the work
  bool is_product = false;      ///< of kernels: a GEMM
  std::uint32_t thread = 0;     ///< index of a thread
  std::int64_t begin = 0;       ///< nanoseconds since the profile began
  std::int64_t end = 0;         ///< likewise; of a kernel on a GPU when its launch was queued
  std::uint32_t parent = none;  ///< the innermost span around it
  std::uint32_t name = 0;       ///< index of a name: of a kernel, its op's
  std::uint32_t pass = 0;       ///< index of a name; of a pass, its own
  std::uint32_t module = 0;     ///< index of a module: that of the forward, in backward as well
  double flops = 0;             ///< 0: unknown, or none
  double bytes = 0;             ///< of an op's operands and results, of backward also of what was saved: each read or written once

  std::int64_t duration() const { return end - begin; }  ///< nanoseconds
};

/// Path "" and type "" for what runs outside any module.
struct ModulePath {
  std::string path;  ///< "blocks.3.attn"; the types of the modules around it where no names were given
  std::string type;  ///< "MultiHeadAttention"
};

/// The name of a copy from one GPU to another.
inline constexpr const char* copy_to_peer = "copy to another GPU";

/// Work on a GPU, as CUPTI tells.
struct DeviceRecord {
  /// Work that a GPU's queues hold.
  enum class Kind : std::uint8_t { kernel, copy, fill };
  Kind kind = Kind::kernel;   ///< of the work
  std::int64_t begin = 0;     ///< nanoseconds, on the clock of the spans
  std::int64_t end = 0;       ///< likewise
  std::uint32_t device = 0;   ///< number of the GPU
  std::uint32_t stream = 0;   ///< number of the stream, as CUPTI counts them
  std::string name;           ///< of the kernel, demangled
  std::uint32_t span = none;  ///< the kernel span that launched it; none where a graph did
  std::uint32_t op = 0;       ///< index of a name
  std::uint32_t pass = 0;     ///< index of a name
  std::uint32_t module = 0;   ///< index of a module
  double bytes = 0;           ///< of a copy or fill
  bool is_in_graph = false;   ///< a launch of a captured graph ran it
};

/// A collective between processes on CPUs, which ran beside the thread that began it.
struct Collective {
  std::uint32_t thread = 0;  ///< index of the thread that began it
  std::uint32_t name = 0;    ///< index of a name: "all_reduce"
  std::int64_t begin = 0;    ///< nanoseconds, on the clock of the spans
  std::int64_t end = 0;      ///< likewise
  std::int64_t waited = 0;   ///< nanoseconds that the thread stood still for it
  double bytes = 0;          ///< of the tensor
};

/// Memory in live tensors at a moment.
struct MemorySample {
  std::int64_t time = 0;    ///< nanoseconds, on the clock of the spans
  std::uint64_t bytes = 0;  ///< in live tensors
};

/// Spans, kernels and samples that a profiler recorded: plain data.
struct Profile {
  Device device;                             ///< that the work is for, and whose memory is sampled
  std::int64_t end = 0;                      ///< when the profiler stopped
  std::vector<std::string> names;            ///< the first one is ""
  std::vector<ModulePath> modules;           ///< likewise
  std::vector<std::string> threads;          ///< names of those that were watched; the first one marks the steps
  std::vector<Span> spans;                   ///< of a thread after the other; a parent stands before or after what it holds
  std::vector<DeviceRecord> device_records;  ///< of the GPU
  std::vector<Collective> collectives;       ///< of CPUs; those of a GPU are kernels
  std::vector<MemorySample> memory;          ///< in order

  const std::string& name(const Span& span) const { return names[span.name]; }  ///< of a span
  /// The time of its steps, or all of it where none was marked.
  std::int64_t wall() const;
  std::int64_t steps() const;  ///< that were marked
};

}  // namespace tern::profile
