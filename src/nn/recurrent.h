#pragma once
#include "nn/module.h"
#include "ops/recurrent.h"

namespace tern::nn {

/// Options of LSTM and GRU.
struct RecurrentOptions {
  std::int64_t layers = 1;           ///< number of layers; each reads the hidden states of the previous one
  bool bias = true;                  ///< two for each layer and direction, as in PyTorch
  bool bidirectional = false;        ///< each layer also runs backwards, and its states are appended to the forward ones
  bool batch_first = true;           ///< x and y are (B, T, ...), not (T, B, ...)
  double dropout = 0;                ///< dropout of the outputs of all layers but the last, in training
  Device device = default_device();  ///< device of the parameters
};

/// Parameters of a layer in one direction, with G gates of H units.
struct RecurrentWeights {
  Tensor weight_ih;  ///< (G H, in): applied to a step's input
  Tensor weight_hh;  ///< (G H, H): applied to the hidden state
  Tensor bias_ih;    ///< (G H), or undefined
  Tensor bias_hh;    ///< (G H), or undefined
};

/// Parameters of all layers, initialized uniformly in +-1 / sqrt(H): directions[layer * D + direction], where D is 2 if bidirectional.
struct RecurrentLayers {
  /// Throws Error that names `type` for sizes below 1 and a dropout outside of [0, 1).
  RecurrentLayers(const char* type, std::int64_t in, std::int64_t hidden, std::int64_t gates, const RecurrentOptions& options);
  /// Names are those of PyTorch: weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, weight_ih_l0_reverse, ...
  void visit(Visitor& v);
  std::string settings() const;                                        ///< for printing: "8, 16, layers=2"
  std::int64_t ways() const { return options.bidirectional ? 2 : 1; }  ///< number of directions of a layer, D

  std::int64_t in;                           ///< elements of a step's input
  std::int64_t hidden;                       ///< units, H
  RecurrentOptions options;                  ///< as given
  std::vector<RecurrentWeights> directions;  ///< (layers D), the forward direction of a layer first
};

/// Result of an LSTM for a batch of sequences.
struct LSTMResult {
  Tensor y;         ///< (B, T, D H): hidden states of the last layer after each step; D is 2 if bidirectional
  LSTMState state;  ///< (layers D, B, H) each, after the last step of each direction
};
/// Long short-term memory (ops/recurrent.h:lstm_cell) of x (B, T, in); the input's products of all steps are one product. Throws Error for
/// other shapes.
struct LSTM final : Callable<LSTM> {
  /// Throws Error as RecurrentLayers does.
  LSTM(std::int64_t in, std::int64_t hidden, const RecurrentOptions& options = {});
  void visit(Visitor& v) override { layers.visit(v); }
  std::string settings() const override { return layers.settings(); }
  /// Runs from a state (layers D, B, H), as in the result; from zeros if it is undefined.
  LSTMResult forward(const Tensor& x, const LSTMState& state = {}) const;

  RecurrentLayers layers;  ///< with four gates each: i, f, g, o
};

/// Result of a GRU for a batch of sequences.
struct GRUResult {
  Tensor y;  ///< (B, T, D H): the last layer's hidden state after each step
  Tensor h;  ///< (layers D, B, H): after the last step of each direction
};
/// Gated recurrent units (ops/recurrent.h:gru_cell), otherwise as LSTM.
struct GRU final : Callable<GRU> {
  /// Throws Error as RecurrentLayers does.
  GRU(std::int64_t in, std::int64_t hidden, const RecurrentOptions& options = {});
  void visit(Visitor& v) override { layers.visit(v); }
  std::string settings() const override { return layers.settings(); }
  /// Runs from a hidden state (layers D, B, H), as in the result; from zeros if it is undefined.
  GRUResult forward(const Tensor& x, const Tensor& h = {}) const;

  RecurrentLayers layers;  ///< with three gates each: r, z, n
};

}  // namespace tern::nn
