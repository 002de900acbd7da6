#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>

#include "cuda/device/vec16.cuh"
#include "cuda/runtime/dispatch.h"
#include "cuda/runtime/launch.h"
#include "parallel/nccl/peer_copies.h"
#include "tensor/ceil_div.h"

namespace tern::parallel {

namespace {

/// Staging memory of each rank and kind of slot, for all senders together: twice a rank's part of a bucket of the default size.
constexpr std::size_t staging_bytes = std::size_t(32) << 20;
constexpr std::size_t flag_stride = 64;  ///< bytes: one flag in each cache line
constexpr int slot_kinds = 2, flag_kinds = 2;
/// Blocks of the kernels that sum and copy slots: two for each multiprocessor of an H100. All of the memory bandwidth for a short time
/// slows concurrent kernels less than a few blocks for longer.
constexpr unsigned max_blocks = 264;
constexpr int adding_vectors = 2;  ///< vectors in flight for each thread and rank

__device__ float combine(ReduceOp op, float a, float b) {
  switch (op) {
    case ReduceOp::max: return a > b || a != a ? a : b;
    case ReduceOp::min: return a < b || a != a ? a : b;
    default: return a + b;
  }
}

/// Vectors v, v + step, ... of y = the ranks' x combined in their order: `own` is this rank's, and those of the others lie `stride`
/// elements apart in slots.
template <class T, int width, int vectors>
__device__ void reduce_vectors(T* y, const T* own, const T* slots, std::int64_t stride, int rank, int size, ReduceOp op, std::int64_t v,
                               std::int64_t step) {
  float sum[vectors][width], next[width];
  for (int r = 0; r < size; ++r) {
    const T* const x = r == rank ? own : slots + r * stride;
    gpu::Packed<T, width> packed[vectors];
#pragma unroll
    for (int n = 0; n < vectors; ++n) packed[n] = gpu::read_packed_cg<width>(x + (v + n * step) * width);
#pragma unroll
    for (int n = 0; n < vectors; ++n) {
      gpu::unpack<T, float, width>(packed[n], next);
#pragma unroll
      for (int k = 0; k < width; ++k) sum[n][k] = r == 0 ? next[k] : combine(op, sum[n][k], next[k]);
    }
  }
#pragma unroll
  for (int n = 0; n < vectors; ++n) {
    if (op == ReduceOp::mean) {
#pragma unroll
      for (int k = 0; k < width; ++k) sum[n][k] /= static_cast<float>(size);
    }
    gpu::write_packed<width>(y + (v + n * step) * width, gpu::pack<T, float, width>(sum[n]));
  }
}

template <class T>
__global__ void reduce_parts(T* y, const T* own, const T* slots, std::int64_t stride, int rank, int size, ReduceOp op, std::int64_t count,
                             bool aligned) {
  constexpr int width = gpu::vec16_width<T>;
  const std::int64_t vectors = aligned ? count / width : 0, step = std::int64_t(gridDim.x) * blockDim.x;
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  std::int64_t v = thread;
  for (; v + (adding_vectors - 1) * step < vectors; v += adding_vectors * step)
    reduce_vectors<T, width, adding_vectors>(y, own, slots, stride, rank, size, op, v, step);
  for (; v < vectors; v += step) reduce_vectors<T, width, 1>(y, own, slots, stride, rank, size, op, v, step);
  for (std::int64_t i = vectors * width + thread; i < count; i += step)
    reduce_vectors<T, 1, 1>(y, own, slots, stride, rank, size, op, i, step);
}

/// y = x, both on this GPU. cudaMemcpyAsync launches a kernel as well, but without the stream's priority: during an optimizer's update,
/// whose blocks fill the GPU, it would start only after that.
__global__ void copy_bytes(char* y, const char* x, std::int64_t bytes) {
  const std::int64_t vectors = bytes / 16, step = std::int64_t(gridDim.x) * blockDim.x;
  const std::int64_t thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  for (std::int64_t v = thread; v < vectors; v += step) reinterpret_cast<uint4*>(y)[v] = __ldcg(reinterpret_cast<const uint4*>(x) + v);
  for (std::int64_t i = vectors * 16 + thread; i < bytes; i += step) y[i] = x[i];
}

template <class F>
void dispatch_reduced(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f.template operator()<float>();
    case DType::bf16: return f.template operator()<bf16>();
    default: return f.template operator()<f16>();
  }
}

std::string random_name() {
  std::random_device random;
  return "/tern-" + std::to_string((std::uint64_t(random()) << 32) | random());
}

/// The name of a shared memory object, unlinked at the end: processes that have mapped it by then keep it.
struct SharedName {
  explicit SharedName(std::string text_) : text(std::move(text_)) {}
  ~SharedName() { remove(); }
  void remove() const { shm_unlink(text.c_str()); }
  const std::string text;
};

}  // namespace

