#include "backend/graph.h"

#include "backend/device_failure.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/graph_inputs.h"
#include "cuda/runtime/stream.h"

namespace tern::gpu {

namespace {

class RecordedGraph final : public backend::Graph {
 public:
  RecordedGraph(cudaGraph_t graph, const InputCopies& inputs, Stream stream) : stream_(stream), graph_(graph), inputs_(inputs) {
    try {
      if (!inputs.empty()) input_node_ = input_node(graph);
      check(cudaGraphGetNodes(graph, nullptr, &nodes_), "cudaGraphGetNodes");
      // With the priority of the stream that each kernel was recorded on, and not with that of the stream which the graph is launched on:
      // kernels of a collective go before those that compute.
      check(cudaGraphInstantiate(&executable_, graph, cudaGraphInstantiateFlagUseNodePriority), "cudaGraphInstantiate");
    } catch (...) {
      cudaGraphDestroy(graph);
      throw;
    }
  }
  ~RecordedGraph() override {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  RecordedGraph(const RecordedGraph&) = delete;
  RecordedGraph& operator=(const RecordedGraph&) = delete;

  void launch(std::span<const void* const> inputs, std::uint64_t rng_offset) override {
    use(stream_);
    backend::throw_if_failed(stream_.device);
    if (!inputs_.empty()) {
      inputs_.rng_offset = rng_offset;
      for (int i = 0; i < inputs_.count; ++i) inputs_.all[i].from = inputs[static_cast<std::size_t>(i)];
      set_inputs(executable_, input_node_, inputs_);
    }
    check(cudaGraphLaunch(executable_, handle(stream_)), "cudaGraphLaunch");
  }
  std::size_t nodes() const override { return nodes_; }

 private:
  Stream stream_;
  cudaGraph_t graph_;  ///< kept, as its nodes name those of the executable one
  cudaGraphExec_t executable_ = nullptr;
  cudaGraphNode_t input_node_ = nullptr;
  InputCopies inputs_;
  std::size_t nodes_ = 0;
};

class OwnedGraphStream final : public backend::GraphStream {
 public:
  explicit OwnedGraphStream(Device device) : stream_(device) { hold_cached_memory(stream_.get(), true); }
  ~OwnedGraphStream() override {
    cudaStreamSynchronize(handle(stream_.get()));
    hold_cached_memory(stream_.get(), false);
  }

  Stream get() const override { return stream_.get(); }

  std::unique_ptr<backend::Graph> record(const std::function<void()>& work, std::span<const Input> inputs,
                                         std::uint64_t* rng_offset) override {
    static_assert(max_inputs == InputCopies::max_copies);
    if (inputs.size() > max_inputs)
      fail("cuda", "expected at most " + std::to_string(max_inputs) + " inputs of a graph but got " + std::to_string(inputs.size()));
    use(get());
    InputCopies copies;
    copies.rng_offset_address = rng_offset;
    for (const Input& input : inputs) copies.all[copies.count++] = {input.data, input.data, input.bytes};
    // Relaxed: a first use of a library may take memory, which is no part of the recorded work.
    check(cudaStreamBeginCapture(handle(get()), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      if (!copies.empty()) copy_inputs(copies, get());
      work();
    } catch (...) {
      if (cudaStreamEndCapture(handle(get()), &graph) == cudaSuccess) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    const cudaError_t code = cudaStreamEndCapture(handle(get()), &graph);
    if (code != cudaSuccess) {
      cudaGetLastError();
      fail("cuda", std::string("expected work that can be recorded as a graph, without a wait for the device, but got ") +
                       cudaGetErrorString(code));
    }
    return std::make_unique<RecordedGraph>(graph, copies, get());
  }

 private:
  OwnedStream stream_;
};

}  // namespace
}  // namespace tern::gpu

namespace tern::backend {

std::unique_ptr<GraphStream> graph_stream(Cuda, Device device) { return std::make_unique<gpu::OwnedGraphStream>(device); }

}  // namespace tern::backend
