#include "compile/parts.h"

#include <algorithm>

#include "ops/kernels/matmul.h"
#include "ops/kernels/normalize.h"
#include "tensor/overlap.h"

namespace tern::compiler {

/// Adds up the parts of sums: those of generated kernels, and all that others have left.
class PendingSums::Kernel final : public KernelCall {
 public:
  Kernel(std::vector<Sum> sums, kernels::DeferredSums& deferred) : sums_(std::move(sums)), deferred_(deferred) {}

  const std::type_info& type() const override { return typeid(Kernel); }
  std::unique_ptr<KernelCall> copy() const override { return std::make_unique<Kernel>(sums_, deferred_); }
  void visit(Visitor& visitor) override {
    for (Sum& sum : sums_) {
      visitor.view(sum.parts, kernels::Access::read);
      visitor.view(sum.to, kernels::Access::update);
    }
  }
  bool reports() const override { return false; }
  void run(Device) const override {
    for (const Sum& sum : sums_) {
      if (sum.parts_at.block == Call::Place::none) continue;
      const std::int64_t columns = sum.parts.shape[1];
      std::int64_t stride = 1;
      for (int d = 0; d < sum.to.dims(); ++d)
        if (sum.to.shape[d] == columns) stride = sum.to.strides[d];
      deferred_.add({sum.parts.data, sum.to.data, columns, stride, static_cast<unsigned>(sum.parts.shape[0]),
                     static_cast<unsigned>(columns), sum.to.dtype, sum.adds});
    }
    deferred_.finish();
  }

 private:
  const void* kernel() const override { return this; }

  std::vector<Sum> sums_;
  kernels::DeferredSums& deferred_;
};

bool PendingSums::has(const View& view, const Call::Place& place) const {
  return place.block != Call::Place::none && std::any_of(sums_.begin(), sums_.end(), [&](const Sum& sum) {
           return sum.at.block == place.block && overlap(window_of(sum.to, sum.at), window_of(view, place)) != Overlap::none;
         });
}
bool PendingSums::has(const CudaText& text) const {
  return std::any_of(text.sums.begin(), text.sums.end(), [&](const CudaText::ColumnSum& sum) { return has(sum.to, sum.place); });
}
bool PendingSums::has(const Call& call) const {
  bool found = false;
  each_view(call, [&](const View& view, kernels::Access, const Call::Place& place) { found = found || has(view, place); });
  return found;
}

void PendingSums::add(const CudaText& text) {
  for (const CudaText::ColumnSum& sum : text.sums)
    sums_.push_back({text.operands[sum.operand], sum.to, text.places[sum.operand], sum.place, sum.adds});
}

template <class Kernel>
bool PendingSums::defer(Call& call) {
  const auto* const given = call.kernel->as<Kernel>();
  if (!given) return false;
  Kernel deferring = *given;
  deferring.deferred = &deferred_;
  call.kernel = std::make_unique<detail::KernelCallOf<Kernel>>(deferring);
  const auto* const kernel = call.kernel->as<Kernel>();
  each_view(call, [&](const View& view, kernels::Access, const Call::Place& place) {
    bool is_sum = false;
    if constexpr (requires { kernel->sums; }) is_sum = &view == &kernel->sums;
    else is_sum = &view == &kernel->dgamma || &view == &kernel->dbeta || &view == &kernel->dbias;
    if (is_sum && place.block != Call::Place::none) sums_.push_back({{}, view, {}, place, false});
  });
  return true;
}
void PendingSums::add(Call& call) {
  if (!defer<kernels::ColumnSums>(call) && !defer<kernels::GeluBiasGrad>(call)) defer<kernels::LayerNormGrad>(call);
}

std::optional<Call> PendingSums::added_up() {
  if (sums_.empty()) return std::nullopt;
  Call call{.kernel = nullptr, .places = {}, .op = "sum_gradients", .module = {}, .ways = {}};
  for (const Sum& sum : sums_) call.places.insert(call.places.end(), {sum.parts_at, sum.at});
  call.kernel = std::make_unique<Kernel>(std::exchange(sums_, {}), deferred_);
  return call;
}

}  // namespace tern::compiler
