#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/runtime/launch.h"

namespace tern::gpu {

/// Where a recorded graph's inputs are brought from at a launch, and where it reads them. One kernel brings all: as copies of their own
/// before the graph they cost 20 us each on an H200, which goes from one engine to another and back for them.
struct InputCopies {
  static constexpr int most = 32;
  struct Copy {
    const void* from;
    void* to;
    std::size_t bytes;
  };
  Copy all[most];
  int count = 0;
  std::uint64_t* number_at = nullptr;  ///< where `number` is written
  std::uint64_t number = 0;

  bool empty() const { return count == 0 && !number_at; }
};

/// The kernel node that does these copies, as a launch and as parameters for a graph's node; `copies` must outlive the call that takes
/// them.
void copy_inputs(const InputCopies& copies, Stream stream);
void set_inputs(cudaGraphExec_t executable, cudaGraphNode_t node, const InputCopies& copies);

}  // namespace tern::gpu
