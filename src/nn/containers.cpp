#include "nn/containers.h"

namespace tern::nn {

void Sequential::visit(Visitor& v) {
  for (std::size_t i = 0; i < items.size(); ++i) v(std::to_string(i), items[i].module());
}

Tensor Sequential::forward(const Tensor& x) const {
  const ModuleScope scope(this, "Sequential");
  Tensor y = x;
  for (const AnyModule& module : items) y = module.forward(y);
  return y;
}

Sequential& Sequential::add(AnyModule module) {
  items.push_back(std::move(module));
  return *this;
}

AnyModule& Sequential::item(std::size_t i) {
  if (i >= items.size()) fail("Sequential", "expected an index below " + std::to_string(items.size()) + " but got " + std::to_string(i));
  return items[i];
}

}  // namespace tern::nn
