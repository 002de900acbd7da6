// Two traces of a function are compared: the first thing in which they differ, for the user who wrote it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "autodiff/anomaly.h"
#include "backend/memory.h"
#include "compile/program.h"
#include "tensor/context.h"

namespace tern::compiler {

static bool is_same(const std::variant<double, std::int64_t>& a, const std::variant<double, std::int64_t>& b) {
  const double* const x = std::get_if<double>(&a);
  const double* const y = std::get_if<double>(&b);
  return x && y ? std::bit_cast<std::int64_t>(*x) == std::bit_cast<std::int64_t>(*y) : a == b;  // NaN is NaN
}
std::string Arguments::difference(const Arguments& later) const {
  if (views.size() != later.views.size() || numbers.size() != later.numbers.size()) return "another number of arguments";
  for (std::size_t i = 0; i < numbers.size(); ++i)
    if (!is_same(numbers[i], later.numbers[i]))
      return std::visit([](auto a, auto b) { return fmt::format("numbers {} and {}", a, b); }, numbers[i], later.numbers[i]);
  for (std::size_t i = 0; i < views.size(); ++i) {
    const View &a = views[i], &b = later.views[i];
    if (a.dtype != b.dtype) return fmt::format("dtypes {} and {}", name(a.dtype), name(b.dtype));
    if (a.shape != b.shape) return fmt::format("shapes {} and {}", to_string(a.shape), to_string(b.shape));
    if (a.strides != b.strides) return fmt::format("strides {} and {}", to_string(a.strides), to_string(b.strides));
  }
  return "";
}

/// Text for a kernel within its program.
static std::string place_in(const Call& call, std::size_t index, std::size_t count) {
  std::string text = fmt::format("kernel {} of {}, {}", index + 1, count, detail::short_name(call.kernel->type()));
  if (!call.op.empty()) text += " of " + call.op;
  if (!call.module.empty()) text += " in " + call.module;
  return text;
}

/// The memory of a block that the program keeps.
static std::vector<std::byte> bytes_of(const Block& block) {
  std::vector<std::byte> bytes(block.bytes);
  const Stream stream = context().stream(block.memory->stream().device);
  with_backend(stream.device, [&](auto dev) { backend::copy_to_host(dev, bytes.data(), block.memory->data(), bytes.size(), stream); });
  return bytes;
}

std::size_t Program::sum_in(const Ref<Storage>& memory) const {
  for (std::size_t i = 0; i < sinks_.size(); ++i) {
    const GradientSink::State& found = sinks_[i].before;
    if (found.gradient.defined() && found.gradient.impl().storage == memory) return 2 * i;
    if (found.exact.defined() && found.exact.impl().storage == memory) return 2 * i + 1;
  }
  return Call::Place::none;
}

std::string Program::difference(const Program& later, bool gradients_may_move) const {
  std::vector<std::size_t> mine(later.blocks_.size(), Call::Place::none), theirs(blocks_.size(), Call::Place::none);
  for (std::size_t i = 0; i < std::min(calls_.size(), later.calls_.size()); ++i) {
    const Call &a = calls_[i], &b = later.calls_[i];
    const auto differs = [&](const std::string& what) { return fmt::format("{}: {}", place_in(a, i, calls_.size()), what); };
    if (a.kernel->type() != b.kernel->type()) return differs("then " + detail::short_name(b.kernel->type()));
    if (const std::string found = Arguments(*a.kernel).difference(Arguments(*b.kernel)); !found.empty()) return differs(found);
    if (a.places.size() != b.places.size()) return differs("another number of tensors");
    if (a.ways.matmul_precision != b.ways.matmul_precision) return differs("two precisions of products");
    for (std::size_t k = 0; k < a.places.size(); ++k) {
      const auto [block, offset] = a.places[k];
      const auto [other, other_offset] = b.places[k];
      if ((block == Call::Place::none) != (other == Call::Place::none)) return differs("a tensor that is there and one that is not");
      if (block == Call::Place::none) continue;
      const Block &x = blocks_[block], &y = later.blocks_[other];
      if (theirs[block] == Call::Place::none && mine[other] == Call::Place::none) theirs[block] = other, mine[other] = block;
      if (theirs[block] != other || mine[other] != block || offset != other_offset) return differs("uses another tensor");
      if (x.kind == Block::Kind::outside && y.kind == x.kind && x.memory != y.memory &&
          !(gradients_may_move && sum_in(x.memory) != Call::Place::none && sum_in(x.memory) == later.sum_in(y.memory)))
        return differs("uses another tensor from outside: write into it by copy_, do not replace it");
      if (x.kind == Block::Kind::input && (y.kind != x.kind || block != other)) return differs("uses another argument");
      if ((x.kind == Block::Kind::constant) != (y.kind == Block::Kind::constant)) return differs("uses another tensor");
      if (x.kind == Block::Kind::constant && bytes_of(x) != bytes_of(y)) return differs("uses other elements that the host wrote");
    }
  }
  if (calls_.size() != later.calls_.size()) return fmt::format("{} kernels and {}", calls_.size(), later.calls_.size());
  if (drawn_ != later.drawn_) return fmt::format("{} random positions and {}", drawn_, later.drawn_);
  return "";
}

}  // namespace tern::compiler
