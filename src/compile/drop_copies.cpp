#include <algorithm>
#include <set>

#include "compile/rewrite.h"
#include "ops/kernels/attention.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/pointwise.h"
#include "tensor/overlap.h"

namespace tern::compiler {

namespace {

/// A view of a block, whose address is its offset there.
struct Window {
  View view;
  std::size_t call;
  bool is_written;
};

std::int64_t offset_of(const View& window) { return reinterpret_cast<std::intptr_t>(window.data); }

/// The window of a copy's destination in which the elements of `window` are, that is of its original; nothing if its dimensions are not
/// those of the copy.
std::optional<View> moved(const View& window, const View& from, const View& to) {
  View result(window);
  std::vector<int> dims;  // of the copy, the longest strides first
  for (int d = 0; d < from.dims(); ++d)
    if (from.shape[d] > 1) dims.push_back(d);
  std::sort(dims.begin(), dims.end(), [&](int a, int b) { return from.strides[a] > from.strides[b]; });
  const auto size = static_cast<std::int64_t>(size_of(window.dtype));
  std::int64_t rest = (offset_of(window) - offset_of(from)) / size, offset = 0;
  if (rest < 0 || window.dtype != from.dtype || from.dtype != to.dtype) return std::nullopt;
  Shape extents = Shape::filled(from.dims(), 1);
  for (int d = 0; d < window.dims(); ++d) {
    if (window.shape[d] == 1) continue;
    const auto same = std::find_if(dims.begin(), dims.end(), [&](int k) {
      return from.strides[k] == window.strides[d] && extents[k] == 1 && window.shape[d] <= from.shape[k];
    });
    if (same == dims.end()) return std::nullopt;
    result.strides[d] = to.strides[*same];
    extents[*same] = window.shape[d];
  }
  for (const int d : dims) {
    if (from.strides[d] <= 0) return std::nullopt;
    const std::int64_t index = rest / from.strides[d];
    if (index + extents[d] > from.shape[d]) return std::nullopt;
    offset += index * to.strides[d];
    rest -= index * from.strides[d];
  }
  if (rest != 0) return std::nullopt;
  result.data = reinterpret_cast<void*>(offset_of(to) + offset * size);
  return result;
}

void transpose(View& x) {
  const int last = x.dims() - 1;
  std::swap(x.shape[last], x.shape[last - 1]);
  std::swap(x.strides[last], x.strides[last - 1]);
}

class Dropper {
 public:
  Dropper(std::vector<Call>& calls, const std::vector<Block>& blocks, bool is_gpu)
      : calls_(calls), blocks_(blocks), is_gpu_(is_gpu), windows_(blocks.size()) {
    for (std::size_t i = 0; i < calls.size(); ++i)
      each_view(calls[i], [&](const View& view, kernels::Access access, const Call::Place& place) {
        if (place.block != Call::Place::none && view.numel() > 0)
          windows_[place.block].push_back({window_of(view, place), i, access != kernels::Access::read});
      });
  }

  void run() {
    for (std::size_t before = ~std::size_t{0}; before != dropped_.size();) {  // one that is dropped may make others
      before = dropped_.size();
      for (std::size_t i = 0; i < calls_.size(); ++i)
        if (!dropped_.contains(i) && drops(i)) dropped_.insert(i);
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < calls_.size(); ++i)
      if (!dropped_.contains(i)) std::swap(calls_[kept++], calls_[i]);
    calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(kept), calls_.end());
  }

 private:
  static bool is_attention(const Call& call) {
    return call.kernel->as<kernels::FlashAttention>() || call.kernel->as<kernels::FlashAttentionGrad>();
  }
  /// True for a kernel whose output may have any strides: of a product, those of one row or one column are 1, and of attention those of
  /// rows, which have vectors of 16 bytes.
  bool takes(const Call& call, const View& output) const {
    if (is_attention(call)) {
      const auto size = static_cast<std::int64_t>(size_of(output.dtype));
      bool fits = output.strides.back() == 1 && offset_of(output) % 16 == 0;
      for (int d = 0; d + 1 < output.dims(); ++d) fits = fits && output.strides[d] * size % 16 == 0;
      return fits;
    }
    for (const std::type_info* type : {&typeid(kernels::Unary), &typeid(kernels::UnaryGrad), &typeid(kernels::Binary),
                                       &typeid(kernels::Compare), &typeid(kernels::Where), &typeid(kernels::Copy)})
      if (call.kernel->type() == *type) return true;
    if (!is_gpu_ || !call.kernel->as<kernels::Matmul>() || output.dims() < 2) return false;
    const int column = output.dims() - 1, row = column - 1;
    return (output.strides[column] == 1 && output.strides[row] >= output.shape[column]) ||
           (output.strides[row] == 1 && output.strides[column] >= output.shape[row]);
  }

