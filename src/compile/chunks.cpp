#include <algorithm>

#include "backend/threads.h"
#include "compile/groups.h"

namespace tern::compiler {

namespace {

constexpr std::int64_t chunk_bytes = std::int64_t{32} << 10;  ///< of the widest elements: a few operands fit into the second level of cache
constexpr std::size_t alignment = 64;

/// A chain of calls as one.
class Chain : public KernelCall {
 public:
  Chain(std::vector<std::unique_ptr<KernelCall>> kernels, std::vector<bool> is_part, std::vector<std::size_t> offsets, std::size_t bytes,
        std::int64_t rows, std::int64_t rows_of_chunk)
      : kernels_(std::move(kernels)),
        is_part_(std::move(is_part)),
        offsets_(std::move(offsets)),
        bytes_(bytes),
        rows_(rows),
        rows_of_chunk_(rows_of_chunk) {}

  const std::type_info& type() const override { return typeid(Chain); }
  std::unique_ptr<KernelCall> copy() const override {
    return std::make_unique<Chain>(copies(), is_part_, offsets_, bytes_, rows_, rows_of_chunk_);
  }
  void visit(Visitor& visitor) override {
    for (const auto& kernel : kernels_) kernel->visit(visitor);
  }
  bool reports() const override { return false; }
  void run(Device device) const override {
    const std::int64_t chunks = (rows_ + rows_of_chunk_ - 1) / rows_of_chunk_;
    const int parts = static_cast<int>(std::clamp<std::int64_t>(num_threads(), 1, chunks));
    const Storage memory(static_cast<std::size_t>(parts) * bytes_, {cpu});
    backend::run_parts(parts, [&](int part) {
      std::vector<std::unique_ptr<KernelCall>> mine = copies();
      std::byte* const own = static_cast<std::byte*>(memory.data()) + static_cast<std::size_t>(part) * bytes_;
      std::vector<View*> views;
      std::vector<std::int64_t> steps;  // bytes from row to row
      for (std::size_t k = 0, at = 0; k < mine.size(); ++k) collect(*mine[k], own, at, views, steps);
      const std::int64_t end = chunks * (part + 1) / parts;
      std::int64_t before = 0;
      for (std::int64_t chunk = chunks * part / parts; chunk < end; ++chunk) {
        const std::int64_t first = chunk * rows_of_chunk_, rows = std::min(rows_of_chunk_, rows_ - first);
        for (std::size_t i = 0; i < views.size(); ++i) {
          views[i]->data = static_cast<std::byte*>(views[i]->data) + (first - before) * steps[i];
          views[i]->shape[0] = rows;
        }
        before = first;
        for (const auto& kernel : mine) kernel->run(device);
      }
    });
  }

 private:
  std::vector<std::unique_ptr<KernelCall>> copies() const {
    std::vector<std::unique_ptr<KernelCall>> all;
    for (const auto& kernel : kernels_) all.push_back(kernel->copy());
    return all;
  }
  /// The views of a kernel that are there, and by how much they advance from row to row; those of parts get their memory.
  void collect(KernelCall& kernel, std::byte* own, std::size_t& at, std::vector<View*>& views, std::vector<std::int64_t>& steps) const {
    struct Visit : Visitor {
      const Chain& chain;
      std::byte* own;
      std::size_t& at;
      std::vector<View*>& views;
      std::vector<std::int64_t>& steps;
      Visit(const Chain& chain_, std::byte* own_, std::size_t& at_, std::vector<View*>& views_, std::vector<std::int64_t>& steps_)
          : chain(chain_), own(own_), at(at_), views(views_), steps(steps_) {}
      void view(View& view, kernels::Access) override {
        const std::size_t index = at++;
        if (view.shape.empty()) return;  // a number stands in its place
        if (chain.is_part_[index]) view.data = own + chain.offsets_[index];
        views.push_back(&view);
        steps.push_back(chain.is_part_[index] ? 0 : view.strides[0] * static_cast<std::int64_t>(size_of(view.dtype)));
      }
    } visitor(*this, own, at, views, steps);
    kernel.visit(visitor);
  }

