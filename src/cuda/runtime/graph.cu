#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "backend/stream.h"
#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"

namespace tern::gpu {

namespace {

/// Inputs of a captured graph at a launch: their addresses, and where the graph reads them. One kernel copies all: separate
/// copies before the graph would each cost the GPU a switch to DMA and back.
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

/// One row of blocks for each input.
__global__ void __launch_bounds__(block_size) copy_all_inputs(__grid_constant__ const InputCopies copies) {
  if (copies.rng_offset_address && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *copies.rng_offset_address = copies.rng_offset;
  if (copies.count == 0) return;
  const InputCopies::Copy& copy = copies.all[blockIdx.y];
  const std::size_t thread = std::size_t(blockIdx.x) * block_size + threadIdx.x, threads = std::size_t(gridDim.x) * block_size;
  const bool is_aligned = (reinterpret_cast<std::uintptr_t>(copy.from) | reinterpret_cast<std::uintptr_t>(copy.to)) % sizeof(uint4) == 0;
  const std::size_t vectors = is_aligned ? copy.bytes / sizeof(uint4) : 0;
  for (std::size_t i = thread; i < vectors; i += threads) static_cast<uint4*>(copy.to)[i] = static_cast<const uint4*>(copy.from)[i];
  for (std::size_t i = vectors * sizeof(uint4) + thread; i < copy.bytes; i += threads)
    static_cast<char*>(copy.to)[i] = static_cast<const char*>(copy.from)[i];
}

dim3 grid_for(const InputCopies& copies) {
  std::size_t longest = 0;
  for (int i = 0; i < copies.count; ++i) longest = std::max(longest, copies.all[i].bytes);
  constexpr std::size_t max_blocks = 1024;
  return dim3(static_cast<unsigned>(std::clamp<std::size_t>(longest / (sizeof(uint4) * block_size), 1, max_blocks)),
              static_cast<unsigned>(std::max(copies.count, 1)));
}

/// Queues the kernel that copies the inputs.
void copy_inputs(const InputCopies& copies, Stream stream) { launch(copy_all_inputs, grid_for(copies), block_size, 0, stream, copies); }

/// Node of that kernel in a captured graph, which may have other root nodes, such as NCCL's.
cudaGraphNode_t input_node(cudaGraph_t graph) {
  std::size_t count = 0;
  check(cudaGraphGetRootNodes(graph, nullptr, &count), "cudaGraphGetRootNodes");
  std::vector<cudaGraphNode_t> roots(count);
  check(cudaGraphGetRootNodes(graph, roots.data(), &count), "cudaGraphGetRootNodes");
  for (const cudaGraphNode_t node : roots) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(node, &type), "cudaGraphNodeGetType");
    if (type != cudaGraphNodeTypeKernel) continue;
    cudaKernelNodeParams parameters{};
    if (cudaGraphKernelNodeGetParams(node, &parameters) != cudaSuccess) cudaGetLastError();  // a kernel that belongs to another library
    else if (parameters.func == reinterpret_cast<void*>(copy_all_inputs)) return node;
  }
  fail("cuda", "expected a graph that begins with the copies of its inputs");
}

/// Sets the inputs of the node in an executable graph that copy_inputs was captured as.
void set_inputs(cudaGraphExec_t executable, cudaGraphNode_t node, const InputCopies& copies) {
  void* arguments[] = {const_cast<InputCopies*>(&copies)};
  cudaKernelNodeParams parameters{};
  parameters.func = reinterpret_cast<void*>(copy_all_inputs);
  parameters.gridDim = grid_for(copies);
  parameters.blockDim = dim3(block_size);
  parameters.kernelParams = arguments;
  check(cudaGraphExecKernelNodeSetParams(executable, node, &parameters), "cudaGraphExecKernelNodeSetParams");
}

class RecordedGraph final : public backend::Graph {
 public:
  RecordedGraph(cudaGraph_t graph, const InputCopies& inputs, Stream stream) : stream_(stream), graph_(graph), inputs_(inputs) {
    try {
      if (!inputs.empty()) input_node_ = input_node(graph);
      check(cudaGraphGetNodes(graph, nullptr, &nodes_), "cudaGraphGetNodes");
      // With the priority of the stream that each kernel was captured on, not that of the stream that launches the graph: kernels of a
      // collective precede those that compute.
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
  cudaGraph_t graph_;  ///< kept, because its nodes identify those of the executable graph
  cudaGraphExec_t executable_ = nullptr;
  cudaGraphNode_t input_node_ = nullptr;
  InputCopies inputs_;
  std::size_t nodes_ = 0;
};

/// Streams for capture that have no owner. They are kept for the next owner, because what belongs to a stream would be lost with it: its
/// memory, completion counters, and the handles of libraries with their workspaces.
class FreeStreams {
 public:
  static std::unique_ptr<OwnedStream> take(Device device) {
    const std::lock_guard lock(all().mutex_);
    auto& streams = all().streams_[device.index];
    if (streams.empty()) return std::make_unique<OwnedStream>(device);
    std::unique_ptr<OwnedStream> stream = std::move(streams.back());
    streams.pop_back();
    return stream;
  }
  static void leave(std::unique_ptr<OwnedStream> stream) {
    const std::lock_guard lock(all().mutex_);
    all().streams_[stream->get().device.index].push_back(std::move(stream));
  }

 private:
  /// Never destroyed: at process exit that would call a runtime that may be gone.
  static FreeStreams& all() {
    static auto& instance = *new FreeStreams;
    return instance;
  }

  std::mutex mutex_;
  std::map<int, std::vector<std::unique_ptr<OwnedStream>>> streams_;
};

class OwnedGraphStream final : public backend::GraphStream {
 public:
  explicit OwnedGraphStream(Device device) : stream_(FreeStreams::take(device)) {}
  ~OwnedGraphStream() override {
    cudaStreamSynchronize(handle(get()));
    end_graphs(get());
    FreeStreams::leave(std::move(stream_));
  }

  Stream get() const override { return stream_->get(); }

  std::unique_ptr<backend::Graph> record(const std::function<void()>& work, std::span<const Input> inputs,
                                         std::uint64_t* rng_offset) override {
    static_assert(max_inputs == InputCopies::max_copies);
    if (inputs.size() > max_inputs)
      fail("cuda", "expected at most " + std::to_string(max_inputs) + " inputs of a graph but got " + std::to_string(inputs.size()));
    use(get());
    InputCopies copies;
    copies.rng_offset_address = rng_offset;
    for (const Input& input : inputs) copies.all[copies.count++] = {input.data, input.data, input.bytes};
    const CaptureMemory memory(get());
    // Relaxed: the first use of a library may allocate memory, which is not part of the captured work.
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
  std::unique_ptr<OwnedStream> stream_;
};

}  // namespace
}  // namespace tern::gpu

namespace tern::backend {

std::unique_ptr<GraphStream> graph_stream(Cuda, Device device) { return std::make_unique<gpu::OwnedGraphStream>(device); }

}  // namespace tern::backend