PeerCopies::PeerCopies(int rank, int size)
    : rank_(rank),
      size_(size),
      slot_bytes_(staging_bytes / static_cast<std::size_t>(size) / 16 * 16),
      slots_(static_cast<std::size_t>(size)) {
  for (int i = 0; i < size; ++i)
    if (i != rank) others_.push_back(i);
  flag_bytes_ = static_cast<std::size_t>(size * size * slot_kinds * flag_kinds) * flag_stride;
}

std::unique_ptr<PeerCopies> PeerCopies::make(const LaunchEnvironment& environment, Store& store, Device device,
                                             std::chrono::milliseconds timeout) {
  if (environment.local_size != environment.size || environment.size < 2) return nullptr;
  const auto key = [](const char* what, int rank) { return std::string("copies/") + what + "/" + std::to_string(rank); };
  const int rank = environment.rank, size = environment.size;
  // Each step publishes in the store what the other ranks need for the next one, or "" if it failed here.
  const auto exchange = [&](const char* what, const std::string& value) {
    store.set(key(what, rank), value);
    std::vector<std::string> all;
    for (int i = 0; i < size; ++i) all.push_back(store.get(key(what, i), timeout));
    return std::any_of(all.begin(), all.end(), [](const std::string& x) { return x.empty(); }) ? std::vector<std::string>{} : all;
  };
  const auto tried = [](auto&& f) -> std::string {
    try {
      return f();
    } catch (const Error&) {
      return "";
    }
  };
  gpu::use({device});
  std::unique_ptr<PeerCopies> self(new PeerCopies(rank, size));
  SharedName name(rank == 0 ? random_name() : "-");
  const std::vector<std::string> names =
      exchange("flags", rank == 0 ? tried([&] { return self->map_flags(name.text, true), name.text; }) : name.text);
  if (names.empty()) return nullptr;
  const std::string memory = tried([&] {
    if (rank != 0) self->map_flags(names[0], false);
    void* slots = nullptr;
    gpu::check(cudaMalloc(&slots, slot_kinds * static_cast<std::size_t>(size) * self->slot_bytes_), "cudaMalloc");
    self->slots_[static_cast<std::size_t>(rank)] = static_cast<char*>(slots);
    cudaIpcMemHandle_t handle;
    gpu::check(cudaIpcGetMemHandle(&handle, slots), "cudaIpcGetMemHandle");
    return std::string(reinterpret_cast<const char*>(&handle), sizeof handle);
  });
  const std::vector<std::string> memories = exchange("memory", memory);
  name.remove();  // all ranks have mapped it
  if (memories.empty()) return nullptr;
  const std::string opened = tried([&] {
    for (const int other : self->others_) {
      const std::string& bytes = memories[static_cast<std::size_t>(other)];
      cudaIpcMemHandle_t handle;
      if (bytes.size() != sizeof handle) fail("dist", "expected a handle of memory from rank " + std::to_string(other));
      std::memcpy(&handle, bytes.data(), sizeof handle);
      void* slots = nullptr;
      gpu::check(cudaIpcOpenMemHandle(&slots, handle, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
      self->slots_[static_cast<std::size_t>(other)] = static_cast<char*>(slots);
    }
    return std::string("yes");
  });
  return exchange("opened", opened).empty() ? nullptr : std::move(self);
}

/// Maps the flags in a POSIX shared memory object. At first every slot is free and nothing has arrived.
void PeerCopies::map_flags(const std::string& name, bool is_creator) {
  const int file = shm_open(name.c_str(), is_creator ? O_CREAT | O_EXCL | O_RDWR : O_RDWR, 0600);
  if (file < 0) fail("dist", "shared memory could not be opened");
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  flag_bytes_ = round_up(flag_bytes_, page);
  struct stat known{};
  const bool has_size = is_creator ? ftruncate(file, static_cast<off_t>(flag_bytes_)) == 0
                                   : fstat(file, &known) == 0 && known.st_size >= static_cast<off_t>(flag_bytes_);
  void* const mapped = has_size ? mmap(nullptr, flag_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) fail("dist", "shared memory could not be mapped");
  flags_ = mapped;
  if (is_creator)
    for (int waiter = 0; waiter < size_; ++waiter)
      for (const Slot slot : {parts, results})
        for (int other = 0; other < size_; ++other) *flag(waiter, slot, Flag::free, other) = 1;
  gpu::check(cudaHostRegister(flags_, flag_bytes_, cudaHostRegisterMapped | cudaHostRegisterPortable), "cudaHostRegister");
  gpu::check(cudaHostGetDevicePointer(&flags_on_device_, flags_, 0), "cudaHostGetDevicePointer");
}

PeerCopies::~PeerCopies() {
  for (int i = 0; i < size_; ++i) {
    char* const slots = slots_[static_cast<std::size_t>(i)];
    if (slots && i != rank_) cudaIpcCloseMemHandle(slots);
    if (slots && i == rank_) cudaFree(slots);
  }
  if (flags_on_device_) cudaHostUnregister(flags_);
  if (flags_) munmap(flags_, flag_bytes_);
  cudaGetLastError();
}

std::int64_t PeerCopies::Layout::elements(int rank, std::int64_t offset) const {
  return std::clamp<std::int64_t>(std::min(part - offset, count - first(rank, offset)), 0, piece);
}

PeerCopies::Layout PeerCopies::layout(std::int64_t count, std::int64_t part, DType dtype) const {
  return {.count = count, .part = part, .piece = static_cast<std::int64_t>(slot_bytes_ / size_of(dtype)), .element = size_of(dtype)};
}

char* PeerCopies::slot(char* base, Slot kind, int sender) const {
  return base + static_cast<std::size_t>(kind * size_ + sender) * slot_bytes_;
}

std::uint32_t* PeerCopies::flag(int waiter, Slot slot, Flag kind, int other) const {
  const int number = ((waiter * slot_kinds + slot) * flag_kinds + static_cast<int>(kind)) * size_ + other;
  return reinterpret_cast<std::uint32_t*>(static_cast<char*>(flags_) + static_cast<std::size_t>(number) * flag_stride);
}

/// A stream and a batch of flag operations, which are queued together (one node of a graph) before the next copy or kernel.
class PeerCopies::Queue {
 public:
  Queue(const PeerCopies& copies, Stream stream) : copies_(copies), stream_(stream) {}

  /// Waits for this rank's flag of each of these ranks to be 1, and sets it to 0.
  void wait_for(Slot slot, Flag kind, const std::vector<int>& others) {
    for (const int other : others) {
      CUstreamBatchMemOpParams wait{};
      wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
      wait.waitValue.address = address_of(copies_.flag(copies_.rank_, slot, kind, other));
      wait.waitValue.value = 1;
      wait.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
      operations_.push_back(wait);
      write(copies_.flag(copies_.rank_, slot, kind, other), 0);
    }
  }
  /// Sets this rank's flag at each of these ranks to 1.
  void signal(Slot slot, Flag kind, const std::vector<int>& others) {
    for (const int other : others) write(copies_.flag(other, slot, kind, copies_.rank_), 1);
  }
  void copy(void* to, const void* from, std::size_t bytes) {
    gpu::check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, gpu::handle(stream())), "copy between GPUs");
  }
  void copy_here(void* to, const void* from, std::size_t bytes) {
    if (!gpu::is_aligned(to, 16) || !gpu::is_aligned(from, 16)) return copy(to, from, bytes);
    const auto count = static_cast<std::int64_t>(bytes);
    gpu::launch(copy_bytes, dim3(std::min(max_blocks, gpu::blocks_for(count, 512 * 16))), dim3(512), 0, stream(), static_cast<char*>(to),
                static_cast<const char*>(from), count);
  }
  /// The stream, after the batch has been queued.
  Stream stream() {
    static const auto call = [] {
      void* function = nullptr;
      cudaDriverEntryPointQueryResult found{};
      gpu::check(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &function, 12000, cudaEnableDefault, &found),
                 "cudaGetDriverEntryPoint");
      if (!function) gpu::fail_call(cudaErrorSymbolNotFound, "cuStreamBatchMemOp");
      return reinterpret_cast<decltype(&cuStreamBatchMemOp)>(function);
    }();
    if (!operations_.empty() &&
        call(gpu::handle(stream_), static_cast<unsigned>(operations_.size()), operations_.data(), 0) != CUDA_SUCCESS)
      gpu::fail_call(cudaErrorUnknown, "cuStreamBatchMemOp");
    operations_.clear();
    return stream_;
  }

 private:
  CUdeviceptr address_of(const void* flag) const {
    return reinterpret_cast<CUdeviceptr>(copies_.flags_on_device_) +
           static_cast<CUdeviceptr>(static_cast<const char*>(flag) - static_cast<const char*>(copies_.flags_));
  }
  void write(const void* flag, std::uint32_t value) {
    CUstreamBatchMemOpParams operation{};
    operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    operation.writeValue.address = address_of(flag);
    operation.writeValue.value = value;
    operation.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;  // after all earlier writes of the stream
    operations_.push_back(operation);
  }

  const PeerCopies& copies_;
  Stream stream_;
  std::vector<CUstreamBatchMemOpParams> operations_;
};