  const void* kernel() const override { return this; }

  std::vector<std::unique_ptr<KernelCall>> kernels_;
  std::vector<bool> is_part_;         ///< for each view
  std::vector<std::size_t> offsets_;  ///< of those that are, in the memory of a chunk
  std::size_t bytes_;                 ///< of that memory
  std::int64_t rows_, rows_of_chunk_;
};

}  // namespace

/// How a group is divided into chunks.
struct Chunks {
  bool is_flat;  ///< the elements are one dimension
  Shape shape;
  std::int64_t row, rows_of_chunk;
};
static std::optional<Chunks> chunks_of(const Group& group) {
  if (group.calls.size() < 2) return std::nullopt;
  const bool is_flat = std::all_of(group.uses.begin(), group.uses.end(), [&](const Use& use) {
    return is_contiguous(group.shape, use.strides) || use.strides == Strides::filled(group.shape.size(), 0);
  });
  const Shape shape = is_flat ? Shape{numel(group.shape)} : group.shape;
  if (shape.empty()) return std::nullopt;
  std::int64_t widest = 1;
  for (const Use& use : group.uses) widest = std::max(widest, static_cast<std::int64_t>(size_of(use.dtype)));
  const std::int64_t row = numel(shape) / shape[0], rows_of_chunk = std::max<std::int64_t>(1, chunk_bytes / (row * widest));
  if (rows_of_chunk * 4 > shape[0] || row * widest > 4 * chunk_bytes) return std::nullopt;
  return Chunks{is_flat, shape, row, rows_of_chunk};
}

bool runs_in_chunks(const Group& group) { return chunks_of(group).has_value(); }

std::optional<Call> chunked(const Group& group, const std::vector<Call>& all, const std::function<bool(std::size_t)>& lives_inside) {
  const std::optional<Chunks> chunks = chunks_of(group);
  if (!chunks) return std::nullopt;
  const auto& [is_flat, shape, row, rows_of_chunk] = *chunks;
  const Call& first = all[group.calls[0]];
  Call chain{.kernel = nullptr, .places = {}, .op = first.op, .module = first.module, .ways = first.ways};
  std::vector<std::unique_ptr<KernelCall>> kernels;
  std::vector<bool> is_part;
  std::vector<std::size_t> offsets;
  std::vector<std::pair<std::size_t, std::size_t>> parts;  // block, offset
  std::size_t bytes = 0;
  for (const std::size_t index : group.calls) {
    Call call{all[index].kernel->copy(), all[index].places, {}, {}, {}};
    each_view(call, [&](View& view, kernels::Access access, const Call::Place& place) {
      chain.places.push_back(place);
      is_part.push_back(false);
      offsets.push_back(0);
      if (place.block == Call::Place::none) return;
      if (is_flat) {
        const bool is_number = use_of(group, view, access, place)->strides == Strides::filled(view.dims(), 0);
        view.shape = shape;
        view.strides = {is_number ? 0 : 1};
      }
      if (!lives_inside(place.block) || !is_contiguous(view.shape, view.strides)) return;
      auto part = std::find_if(parts.begin(), parts.end(), [&](const auto& known) { return known.first == place.block; });
      if (part == parts.end()) {
        part = parts.insert(parts.end(), {place.block, bytes});
        bytes += (static_cast<std::size_t>(rows_of_chunk * row) * size_of(view.dtype) + alignment - 1) / alignment * alignment;
      }
      is_part.back() = true;
      offsets.back() = part->second;
    });
    kernels.push_back(std::move(call.kernel));
  }
  for (std::size_t i = 0; i < chain.places.size(); ++i)
    if (is_part[i]) chain.places[i] = {};
  chain.kernel = std::make_unique<Chain>(std::move(kernels), std::move(is_part), std::move(offsets), bytes, shape[0], rows_of_chunk);
  return chain;
}

}  // namespace tern::compiler
