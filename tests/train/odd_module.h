#pragma once
#include "nn/nn.h"

namespace tern {

/// Layers of odd sizes, so that slices of a flat buffer have padding between them.
struct OddModule final : nn::Module {
  void visit(nn::Visitor& v) override {
    v("a", a);
    v("b", b);
    v("c", c);
  }
  nn::Linear a{3, 5}, b{5, 7}, c{7, 1, false};
};

}  // namespace tern