std::vector<int> PeerCopies::others_with_elements(const Layout& layout, std::int64_t offset) const {
  std::vector<int> result;
  for (const int other : others_)
    if (layout.elements(other, offset) > 0) result.push_back(other);
  return result;
}

void PeerCopies::send_parts(const char* x, const Layout& layout, std::int64_t offset, Queue& queue) const {
  const std::vector<int> targets = others_with_elements(layout, offset);
  queue.wait_for(parts, Flag::free, targets);
  for (const int target : targets)
    queue.copy(slot(slots_[static_cast<std::size_t>(target)], parts, rank_),
               x + static_cast<std::size_t>(layout.first(target, offset)) * layout.element,
               static_cast<std::size_t>(layout.elements(target, offset)) * layout.element);
  queue.signal(parts, Flag::arrived, targets);
}

void PeerCopies::add_parts(char* y, const char* own, const Layout& layout, std::int64_t offset, DType dtype, ReduceOp op,
                           Queue& queue) const {
  const std::int64_t count = layout.elements(rank_, offset);
  if (count == 0) return;
  queue.wait_for(parts, Flag::arrived, others_);
  dispatch_reduced(dtype, [&]<class T>() {
    char* const slots = slot(slots_[static_cast<std::size_t>(rank_)], parts, 0);
    const unsigned blocks = std::min(max_blocks, gpu::blocks_for(count, 512 * adding_vectors * gpu::vec16_width<T>));
    gpu::launch(reduce_parts<T>, dim3(blocks), dim3(512), 0, queue.stream(), reinterpret_cast<T*>(y), reinterpret_cast<const T*>(own),
                reinterpret_cast<const T*>(slots), static_cast<std::int64_t>(slot_bytes_ / sizeof(T)), rank_, size_, op, count,
                gpu::is_aligned(y, 16) && gpu::is_aligned(own, 16));
  });
  queue.signal(parts, Flag::free, others_);
}

