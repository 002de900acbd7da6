#include "profile/thread_recorder.h"

#ifdef TERN_CUPTI
#include <cupti.h>
#include <nvtx3/nvToolsExt.h>
#include <sys/mman.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "backend/observer.h"
#include "profile/profiler.h"
#endif

namespace tern::profile {

#ifndef TERN_CUPTI

std::unique_ptr<DeviceTracer> make_device_tracer() { return nullptr; }

#else

// Note [Kernels and their ops]
// A kernel that is launched outside a graph is matched to its op by CUPTI's external correlation ids: each CUDA call gives a record with
// the id that was pushed last and the call's own id, which the kernel's record has, too. A kernel of a graph has the id of its node. When a
// graph is captured, CUPTI calls back for each new node on the capturing thread: the callback stores the pushed id of the node, and passes
// it on to its clone in the executable graph.

namespace {

class CuptiTracer final : public DeviceTracer {
 public:
  CuptiTracer() {
    const std::lock_guard lock(mutex());
    if (instance()) return;                                                           // another profiler uses CUPTI
    if (cuptiSubscribe(&subscriber_, on_callback, nullptr) != CUPTI_SUCCESS) return;  // Nsight uses CUPTI
    instance() = this;
    for (const CUpti_CallbackId id : {CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED})
      cuptiEnableCallback(1, subscriber_, CUPTI_CB_DOMAIN_RESOURCE, id);
    std::uint8_t zeroed = 1;  // else CUPTI clears each new buffer on the thread that launches: Note [Records' buffers]
    std::size_t size = sizeof zeroed;
    cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_ZEROED_OUT_ACTIVITY_BUFFER, &size, &zeroed);
    cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    for (const CUpti_ActivityKind kind : kinds) is_on_ = cuptiActivityEnable(kind) == CUPTI_SUCCESS;
  }
  ~CuptiTracer() override {
    {
      const std::lock_guard lock(mutex());
      if (instance() != this) return;
    }
    for (const CUpti_ActivityKind kind : kinds) cuptiActivityDisable(kind);
    cuptiActivityFlushAll(1);  // passes the records to take_buffer
    cuptiUnsubscribe(subscriber_);
    const std::lock_guard lock(mutex());
    instance() = nullptr;
  }

  bool is_on() const { return is_on_; }

