#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "tensor/dispatch.h"
#include "tensor/tensor.h"

namespace tern {

namespace {

constexpr std::int64_t summarize_above = 1000;  ///< elements
constexpr std::int64_t edge = 3;                ///< items kept at either end of a summarized dimension

/// Format of floats: one for the whole tensor, so that columns are aligned.
struct Style {
  bool integral = true, scientific = false;

  std::string text(double value) const {
    if (!std::isfinite(value)) return fmt::format("{}", value);
    if (scientific) return fmt::format("{:.4e}", value);
    return integral ? fmt::format("{:.0f}.", value) : fmt::format("{:.4f}", value);
  }
};

/// Calls f for the indices of a dimension that are printed, and gap() between the two ends.
template <class F, class Gap>
void visible(std::int64_t size, bool summarize, F f, Gap gap) {
  for (std::int64_t i = 0; i < size; ++i) {
    if (summarize && size > 2 * edge && i == edge) {
      gap();
      i = size - edge;
    }
    f(i);
  }
}

class Printer {
 public:
  Printer(Shape shape, std::vector<std::string> texts, bool summarize)
      : shape_(std::move(shape)), texts_(std::move(texts)), summarize_(summarize) {
    for (const std::string& text : texts_) width_ = std::max(width_, text.size());
  }

  std::string print() { return shape_.empty() ? texts_.at(0) : block(0, 1); }

 private:
  std::string block(int dim, std::size_t indent) {
    const bool innermost = dim == shape_.size() - 1;
    const std::string separator =
        innermost ? ", " : "," + std::string(static_cast<std::size_t>(shape_.size() - 1 - dim), '\n') + std::string(indent, ' ');
    std::string out = "[";
    bool first = true;
    const auto item = [&](const std::string& text) {
      if (!first) out += separator;
      first = false;
      out += text;
    };
    visible(
        shape_[dim], summarize_,
        [&](std::int64_t) { item(innermost ? fmt::format("{:>{}}", texts_[next_++], width_) : block(dim + 1, indent + 1)); },
        [&] { item("..."); });
    return out + "]";
  }

  Shape shape_;
  std::vector<std::string> texts_;
  bool summarize_;
  std::size_t width_ = 0, next_ = 0;
};

/// Row-major indices of the elements that are printed.
void collect(const Shape& shape, int dim, std::int64_t base, bool summarize, std::vector<std::size_t>& out) {
  if (dim == shape.size()) return out.push_back(static_cast<std::size_t>(base));
  visible(shape[dim], summarize, [&](std::int64_t i) { collect(shape, dim + 1, base * shape[dim] + i, summarize, out); }, [] {});
}

template <class T>
std::vector<std::string> texts(const std::vector<T>& all, const std::vector<std::size_t>& shown) {
  std::vector<std::string> result;
  if constexpr (std::is_same_v<T, bool>) {
    for (std::size_t i : shown) result.push_back(all[i] ? "true" : "false");
  } else if constexpr (std::is_integral_v<T>) {
    for (std::size_t i : shown) result.push_back(fmt::format("{}", static_cast<std::int64_t>(all[i])));
  } else {
    Style style;
    double low = INFINITY, high = 0;
    for (std::size_t i : shown) {
      const double size = std::abs(static_cast<double>(all[i]));
      if (!std::isfinite(size)) continue;
      style.integral = style.integral && size == std::floor(size);
      high = std::max(high, size);
      if (size > 0) low = std::min(low, size);
    }
    style.scientific = high >= 1e6 || (!style.integral && high > 0 && (high / low > 1e6 || high < 1e-3));
    for (std::size_t i : shown) result.push_back(style.text(static_cast<double>(all[i])));
  }
  return result;
}

}  // namespace

std::string to_string(const Tensor& x) {
  if (!x.defined()) return "tensor(undefined)";
  const bool summarize = x.numel() > summarize_above;
  std::vector<std::size_t> shown;
  collect(x.shape(), 0, 0, summarize, shown);
  std::vector<std::string> elements = dispatch_all(x.dtype(), [&]<class T>() { return texts(x.to_vector<T>(), shown); });
  return fmt::format("{}\n{} {} on {}", Printer(x.shape(), std::move(elements), summarize).print(), name(x.dtype()), to_string(x.shape()),
                     to_string(x.device()));
}

std::ostream& operator<<(std::ostream& out, const Tensor& x) { return out << to_string(x); }
std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << to_string(shape); }
std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name(dtype); }
std::ostream& operator<<(std::ostream& out, Device device) { return out << to_string(device); }

}  // namespace tern
