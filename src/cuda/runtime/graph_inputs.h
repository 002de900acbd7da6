#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/launch.h"

namespace tern::gpu {

/// The inputs of a recorded graph at a launch: their addresses, and where the graph reads them. One kernel copies all: separate copies
/// before the graph take 20 us each on an H200, which switches to its copy engine and back for each.
struct InputCopies {
  static constexpr int max_copies = 32;
  struct Copy {
    const void* from;
    void* to;
    std::size_t bytes;
  };
  Copy all[max_copies];
  int count = 0;
  std::uint64_t* rng_offset_address = nullptr;  ///< in device memory; null for a graph that draws no random numbers
  std::uint64_t rng_offset = 0;

  bool empty() const { return count == 0 && !rng_offset_address; }
};

/// Queues the kernel that does these copies.
void copy_inputs(const InputCopies& copies, Stream stream);
/// That kernel's node in a recorded graph, which may have other nodes that wait for none, as NCCL's.
cudaGraphNode_t input_node(cudaGraph_t graph);
/// Gives these copies to the node of an executable graph that copy_inputs was recorded as.
void set_inputs(cudaGraphExec_t executable, cudaGraphNode_t node, const InputCopies& copies);

}  // namespace tern::gpu
