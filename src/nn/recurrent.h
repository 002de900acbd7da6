#pragma once
#include "nn/module.h"
#include "ops/recurrent.h"

namespace tern::nn {

/// Options of LSTM and GRU.
struct RecurrentOptions {
  std::int64_t layers = 1;           ///< each takes the hidden states of the one before
  bool bias = true;                  ///< two a layer and direction, as in PyTorch
  bool bidirectional = false;        ///< a second run of each layer from the end to the beginning, whose states follow the first one's
  bool batch_first = true;           ///< x and y are (B, T, ...), not (T, B, ...)
  double dropout = 0;                ///< of the outputs of all layers but the last, while training
  Device device = default_device();  ///< of the parameters
};

/// A layer's parameters in one direction: G gates of H units, (G H, in), (G H, H) and (G H) twice.
struct RecurrentWeights {
  Tensor weight_ih;  ///< (G H, in): of a step's input
  Tensor weight_hh;  ///< (G H, H): of the hidden state
  Tensor bias_ih;    ///< (G H), or undefined
  Tensor bias_hh;    ///< (G H), or undefined
};

/// Those of all layers, uniform in +-1 / sqrt(H) at first: directions[layer * D + direction], where D is 2 if bidirectional.
struct RecurrentLayers {
  /// Throws Error that names `type` for sizes below 1 and a dropout outside of [0, 1).
  RecurrentLayers(const char* type, std::int64_t in, std::int64_t hidden, std::int64_t gates, const RecurrentOptions& options);
  /// weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ..., as PyTorch names them.
  void visit(Visitor& v);
  std::string settings() const;                                        ///< for printing: "8, 16, layers=2"
  std::int64_t ways() const { return options.bidirectional ? 2 : 1; }  ///< directions of a layer, D

  std::int64_t in;                           ///< elements of a step's input
  std::int64_t hidden;                       ///< units, H
  RecurrentOptions options;                  ///< as given
  std::vector<RecurrentWeights> directions;  ///< (layers D), the forward direction of a layer first
};

/// Result of an LSTM for a batch of sequences.
struct LSTMResult {
  Tensor y;         ///< (B, T, D H): the last layer's hidden state after each step; D is 2 if bidirectional, with both ways' side by side
  LSTMState state;  ///< (layers D, B, H) each, after the last step of each direction
};
/// Long short-term memory (ops/recurrent.h:lstm_cell) of x (B, T, in): the products of the input are one for all steps. Throws Error for
/// other shapes.
struct LSTM final : Callable<LSTM> {
  /// Throws Error as RecurrentLayers does.
  LSTM(std::int64_t in, std::int64_t hidden, const RecurrentOptions& options = {});
  void visit(Visitor& v) override { layers.visit(v); }
  std::string settings() const override { return layers.settings(); }
  /// From a state (layers D, B, H), as the result's; from zeros where it is undefined.
  LSTMResult forward(const Tensor& x, const LSTMState& state = {}) const;

  RecurrentLayers layers;  ///< with four gates each: i, f, g, o
};

/// Result of a GRU for a batch of sequences.
struct GRUResult {
  Tensor y;  ///< (B, T, D H): the last layer's hidden state after each step
  Tensor h;  ///< (layers D, B, H): after the last step of each direction
};
/// Gated recurrent units (ops/recurrent.h:gru_cell); all else as LSTM.
struct GRU final : Callable<GRU> {
  /// Throws Error as RecurrentLayers does.
  GRU(std::int64_t in, std::int64_t hidden, const RecurrentOptions& options = {});
  void visit(Visitor& v) override { layers.visit(v); }
  std::string settings() const override { return layers.settings(); }
  /// From a hidden state (layers D, B, H), as the result's; from zeros where it is undefined.
  GRUResult forward(const Tensor& x, const Tensor& h = {}) const;

  RecurrentLayers layers;  ///< with three gates each: r, z, n
};

}  // namespace tern::nn
