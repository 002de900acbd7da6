#include "tensor/graph.h"

#include "cuda/allocator.h"
#include "cuda/stream.h"

namespace tern::gpu {

namespace {

class RecordedGraph final : public backend::Graph {
 public:
  RecordedGraph(cudaGraph_t graph, Stream stream) : stream_(stream) {
    const cudaError_t counted = cudaGraphGetNodes(graph, nullptr, &nodes_);
    const cudaError_t code = counted == cudaSuccess ? cudaGraphInstantiate(&executable_, graph, 0) : counted;
    cudaGraphDestroy(graph);
    check(code, "cudaGraphInstantiate");
  }
  ~RecordedGraph() override { cudaGraphExecDestroy(executable_); }
  RecordedGraph(const RecordedGraph&) = delete;
  RecordedGraph& operator=(const RecordedGraph&) = delete;

  void launch() override {
    use(stream_);
    check(cudaGraphLaunch(executable_, handle(stream_)), "cudaGraphLaunch");
  }
  std::size_t nodes() const override { return nodes_; }

 private:
  Stream stream_;
  cudaGraphExec_t executable_ = nullptr;
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
  void follow(Stream other) override { Event(other).delay(get()); }
  void lead(Stream other) override { Event(get()).delay(other); }

  std::unique_ptr<backend::Graph> record(const std::function<void()>& work) override {
    use(get());
    // Relaxed: a first use of a library may take memory, which is no part of the recorded work.
    check(cudaStreamBeginCapture(handle(get()), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      if (cudaStreamEndCapture(handle(get()), &graph) == cudaSuccess) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    const cudaError_t code = cudaStreamEndCapture(handle(get()), &graph);
    if (code != cudaSuccess) {
      cudaGetLastError();
      fail("cuda", std::string("expected work that can be recorded as a graph, without a wait for the device, but got ") + cudaGetErrorString(code));
    }
    return std::make_unique<RecordedGraph>(graph, get());
  }

 private:
  OwnedStream stream_;
};

}  // namespace
}  // namespace tern::gpu

namespace tern::backend {

std::unique_ptr<GraphStream> graph_stream(Cuda, Device device) { return std::make_unique<gpu::OwnedGraphStream>(device); }

}  // namespace tern::backend