void PeerCopies::send_result(const char* own, const Layout& layout, std::int64_t offset, Queue& queue) const {
  const std::int64_t count = layout.elements(rank_, offset);
  if (count == 0) return;
  queue.wait_for(results, Flag::free, others_);
  for (const int other : others_)
    queue.copy(slot(slots_[static_cast<std::size_t>(other)], results, rank_), own, static_cast<std::size_t>(count) * layout.element);
  queue.signal(results, Flag::arrived, others_);
}

void PeerCopies::take_results(char* y, const Layout& layout, std::int64_t offset, Queue& queue) const {
  const std::vector<int> senders = others_with_elements(layout, offset);
  queue.wait_for(results, Flag::arrived, senders);
  for (const int sender : senders)
    queue.copy_here(y + static_cast<std::size_t>(layout.first(sender, offset)) * layout.element,
                    slot(slots_[static_cast<std::size_t>(rank_)], results, sender),
                    static_cast<std::size_t>(layout.elements(sender, offset)) * layout.element);
  queue.signal(results, Flag::free, senders);
}

void PeerCopies::all_reduce(void* x, std::int64_t count, DType dtype, ReduceOp op, Stream stream) {
  const auto vector = static_cast<std::int64_t>(16 / size_of(dtype));
  const Layout pieces = layout(count, ceil_div(count, size_ * vector) * vector, dtype);
  char* const data = static_cast<char*>(x);
  Queue queue(*this, stream);
  for (std::int64_t offset = 0; offset < pieces.part; offset += pieces.piece) {
    char* const own = data + static_cast<std::size_t>(pieces.first(rank_, offset)) * pieces.element;
    send_parts(data, pieces, offset, queue);
    add_parts(own, own, pieces, offset, dtype, op, queue);
    send_result(own, pieces, offset, queue);
    take_results(data, pieces, offset, queue);
  }
  queue.stream();
}