  void push(std::uint64_t number) override {
    number_ = number;
    cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, number);
  }
  void pop() override {
    number_ = 0;
    std::uint64_t last = 0;
    cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &last);
  }
  void begin_range(const char* name) override { nvtxRangePushA(name); }
  void end_range() override { nvtxRangePop(); }

  std::vector<Work> collect() override {
    cuptiActivityFlushAll(1);
    std::uint64_t there = 0;
    cuptiGetTimestamp(&there);
    const std::int64_t here = backend::steady_ns();
    const std::lock_guard lock(mutex());
    std::vector<Work> result;
    for (auto& [record, correlation, node] : raw_) {
      Work work{std::move(record), 0};
      work.record.begin += here - static_cast<std::int64_t>(there);
      work.record.end += here - static_cast<std::int64_t>(there);
      work.record.is_in_graph = node != 0;
      const auto& numbers = node != 0 ? number_of_node_ : number_of_call_;
      const auto found = numbers.find(node != 0 ? node : correlation);
      if (found != numbers.end()) work.number = found->second;
      result.push_back(std::move(work));
    }
    raw_.clear();
    number_of_call_.clear();
    return result;
  }

 private:
  struct Raw {
    DeviceRecord record;  ///< with times of CUPTI's clock
    std::uint64_t correlation, node;
  };

  // Runtime and driver calls are recorded for their external correlation ids only.
  static constexpr CUpti_ActivityKind kinds[] = {CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
                                                 CUPTI_ACTIVITY_KIND_RUNTIME,
                                                 CUPTI_ACTIVITY_KIND_DRIVER,
                                                 CUPTI_ACTIVITY_KIND_MEMSET,
                                                 CUPTI_ACTIVITY_KIND_MEMCPY,
                                                 CUPTI_ACTIVITY_KIND_MEMCPY2,
                                                 CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL};

  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static CuptiTracer*& instance() {
    static CuptiTracer* one = nullptr;
    return one;
  }

  static void CUPTIAPI on_callback(void*, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
    if (domain != CUPTI_CB_DOMAIN_RESOURCE) return;
    const auto* const resource = static_cast<const CUpti_ResourceData*>(data);
    const auto* const graph = static_cast<const CUpti_GraphData*>(resource->resourceDescriptor);
    std::uint64_t node = 0;
    if (!graph || cuptiGetGraphNodeId(graph->node, &node) != CUPTI_SUCCESS) return;
    const std::lock_guard lock(mutex());
    if (!instance()) return;
    auto& numbers = instance()->number_of_node_;
    if (id == CUPTI_CBID_RESOURCE_GRAPHNODE_CREATED) {
      if (number_ != 0) numbers[node] = number_;
      return;
    }
    std::uint64_t original = 0;
    if (cuptiGetGraphNodeId(graph->originalNode, &original) != CUPTI_SUCCESS) return;
    if (const auto found = numbers.find(original); found != numbers.end()) numbers[node] = std::uint64_t(found->second);
  }

  // Note [Records' buffers]
  // CUPTI requests a buffer on the thread that launches, and again after each flush, so also in the first measured step. Pages of a new
  // mapping are zero, and are allocated when a record is written. Heap memory, new or reused, would have to be cleared: megabytes of it.

  static void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
    *size = std::size_t(4) << 20;
    void* const pages = mmap(nullptr, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *buffer = pages == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(pages);
    if (!*buffer) *size = 0;  // CUPTI drops records
    *max_records = 0;
  }

  static void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t size, std::size_t valid) {
    {
      const std::lock_guard lock(mutex());
      CUpti_Activity* record = nullptr;
      while (instance() && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) instance()->take(*record);
    }
    if (buffer) munmap(buffer, size);
  }

  template <class Record>
  void keep(const Record& from, DeviceRecord::Kind kind, std::string name, double bytes) {
    DeviceRecord record;
    record.kind = kind;
    record.begin = static_cast<std::int64_t>(from.start);
    record.end = static_cast<std::int64_t>(from.end);
    record.device = from.deviceId;
    record.stream = from.streamId;
    record.name = std::move(name);
    record.bytes = bytes;
    raw_.push_back({std::move(record), from.correlationId, from.graphNodeId});
  }

  void take(const CUpti_Activity& record) {
    switch (record.kind) {
      case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
        const auto& joined = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
        number_of_call_[joined.correlationId] = joined.externalId;
        break;
      }
      case CUPTI_ACTIVITY_KIND_KERNEL:
      case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel9&>(record);
        keep(kernel, DeviceRecord::Kind::kernel, readable(kernel.name), 0);
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMSET: {
        const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
        keep(fill, DeviceRecord::Kind::fill, "fill", static_cast<double>(fill.bytes));
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy5&>(record);
        keep(copy, DeviceRecord::Kind::copy, "copy", static_cast<double>(copy.bytes));
        break;
      }
      case CUPTI_ACTIVITY_KIND_MEMCPY2: {
        const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record);
        keep(copy, DeviceRecord::Kind::copy, copy_to_peer, static_cast<double>(copy.bytes));
        break;
      }
      default: break;
    }
  }

  const std::string& readable(const char* name) {
    std::string& known = names_[name];
    if (known.empty()) known = detail::readable_kernel_name(name);
    return known;
  }

  static inline thread_local std::uint64_t number_ = 0;  ///< the number that was pushed last

  CUpti_SubscriberHandle subscriber_{};
  bool is_on_ = false;
  // Guarded by the mutex: CUPTI delivers records on a thread of its own.
  std::vector<Raw> raw_;
  std::unordered_map<std::uint64_t, std::uint64_t> number_of_call_, number_of_node_;
  std::unordered_map<std::string, std::string> names_;
};

}  // namespace

std::unique_ptr<DeviceTracer> make_device_tracer() {
  auto tracer = std::make_unique<CuptiTracer>();
  if (!tracer->is_on()) return nullptr;
  return tracer;
}

#endif

}  // namespace tern::profile
