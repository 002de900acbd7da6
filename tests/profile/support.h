#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "catch.h"
#include "nn/nn.h"
#include "profile/profiler.h"
#include "train/train.h"

namespace tern::profile::test {

/// A decoder that trains in a moment.
struct Training {
  explicit Training(bool is_fused = true, Device device = cpu)
      : kernels(is_fused), model(options(device)), optimizer(nn::parameters(model), train::AdamWOptions{.lr = 1e-2}) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < batch * length; ++i) values.push_back(i * i % vocab);
    ids = Tensor::from(values, {batch, length}, device);
  }
  static constexpr std::int64_t vocab = 19, length = 7, width = 12, ff = 20, batch = 3;
  static nn::DecoderLMOptions options(Device device) {
    manual_seed(3);
    return {.vocab = vocab, .length = length, .width = width, .layers = 2, .heads = 3, .ff = ff, .dropout = 0.2, .device = device};
  }
  Tensor step(const Tensors& inputs) {
    Tensor loss;
    {
      const Pass pass("forward");
      loss = model.loss(inputs[0], inputs[0]);
    }
    train::update(loss, optimizer, {.max_norm = 0.5});
    return loss.detach();
  }

  FusedKernels kernels;
  nn::DecoderLM model;
  train::AdamW optimizer;
  Tensor ids;
};

/// Every span lies within its parent, and those of one parent, or of none in a thread, do not overlap.
inline void check_nests(const Profile& profile) {
  std::vector<std::vector<const Span*>> children(profile.spans.size() + profile.threads.size());  // of a span, and then of a thread
  for (const Span& span : profile.spans) {
    CHECK(span.begin <= span.end);
    CHECK(span.begin >= 0);
    CHECK(span.end <= profile.end);
    children[span.parent == none ? profile.spans.size() + span.thread : span.parent].push_back(&span);
    if (span.parent == none) continue;
    const Span& parent = profile.spans.at(span.parent);
    CHECK(span.begin >= parent.begin);
    CHECK(span.end <= parent.end);
    CHECK(span.thread == parent.thread);
  }
  for (std::vector<const Span*>& siblings : children) {
    std::stable_sort(siblings.begin(), siblings.end(), [](const Span* a, const Span* b) { return a->begin < b->begin; });
    for (std::size_t i = 1; i < siblings.size(); ++i) CHECK(siblings[i]->begin >= siblings[i - 1]->end);
  }
}

/// Calls of an op in a pass of a module.
inline std::int64_t calls(const Profile& profile, const std::string& op, const std::string& pass, const std::string& module) {
  return std::count_if(profile.spans.begin(), profile.spans.end(), [&](const Span& span) {
    return span.kind == Kind::op && profile.name(span) == op && profile.names[span.pass] == pass &&
           profile.modules[span.module].path == module;
  });
}

}  // namespace tern::profile::test
