#include "compile/chunks.h"

#include <algorithm>
#include <optional>

#include "backend/threads.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/pointwise.h"

namespace tern::compiler {

namespace {

constexpr std::int64_t chunk_bytes = std::int64_t{32} << 10;  ///< of the widest elements: a few operands fit into the second level of cache
constexpr std::size_t alignment = 64;

/// Calls f(view, access, place) for the views of a call.
template <class F>
void each_view(const Call& call, F f) {
  struct Visit : KernelCall::Visitor {
    F& f;
    std::vector<Call::Place>::const_iterator place;
    Visit(F& f_, const Call& call_) : f(f_), place(call_.places.begin()) {}
    void view(View& view, kernels::Access access) override { f(view, access, *place++); }
  } visitor(f, call);
  call.kernel->visit(visitor);
}

bool is_pointwise(const KernelCall& kernel) {
  for (const std::type_info* type : {&typeid(kernels::Unary), &typeid(kernels::UnaryGrad), &typeid(kernels::Binary),
                                     &typeid(kernels::Compare), &typeid(kernels::Where), &typeid(kernels::Copy), &typeid(kernels::Fill)})
    if (kernel.type() == *type) return true;
  return false;
}

/// Shape that all views of a pointwise call have, broadcast ones with strides of 0.
Shape shape_of(const Call& call) {
  Shape shape;
  each_view(call, [&](const View& view, kernels::Access, const Call::Place& place) {
    if (place.block != Call::Place::none) shape = view.shape;
  });
  return shape;
}

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

  std::vector<std::unique_ptr<KernelCall>> kernels_;
  std::vector<bool> is_part_;         ///< for each view
  std::vector<std::size_t> offsets_;  ///< of those that are, in the memory of a chunk
  std::size_t bytes_;                 ///< of that memory
  std::int64_t rows_, rows_of_chunk_;
};

/// The calls of a chain while it grows, and the rows in which it runs.
class Candidate {
 public:
  explicit Candidate(const std::vector<Block>& blocks) : blocks_(blocks) {}

  const std::vector<std::size_t>& calls() const { return calls_; }

  /// Adds the call if it fits: of the same shape, and each block that the chain writes is always seen by one view.
  bool add(const Call& call, std::size_t index) {
    if (!is_pointwise(*call.kernel)) return false;
    const Shape shape = shape_of(call);
    if (numel(shape) == 0 || (!calls_.empty() && shape != shape_)) return false;
    std::vector<Use> uses = uses_;
    bool fits = true;
    each_view(call, [&](const View& view, kernels::Access access, const Call::Place& place) {
      if (place.block == Call::Place::none) return;
      if (view.shape != shape) fits = false;
      const Use use{place.block, place.offset, view.strides, view.dtype, access != kernels::Access::read};
      for (const Use& other : uses)
        if (other.block == use.block && (other.is_written || use.is_written) && !(other == use)) fits = false;
      uses.push_back(use);
    });
    if (!fits) return false;
    shape_ = shape;
    uses_ = std::move(uses);
    calls_.push_back(index);
    return true;
  }

  /// The chain as one call; nothing if it would not pay.
  std::optional<Call> made(std::vector<Call>& all) const {
    if (calls_.size() < 2) return std::nullopt;
    const bool is_flat = std::all_of(uses_.begin(), uses_.end(), [&](const Use& use) {
      return is_contiguous(shape_, use.strides) || use.strides == Strides::filled(shape_.size(), 0);
    });
    const Shape shape = is_flat ? Shape{numel(shape_)} : shape_;
    if (shape.empty()) return std::nullopt;
    std::int64_t widest = 1;
    for (const Use& use : uses_) widest = std::max(widest, static_cast<std::int64_t>(size_of(use.dtype)));
    const std::int64_t row = numel(shape) / shape[0], rows_of_chunk = std::max<std::int64_t>(1, chunk_bytes / (row * widest));
    if (rows_of_chunk * 4 > shape[0] || row * widest > 4 * chunk_bytes) return std::nullopt;

    Call chain{.kernel = nullptr, .places = {}, .op = all[calls_[0]].op, .module = all[calls_[0]].module, .ways = all[calls_[0]].ways};
    std::vector<std::unique_ptr<KernelCall>> kernels;
    std::vector<bool> is_part;
    std::vector<std::size_t> offsets;
    std::vector<std::pair<std::size_t, std::size_t>> parts;  // block, offset
    std::size_t bytes = 0;
    for (const std::size_t index : calls_) {
      Call& call = all[index];
      each_view(call, [&](View& view, kernels::Access, const Call::Place& place) {
        chain.places.push_back(place);
        is_part.push_back(false);
        offsets.push_back(0);
        if (place.block == Call::Place::none) return;
        if (is_flat) {
          const std::int64_t stride = view.strides == Strides::filled(view.dims(), 0) ? 0 : 1;
          view.shape = shape;
          view.strides = {stride};
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

 private:
  struct Use {
    std::size_t block;
    std::int64_t offset;
    Strides strides;
    DType dtype;
    bool is_written;
    /// The same elements, whatever is done to them.
    bool operator==(const Use& other) const {
      return block == other.block && offset == other.offset && strides == other.strides && dtype == other.dtype;
    }
  };
  /// True for a block that the chain writes first and that nothing uses before or after it.
  bool lives_inside(std::size_t index) const {
    const Block& block = blocks_[index];
    return block.kind == Block::Kind::inner && block.first >= calls_.front() && block.last <= calls_.back();
  }

  const std::vector<Block>& blocks_;
  std::vector<std::size_t> calls_;
  std::vector<Use> uses_;
  Shape shape_;
};

}  // namespace

void chunk_chains(std::vector<Call>& calls, std::vector<Block>& blocks) {
  std::vector<Call> result;
  std::optional<Candidate> chain(std::in_place, blocks);
  const auto end_chain = [&] {
    if (std::optional<Call> made = chain->made(calls)) result.push_back(std::move(*made));
    else
      for (const std::size_t index : chain->calls()) result.push_back(std::move(calls[index]));
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (chain->add(calls[i], i)) continue;
    end_chain();
    chain.emplace(blocks);
    if (!chain->add(calls[i], i)) result.push_back(std::move(calls[i]));
  }
  end_chain();
  calls = std::move(result);
  note_uses(calls, blocks);
}

}  // namespace tern::compiler
