#include "compile/parts.h"

#include <algorithm>

#include "ops/kernels/reduce.h"
#include "tensor/overlap.h"

namespace tern::compiler {

/// Adds up the parts of sums.
class PendingSums::Kernel final : public KernelCall {
 public:
  explicit Kernel(std::vector<Sum> sums) : sums_(std::move(sums)) {}

  const std::type_info& type() const override { return typeid(Kernel); }
  std::unique_ptr<KernelCall> copy() const override { return std::make_unique<Kernel>(sums_); }
  void visit(Visitor& visitor) override {
    for (Sum& sum : sums_) {
      visitor.view(sum.parts, kernels::Access::read);
      visitor.view(sum.to, kernels::Access::update);
    }
  }
  bool reports() const override { return false; }
  void run(Device device) const override {
    std::vector<kernels::PartialSum> all;
    for (const Sum& sum : sums_) {
      const std::int64_t columns = sum.parts.shape[1];
      std::int64_t stride = 1;
      for (int d = 0; d < sum.to.dims(); ++d)
        if (sum.to.shape[d] == columns) stride = sum.to.strides[d];
      all.push_back({sum.parts.data, sum.to.data, columns, stride, static_cast<unsigned>(sum.parts.shape[0]),
                     static_cast<unsigned>(columns), sum.to.dtype, sum.adds});
    }
    const kernels::AddPartialSums kernel{all, sums_[0].to.stream};
    with_backend(device, [&](auto dev) {
      if constexpr (requires { kernel.run(dev); }) kernel.run(dev);
    });
  }

 private:
  const void* kernel() const override { return this; }

  std::vector<Sum> sums_;
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

std::optional<Call> PendingSums::added_up() {
  if (sums_.empty()) return std::nullopt;
  Call call{.kernel = nullptr, .places = {}, .op = "sum_gradients", .module = {}, .ways = {}};
  for (const Sum& sum : sums_) call.places.insert(call.places.end(), {sum.parts_at, sum.at});
  call.kernel = std::make_unique<Kernel>(std::exchange(sums_, {}));
  return call;
}

}  // namespace tern::compiler
