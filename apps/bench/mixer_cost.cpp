#include "bench/mixer_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/error.h"

namespace tern::bench {

namespace {

constexpr double taps = 4;  ///< of the convolutions before a recurrence

/// Adds up a mixer of width D.
class Counter {
 public:
  explicit Counter(const TransformerSize& size)
      : tokens_(static_cast<double>(size.batch) * static_cast<double>(size.length)), bytes_(size.bytes_per_element) {}

  /// Linear layers with so many weights together.
  void products(double weights) { cost_.flops += 2 * tokens_ * weights; }
  /// A depthwise convolution, and the inputs before the next token.
  void convolution(double channels, double taps_) {
    cost_.flops += 2 * tokens_ * taps_ * channels;
    keep((taps_ - 1) * channels);
  }
  /// So many operations a token for each number of a state in f32: one for its decay, two for what is added to it, two for its reading, and
  /// two for each further reading or addition.
  void recurrence(double numbers, double operations) {
    cost_.flops += tokens_ * numbers * operations;
    cost_.state_bytes += 4 * numbers;
  }
  void keep(double elements) { cost_.state_bytes += bytes_ * elements; }
  void add(const MixerCost& more) { cost_.flops += more.flops, cost_.state_bytes += more.state_bytes; }
  const MixerCost& cost() const { return cost_; }

 private:
  const double tokens_;
  const int bytes_;
  MixerCost cost_;
};

/// A causal convolution as long as the text by Fourier transforms of n points, 5 n log2 n operations each: of the filter, and of two rows
/// at once, there and back.
double long_convolution(const TransformerSize& size) {
  const auto n = static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(2 * size.length - 1)));
  const auto pairs = static_cast<double>((size.batch + 1) / 2);
  return static_cast<double>(size.width) * (5 * n * std::log2(n) * (1 + 2 * pairs) + 6 * n * pairs);
}

/// Scores and sums of the visible pairs of a query and a key, all heads together, and the cache of so many tokens.
MixerCost attention(const TransformerSize& size, std::int64_t window) {
  const auto d = static_cast<double>(size.width), n = static_cast<double>(size.length), w = static_cast<double>(window);
  const double pairs = w * (w + 1) / 2 + (n - w) * w;
  return {4 * static_cast<double>(size.batch) * pairs * d, 2 * w * d * size.bytes_per_element};
}

}  // namespace

MixerCost count_mixer(nn::MixerKind kind, const TransformerSize& size) {
  using nn::MixerKind;
  if (size.batch < 1 || size.length < 1 || size.width < 1 || size.heads < 1 || size.bytes_per_element < 1 || size.width % size.heads != 0)
    fail("count_mixer", fmt::format("expected sizes of at least 1 and heads that divide the width but got batch {}, length {}, width {}, "
                                    "heads {}, {} bytes an element",
                                    size.batch, size.length, size.width, size.heads, size.bytes_per_element));
  const auto d = static_cast<double>(size.width), heads = static_cast<double>(size.heads), n = static_cast<double>(size.length);
  const double dim = d / heads, square = d * d;
  Counter all(size);
  switch (kind) {
    case MixerKind::attention:
    case MixerKind::window:
      all.products(4 * square);
      all.add(attention(size, kind == MixerKind::window ? std::min(nn::MixerOptions().window, size.length) : size.length));
      break;
    case MixerKind::conv:
      all.convolution(d, taps);
      all.products(square);
      break;
    case MixerKind::h3:
      all.products(4 * square);
      all.convolution(d, taps);
      all.add({long_convolution(size), 4 * 2 * 32 * d});
      break;
    case MixerKind::hyena:
      all.products(4 * square);
      all.convolution(3 * d, 3);
      all.add({long_convolution(size) + 2 * n * (33 * 64 + 64 * 64 + 64 * d), 0});  // the filter is that of all rows
      all.keep((n - 1) * d);
      break;
    case MixerKind::rwkv4:
      all.products(4 * square);
      all.recurrence(2 * d, 5);
      all.add({0, 4 * d});  // the largest exponents
      all.keep(d);
      break;
    case MixerKind::rwkv7:
      all.products(4 * square + 3 * 2 * 32 * d);
      all.recurrence(d * dim, 9);
      all.keep(d);
      break;
    case MixerKind::mamba: {
      const double inner = 2 * d, rank = std::ceil(d / 16), states = 16;
      all.products(d * 2 * inner + inner * (rank + 2 * states) + rank * inner + inner * d);
      all.convolution(inner, taps);
      all.recurrence(inner * states, 7);  // the decay is an exponential of a product
      break;
    }
    case MixerKind::mamba2:
      all.products(d * (2 * dim + 2 * d) + d * heads + 2 * d * d + 2 * d * d);
      all.convolution(2 * dim + 2 * d, taps);
      all.recurrence(2 * d * dim, 5);
      break;
    case MixerKind::based: {
      const double key = 16, features = 1 + key + key * key;
      const bool is_short = n <= features;  // products of all queries and keys
      all.products(d * (2 * key * heads + d) + square + (is_short ? heads * n * (key + dim + 1) : 0));
      all.recurrence(heads * features * (dim + 1), is_short ? 0 : 4);
      break;
    }
    case MixerKind::linear:
      all.products(4 * square);
      all.recurrence(d * (dim + 1), 4);
      break;
    case MixerKind::retnet:
      all.products(5 * square);
      all.recurrence(d * dim, 5);
      all.add({0, 8});  // the next position
      break;
    case MixerKind::gla:
      all.products(5 * square + 2 * 16 * d);
      all.recurrence(d * dim, 5);
      break;
    case MixerKind::deltanet:
      all.products(4 * square + heads * d);
      all.convolution(3 * d, taps);
      all.recurrence(d * dim, 6);
      break;
    case MixerKind::gated_deltanet:
      all.products(5 * square + 2 * heads * d);
      all.convolution(3 * d, taps);
      all.recurrence(d * dim, 7);
      break;
    case MixerKind::own: fail("count_mixer", "expected a mixer that has a name");
  }
  return all.cost();
}

}  // namespace tern::bench