  /// Makes the kernels that write what the call copies write its copy, if it is a copy and they can.
  bool drops(std::size_t index) {
    const auto* const copy = calls_[index].kernel->as<kernels::Copy>();
    if (!copy || copy->x.dtype != copy->y.dtype || copy->x.numel() == 0) return false;
    const Call::Place at = calls_[index].places[0], to_at = calls_[index].places[1];
    if (at.block == to_at.block || blocks_[at.block].kind != Block::Kind::inner) return false;
    const View from = window_of(copy->x, at), to = window_of(copy->y, to_at);
    std::vector<std::pair<Window, View>> users;  // and their windows of the copy
    std::int64_t written = 0;
    std::size_t first = index, last = index;
    for (const Window& window : windows_[at.block]) {
      if (window.call == index) continue;
      // Of those that read the original, attention's backward pass can read the copy.
      if (window.is_written ? window.call > index : window.call < index || !is_attention(calls_[window.call])) return false;
      const std::optional<View> own = moved(window.view, from, to);
      if (!own || !takes(calls_[window.call], *own)) return false;
      users.emplace_back(window, *own);
      if (window.is_written) written += window.view.numel();
      first = std::min(first, window.call), last = std::max(last, window.call);
    }
    if (written == 0 || written != to.numel()) return false;
    for (const Window& window : windows_[to_at.block])
      if (window.call >= first && window.call <= last && window.call != index && (window.call < index || window.is_written) &&
          overlap(window.view, to) != Overlap::none)
        return false;
    std::erase_if(windows_[to_at.block], [&](const Window& window) { return window.call == index; });
    for (const auto& [window, own] : users)
      windows_[to_at.block].push_back({moves(window, at.block, to_at.block, own), window.call, window.is_written});
    windows_[at.block].clear();
    return true;
  }

  /// Makes a call use the window of another block than it did; returns the window as the call has it.
  View moves(const Window& used, std::size_t from, std::size_t to, const View& window) {
    Call& call = calls_[used.call];
    struct Visit : KernelCall::Visitor {
      const Window& used;
      std::size_t from, to;
      const View& window;
      std::vector<Call::Place>::iterator place;
      Visit(const Window& used_, std::size_t from_, std::size_t to_, const View& window_, std::vector<Call::Place>& places)
          : used(used_), from(from_), to(to_), window(window_), place(places.begin()) {}
      void view(View& view, kernels::Access access) override {
        Call::Place& at = *place++;
        if (at.block != from || (access == kernels::Access::read) == used.is_written || at.offset != offset_of(used.view)) return;
        at = {to, offset_of(window)};
        view.strides = window.strides;
      }
    } visitor(used, from, to, window, call.places);
    call.kernel->visit(visitor);
    const auto* const product = call.kernel->as<kernels::Matmul>();
    if (!product || window.strides[window.dims() - 1] == 1) return window;
    kernels::Matmul swapped = *product;  // c^T = b^T a^T
    std::swap(static_cast<View&>(swapped.a), static_cast<View&>(swapped.b));
    std::swap(call.places[0], call.places[1]);
    for (View* const x : std::initializer_list<View*>{&swapped.a, &swapped.b, &swapped.c}) transpose(*x);
    call.kernel = std::make_unique<detail::KernelCallOf<kernels::Matmul>>(swapped);
    View transposed = window;
    transpose(transposed);
    return transposed;
  }

  std::vector<Call>& calls_;
  const std::vector<Block>& blocks_;
  bool is_gpu_;
  std::vector<std::vector<Window>> windows_;  ///< of each block, in which calls read and write
  std::set<std::size_t> dropped_;
};

}  // namespace

void drop_copies(std::vector<Call>& calls, const std::vector<Block>& blocks, bool is_gpu) { Dropper(calls, blocks, is_gpu).run(); }

}  // namespace tern::compiler
