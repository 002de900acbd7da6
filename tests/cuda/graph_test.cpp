// The order of work in a recorded graph.
#include "backend/stream.h"
#include "catch.h"
#include "cuda/runtime/launch.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/view.h"

namespace tern {

TEST_CASE("Kernels of a graph go first by the priority of the stream that they were recorded on", "[cuda]") {
  const NoGrad unrecorded;
  const std::int64_t count = std::int64_t(1) << 28;  // about 0.5 ms of an H200's bandwidth
  const auto stream = backend::graph_stream(Cuda{}, cuda());
  const gpu::OwnedStream urgent(cuda(), gpu::Priority::high);
  const Tensor large = zeros({count}, DType::f32, cuda()), small = zeros({256}, DType::f32, cuda()), seen = ones({1}, DType::f32, cuda());
  const Tensor last = slice(large, 0, count - 1, count);
  synchronize(cuda());
  const StreamScope recorded(stream->get());
  const auto graph = stream->record([&] {
    add_(small, 1.0);  // both streams wait for it
    const backend::Event begin(stream->get());
    {
      const StreamScope on_urgent(urgent.get());
      begin.wait(urgent.get());
      for (int i = 0; i < 4; ++i) add_(small, 1.0);  // the later ones find a GPU that is full of blocks of the large kernel
      copy_(seen, last);                             // before the large kernel's last block, unless all of these wait for its end
    }
    add_(large, 1.0);
    const backend::Event end(urgent.get());
    end.wait(stream->get());
  });
  // A priority is a hint, and a GPU that is late once is no fault: most launches have the order, and none has it without priorities.
  const int launches = 9;
  int early = 0;
  for (int i = 1; i <= launches; ++i) {
    graph->launch();
    synchronize(cuda());
    CHECK(last.item() == i);
    early += seen.item() == i - 1;
  }
  CHECK(early > launches / 2);
}

TEST_CASE("A stream for capture is left to the next owner, with what belongs to it", "[cuda]") {
  const void* const first = backend::graph_stream(Cuda{}, cuda())->get().handle;
  const auto second = backend::graph_stream(Cuda{}, cuda()), third = backend::graph_stream(Cuda{}, cuda());
  CHECK(second->get().handle == first);
  CHECK(third->get().handle != first);
}

}  // namespace tern
