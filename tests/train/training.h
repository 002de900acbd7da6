#pragma once
#include <optional>

#include "nn/nn.h"
#include "tensor/context.h"
#include "train/train.h"

namespace tern {

/// A small model with all that a step may have, dropout, clipping and a loss scale, and its steps.
struct Training {
  Training(bool is_fused, train::Precision precision, Device device)
      : kernels(is_fused),
        model(options(device)),
        optimizer((train::set_precision(model, precision), nn::parameters(model)), {.lr = 1e-2}) {
    model.train();
    if (precision == train::Precision::fp16) scaler.emplace(train::GradScalerOptions{.scale = 1 << 20, .interval = 7}, device);
  }
  static nn::DecoderLMOptions options(Device device) {
    manual_seed(3);
    return {.vocab = 19, .length = 9, .width = 24, .layers = 2, .heads = 3, .ff = 40, .dropout = 0.2, .device = device};
  }
  Tensor step(const Tensor& ids) {
    const Tensor loss = model.loss(ids, ids);
    train::update(loss, optimizer, {.max_norm = 0.5, .scaler = scaler ? &*scaler : nullptr});
    return loss.detach();
  }
  FusedKernels kernels;
  nn::DecoderLM model;
  train::Adam optimizer;
  std::optional<train::GradScaler> scaler;
};

}  // namespace tern