void PeerCopies::reduce_scatter(void* y, const void* x, std::int64_t count, DType dtype, ReduceOp op, Stream stream) {
  const Layout pieces = layout(count, count / size_, dtype);
  const char* const data = static_cast<const char*>(x);
  Queue queue(*this, stream);
  for (std::int64_t offset = 0; offset < pieces.part; offset += pieces.piece) {
    send_parts(data, pieces, offset, queue);
    add_parts(static_cast<char*>(y) + static_cast<std::size_t>(offset) * pieces.element,
              data + static_cast<std::size_t>(pieces.first(rank_, offset)) * pieces.element, pieces, offset, dtype, op, queue);
  }
  queue.stream();
}

void PeerCopies::all_gather(void* y, const void* x, std::int64_t count, DType dtype, Stream stream) {
  const Layout pieces = layout(count, count / size_, dtype);
  char* const own = static_cast<char*>(y) + static_cast<std::size_t>(pieces.first(rank_, 0)) * pieces.element;
  Queue queue(*this, stream);
  if (own != x) queue.copy_here(own, x, static_cast<std::size_t>(pieces.part) * pieces.element);
  for (std::int64_t offset = 0; offset < pieces.part; offset += pieces.piece) {
    send_result(static_cast<const char*>(x) + static_cast<std::size_t>(offset) * pieces.element, pieces, offset, queue);
    take_results(static_cast<char*>(y), pieces, offset, queue);
  }
  queue.stream();
}

void PeerCopies::release() noexcept {
  if (!flags_) return;
  for (const Slot slot : {parts, results})
    for (const Flag kind : {Flag::arrived, Flag::free})
      for (const int other : others_) *static_cast<volatile std::uint32_t*>(flag(rank_, slot, kind, other)) = 1;
}

}  // namespace tern::parallel
