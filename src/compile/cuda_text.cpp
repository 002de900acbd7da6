#include "compile/cuda_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "autodiff/anomaly.h"
#include "compile/cuda_layout.h"
#include "ops/kernels/copy.h"
#include "ops/kernels/index.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/pointwise.h"
#include "ops/kernels/random.h"
#include "ops/kernels/reduce.h"

namespace tern::compiler {

namespace {

constexpr unsigned most_summing_threads = 1 << 17;  ///< of a kernel that adds up columns at most, each block of which leaves a part

/// Type of a dtype's elements in the text, and the one in which they are computed.
const char* type_of(DType dtype) {
  constexpr const char* types[] = {"float", "double", "f16", "bf16", "std::int32_t", "std::int64_t", "std::uint8_t", "bool"};
  return types[static_cast<int>(dtype)];
}
const char* computed_of(DType dtype) {
  if (dtype == DType::f64) return "double";
  return is_floating(dtype) ? "float" : "std::int64_t";
}

/// Magic numbers of a division, as gpu::Divider (cuda/device/indexer.cuh) has them.
std::array<std::uint32_t, 3> divider(std::int64_t divisor) {
  std::uint32_t shift = 0;
  while ((std::uint64_t{1} << shift) < static_cast<std::uint64_t>(divisor)) ++shift;
  const auto magic = (((std::uint64_t{1} << shift) - static_cast<std::uint64_t>(divisor)) << 32) / static_cast<std::uint64_t>(divisor) + 1;
  return {static_cast<std::uint32_t>(divisor), static_cast<std::uint32_t>(magic), shift};
}

class Printer {
 public:
  Printer(const Group& group, const std::vector<Call>& calls, const std::function<bool(std::size_t)>& lives_inside,
          const std::function<std::size_t(const Call::Place&)>& alignment, std::size_t copies)
      : group_(group),
        calls_(calls),
        lives_inside_(lives_inside),
        is_rows_(group.row_dims.has_value()),
        copies_(copies),
        layout_(group, calls, alignment) {}

  CudaText printed() {
    for (const std::size_t index : group_.calls) print(calls_[index]);
    for (Value& value : values_)
      if (value.is_written && !lives_inside_(value.use.block)) store(value);
    finish();
    return std::move(result_);
  }

 private:
  /// Elements of a group at one place in memory, in registers: an array r0[n] of elements, or one number r0 of a row.
  struct Value {
    Use use;
    std::string name;
    bool is_row = false, is_written = false;
    std::size_t operand = ~std::size_t{0};  ///< index among the operands, if its memory is read or written
  };

  // ---- Values

  std::size_t index_of(const Use& use) const {
    for (std::size_t i = 0; i < group_.uses.size(); ++i)
      if (group_.uses[i].is_of(use)) return i;
    fail("compile", "expected a use of the group");
  }

  Value* known(const Use& use) {
    for (Value& value : values_)
      if (value.use.is_of(use)) return &value;
    return nullptr;
  }
  std::string next_name() { return fmt::format("r{}", names_++); }
  bool is_row(const Use& use) const { return is_rows_ && use.strides.back() == 0; }

  /// Text of an element of a view, or of the number of its row: as in memory.
  std::string read(const View& view, const Call::Place& place) {
    const Use use = *use_of(group_, view, kernels::Access::read, place);
    Value* value = known(use);
    if (!value) {
      values_.push_back({use, next_name(), is_row(use), false});
      value = &values_.back();
      load(*value, view);
    }
    return value->is_row ? value->name : value->name + "[k]";
  }
  std::string computed(const View& view, const Call::Place& place) {
    return fmt::format("convert<{}>({})", computed_of(view.dtype), read(view, place));
  }
  /// Text of an operand of a binary kernel, in the type in which `dtype` is computed.
  std::string computed(const kernels::Operand& operand, DType dtype, const Call::Place& place) {
    return operand.is_number ? number(operand.number, dtype) : computed(operand.view, place);
  }
  std::string number(double x, DType dtype) {
    if (dtype == DType::f64) return fmt::format("a.doubles[{}]", push(doubles_, x));
    return fmt::format("a.floats[{}]", push(floats_, static_cast<float>(x)));
  }
  template <class T>
  static std::size_t push(std::vector<T>& all, T x) {
    for (std::size_t i = 0; i < all.size(); ++i)
      if (std::memcmp(&all[i], &x, sizeof(T)) == 0) return i;
    all.push_back(x);
    return all.size() - 1;
  }

  /// Makes a value of what a call computes: `text` is one element of it, of the dtype.
  void write(const View& view, const Call::Place& place, const std::string& text) {
    const Use use = *use_of(group_, view, kernels::Access::write, place);
    const std::string name = next_name();
    if (is_row(use)) body_ += fmt::format("  const {} {} = {};\n", type_of(use.dtype), name, text);
    else
      body_ += fmt::format("  {} {}[{}];\n#pragma unroll\n  for (int k = 0; k < {}; ++k) {}[k] = {};\n", type_of(use.dtype), name,
                           layout_.elements(), layout_.elements(), name, text);
    set(use, view, name);
  }
  void set(const Use& use, const View& view, const std::string& name) {
    Value* value = known(use);
    if (!value) {
      values_.push_back({use, name, is_row(use), true});
      value = &values_.back();
    }
    value->name = name;
    value->is_written = true;
    views_.emplace_back(use, view);
  }

  // ---- Memory

  std::size_t operand_of(Value& value, const View& view, bool is_written) {
    if (value.operand == ~std::size_t{0}) {
      value.operand = result_.operands.size();
      result_.operands.push_back(view);
      result_.places.push_back({value.use.block, value.use.offset});
      result_.is_written.push_back(false);
      operand_uses_.push_back(value.use);
    }
    if (is_written) result_.is_written[value.operand] = true;
    return value.operand;
  }
  std::string address(const Value& value, bool is_written) const {
    return fmt::format("static_cast<{}{}*>(data[{}])", is_written ? "" : "const ", type_of(value.use.dtype), value.operand);
  }
  /// Offset of the elements of item k / width among those of an operand.
  std::string offset(const Value& value) const {
    const std::size_t i = index_of(value.use);
    std::string text = is_rows_ && layout_.strides[i][0] != 0 ? "column(k)" : "";
    for (std::size_t d = is_rows_ ? 1 : 0; d < layout_.sizes.size(); ++d) {
      if (layout_.strides[i][d] == 0) continue;
      const std::string step =
          d == 0 && layout_.strides[i][d] == 1 ? "" : fmt::format(" * a.strides[{}]", value.operand * layout_.sizes.size() + d);
      text += fmt::format("{}std::int64_t({}i{}){}", text.empty() ? "" : " + ", is_rows_ ? "" : "at.", d, step);
    }
    return text.empty() ? "0" : text;
  }
  bool is_one_element(const Value& value) const { return layout_.strides[index_of(value.use)][0] == 0; }

  void load(Value& value, const View& view) {
    operand_of(value, view, false);
    const std::string from = address(value, false);
    const char* const type = type_of(value.use.dtype);
    if (value.is_row) {
      reads_ += fmt::format("  {0} {1} = {{}};\n  if (is_row) {1} = {2}[{3}];\n", type, value.name, from, offset(value));
      return;
    }
    reads_ += fmt::format("  {} {}[{}] = {{}};\n#pragma unroll\n  for (int k = 0; k < {}; ++k) {{\n", type, value.name, layout_.elements(),
                          layout_.items);
    if (!is_rows_) reads_ += "    const Position at = position(k);\n";
    if (!is_rows_ && is_one_element(value) && layout_.width > 1)
      reads_ += fmt::format(
          "    if (at.valid > 0) {{\n      const {0} one = {1}[{2}];\n#pragma unroll\n"
          "      for (int j = 0; j < {3}; ++j) {4}[k * {3} + j] = one;\n    }}\n",
          type, from, offset(value), layout_.width, value.name);
    else
      reads_ += fmt::format("    read_some<{0}, {5}>({1} + {2}, {3}, {4} + k * {0});\n", layout_.width, from, offset(value),
                            is_rows_ ? "valid(k)" : "at.valid", value.name, layout_.sizes.size() > 1);
    reads_ += "  }\n";
  }
  void store(Value& value) {
    const View* view = nullptr;
    for (const auto& [use, known] : views_)
      if (use.is_of(value.use)) view = &known;
    operand_of(value, *view, true);
    const std::string to = address(value, true);
    if (value.is_row) {
      body_ += fmt::format("  if (is_row && thread == 0) {}[{}] = {};\n", to, offset(value), value.name);
      return;
    }
    body_ += fmt::format("#pragma unroll\n  for (int k = 0; k < {}; ++k) {{\n{}    write_some<{}, {}>({} + {}, {}, {} + k * {});\n  }}\n",
                         layout_.items, is_rows_ ? "" : "    const Position at = position(k);\n", layout_.width, layout_.sizes.size() > 1,
                         to, offset(value), is_rows_ ? "valid(k)" : "at.valid", value.name, layout_.width);
  }

  // ---- Calls

  template <class Functor>
  std::string functor(const Functor& f) {
    std::string numbers;
    if constexpr (std::is_same_v<Functor, functors::Clamp>)
      numbers = fmt::format("a.doubles[{}], a.doubles[{}]", push(doubles_, f.low), push(doubles_, f.high));
    else if constexpr (std::is_same_v<Functor, functors::Softplus>) numbers = fmt::format("a.doubles[{}]", push(doubles_, f.beta));
    else static_assert(std::is_empty_v<Functor> || std::is_same_v<Functor, functors::Bits>);
    return fmt::format("functors::{}{{{}}}", detail::short_name(typeid(Functor)), numbers);
  }
  template <class Variant>
  std::string functor_of(const Variant& f) {
    return kernels::dispatch_functor(f, [&](const auto& one) { return functor(one); });
  }
  static std::string rounded(DType dtype, const std::string& text) { return fmt::format("convert<{}>({})", type_of(dtype), text); }

  void print(const Call& call) {
    const std::vector<Call::Place>& at = call.places;
    if (!call.op.empty()) body_ += fmt::format("  // {}{}\n", call.op, call.module.empty() ? "" : " in " + call.module);
    if (const auto* unary = call.kernel->as<kernels::Unary>()) {
      write(unary->y, at[1], rounded(unary->y.dtype, functor_of(unary->f) + "(" + computed(unary->x, at[0]) + ")"));
    } else if (const auto* grad = call.kernel->as<kernels::UnaryGrad>()) {
      write(grad->dx, at[3],
            rounded(grad->dx.dtype, fmt::format("functors::gradient({}, {}, {}, {})", functor_of(grad->f), computed(grad->g, at[0]),
                                                computed(grad->x, at[1]), computed(grad->y, at[2]))));
    } else if (const auto* binary = call.kernel->as<kernels::Binary>()) {
      const DType dtype = binary->y.dtype;
      const std::string a = computed(binary->a, dtype, at[0]);
      // As cuda/pointwise: x^2 is a product.
      const bool is_square = std::holds_alternative<functors::Pow>(binary->f) && binary->b.is_number && binary->b.number == 2;
      const std::string b = is_square ? a : computed(binary->b, dtype, at[1]);
      write(binary->y, at[2],
            rounded(dtype, fmt::format("{}({}, {})", is_square ? functor(functors::Mul{}) : functor_of(binary->f), a, b)));
    } else if (const auto* compare = call.kernel->as<kernels::Compare>()) {
      const DType dtype = compare->a.is_number ? compare->b.view.dtype : compare->a.view.dtype;
      const std::string a = computed(compare->a, dtype, at[0]), b = computed(compare->b, dtype, at[1]);
      write(compare->y, at[2], fmt::format("{}({}, {})", functor_of(compare->f), a, b));
    } else if (const auto* where = call.kernel->as<kernels::Where>()) {
      const auto bits = [&](const kernels::Operand& operand, const Call::Place& place) {
        return operand.is_number ? rounded(where->y.dtype, number(operand.number, where->y.dtype)) : read(operand.view, place);
      };
      const std::string condition = read(where->condition, at[0]), a = bits(where->a, at[1]), b = bits(where->b, at[2]);
      write(where->y, at[3], fmt::format("{} ? {} : {}", condition, a, b));
    } else if (const auto* copy = call.kernel->as<kernels::Copy>()) {
      print(*copy, at);
    } else if (const auto* fill = call.kernel->as<kernels::Fill>()) {
      write(fill->y, at[0], rounded(fill->y.dtype, number(fill->value, fill->y.dtype)));
    } else if (const auto* dropout = call.kernel->as<kernels::Dropout>()) {
      print(*dropout, at);
    } else if (const auto* gather = call.kernel->as<kernels::Gather>()) {
      const std::string x = computed(gather->x, at[0]), element = fmt::format("{} ? {} : 0.f", is_column(gather->index, at[1]), x);
      write(gather->y, at[2], rounded(gather->y.dtype, reduced("RowSum", element)));
    } else if (const auto* scatter = call.kernel->as<kernels::ScatterAdd>()) {
      const std::string y = read(scatter->y, at[0]), index = is_column(scatter->index, at[1]),
                        sum = computed(scatter->y, at[0]) + " + " + computed(scatter->source, at[2]);
      write(scatter->y, at[0], fmt::format("{} ? {} : {}", index, rounded(scatter->y.dtype, sum), y));
    } else if (const auto* sums = call.kernel->as<kernels::ColumnSums>()) {
      add_columns(sums->g, at[0], sums->sums, at[1], 1, sums->write == Write::accumulate);
    } else if (const auto* reduce = call.kernel->as<kernels::Reduce>()) {
      const bool is_of_columns =
          std::any_of(group_.uses.begin(), group_.uses.end(), [&](const Use& use) { return use.is_sum && use.block == at[1].block; });
      if (is_of_columns) add_columns(reduce->x, at[0], reduce->y, at[1], reduce->scale, false);
      else print(*reduce, at);
    }
  }

  void print(const kernels::Copy& copy, const std::vector<Call::Place>& at) {
    const DType from = copy.x.dtype, to = copy.y.dtype;
    if (from == to) return write(copy.y, at[1], read(copy.x, at[0]));
    // As cuda/pointwise/copy.cu: floats of 32 bits or fewer directly, any others as f64, and integers as i64.
    const bool is_wide = from == DType::f64 || to == DType::f64;
    const char* const between = !is_floating(from) ? "std::int64_t" : is_wide ? "double" : "float";
    write(copy.y, at[1], rounded(to, fmt::format("convert<{}>({})", between, read(copy.x, at[0]))));
  }

  void print(const kernels::Dropout& dropout, const std::vector<Call::Place>& at) {
    const std::string x = read(dropout.x, at[0]), name = next_name();
    const char* const type = type_of(dropout.y.dtype);
    const char* const wide = computed_of(dropout.y.dtype);
    const std::size_t draw = result_.draws.size();
    result_.draws.push_back(dropout.state);
    body_ += fmt::format(
        "  {0} {1}[{2}];\n  {{\n    const gpu::Dropout<{3}> dropout(a.doubles[{4}], a.draws[{5}]);\n"
        "    const std::uint64_t place = dropout.position();\n#pragma unroll\n    for (int i = 0; i < {6}; ++i) {{\n"
        "      {3} drawn[{7}];\n#pragma unroll\n"
        "      for (int j = 0; j < {7}; ++j) {{ const int k = i * {7} + j; drawn[j] = convert<{3}>({8}); }}\n"
        "      if (dropout.drops) dropout(drawn, first_of(i), place);\n#pragma unroll\n"
        "      for (int j = 0; j < {7}; ++j) {1}[i * {7} + j] = convert<{0}>(drawn[j]);\n    }}\n  }}\n",
        type, name, layout_.elements(), wide, push(doubles_, dropout.p), draw, layout_.items, layout_.width, x);
    set(*use_of(group_, dropout.y, kernels::Access::write, at[1]), dropout.y, name);
  }

  /// Text that is true for the element of a row whose column an index tells.
  std::string is_column(const View& index, const Call::Place& at) {
    return fmt::format("std::int64_t(column(k / {0}) + k % {0}) == {1}", layout_.width, read(index, at));
  }
  /// Text of a reduction of a row: `element` is that of an element.
  std::string reduced(const char* op, const std::string& element) {
    const std::string name = next_name();
    // Elements beyond the row's end count as none; in a group without a row nobody reads the result.
    body_ += fmt::format(
        "  float {0} = {1}::identity();\n#pragma unroll\n  for (int k = 0; k < {2}; ++k)\n"
        "    {3}{0} = {1}::combine({0}, {4});\n  {0} = reduce_row<{1}, {5}>({0}, shared[{6}]);\n",
        name, op, layout_.elements(), layout_.fills_row() ? "" : fmt::format("if (valid(k / {})) ", layout_.width), element,
        layout_.threads_of_row, reductions_++);
    return name;
  }
  void print(const kernels::Reduce& reduce, const std::vector<Call::Place>& at) {
    using enum kernels::ReduceFunction;
    const std::string x = computed(reduce.x, at[0]);
    std::string result = reduced(reduce.f == sum ? "RowSum" : reduce.f == min ? "RowMin" : "RowMax", x);
    if (reduce.f == logsumexp) {
      const std::string offset = next_name();
      body_ += fmt::format("  const float {} = finite_or_zero({});\n", offset, result);
      const std::string total = reduced("RowSum", fmt::format("functors::Exp{{}}({} - {})", x, offset));
      result = fmt::format("functors::Log{{}}({}) + {}", total, offset);
    } else if (reduce.f == sum) {
      result = fmt::format("static_cast<float>(double({}) * a.doubles[{}])", result, push(doubles_, reduce.scale));
    }
    write(reduce.y, at[1], rounded(reduce.y.dtype, result));
  }
  /// Adds up the columns of x over the rows of a block of threads, whose sums become a part of the whole ones.
  void add_columns(const View& x, const Call::Place& from, const View& to, const Call::Place& at, double scale, bool adds) {
    const std::string element = computed(x, from), name = next_name();
    sums_ += fmt::format("  float {}[{}] = {{}};\n", name, layout_.elements());
    body_ += fmt::format("#pragma unroll\n  for (int k = 0; k < {}; ++k)\n    if ({}) {}[k] += {};\n", layout_.elements(),
                         layout_.fills_row() ? "is_row" : fmt::format("valid(k / {})", layout_.width), name, element);
    if (layout_.rows_of_block > 1) ends_ += fmt::format("  add_rows<{}>({}, summed);\n", layout_.threads_of_row, name);
    const std::string whole =
        scale == 1 ? name + "[k]" : fmt::format("static_cast<float>(double({}[k]) * a.doubles[{}])", name, push(doubles_, scale));
    ends_ += fmt::format(
        "#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n    const unsigned at = column(k / {1}) + k % {1};\n"
        "    if (threadIdx.x < {2} && at < a.columns) static_cast<float*>(data[parts + {3}])[std::int64_t(blockIdx.x) * a.columns + at] = "
        "{4};\n  }}\n",
        layout_.elements(), layout_.width, layout_.threads_of_row, result_.sums.size(), whole);
    result_.sums.push_back({to, at, adds});
  }

  // ---- The whole

  template <class T>
  void append(const T& x) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(&x);
    result_.arguments.insert(result_.arguments.end(), bytes, bytes + sizeof(T));
  }
  void finish() {
    const std::size_t operands = result_.operands.size(), dims = layout_.sizes.size(), all = operands + result_.sums.size();
    std::string fields = fmt::format("  void* data[{}][{}];\n", copies_, all);
    result_.arguments.resize(copies_ * all * sizeof(void*));
    fields += fmt::format("  std::int64_t strides[{}];\n", std::max<std::size_t>(1, operands * dims));
    for (const Use& use : operand_uses_)
      for (const std::int64_t stride : layout_.strides[index_of(use)]) append(stride);
    if (operands == 0) append(std::int64_t{0});
    if (!doubles_.empty()) fields += fmt::format("  double doubles[{}];\n", doubles_.size());
    for (const double x : doubles_) append(x);
    result_.draws_at = result_.arguments.size();
    if (!result_.draws.empty()) fields += fmt::format("  PhiloxState draws[{}];\n", result_.draws.size());
    for (const PhiloxState& x : result_.draws) append(x);
    if (!floats_.empty()) fields += fmt::format("  float floats[{}];\n", floats_.size());
    for (const float x : floats_) append(x);
    const std::size_t first_divider = is_rows_ ? 1 : 0;
    if (dims > first_divider + 1) fields += fmt::format("  Divider sizes[{}];\n", dims - first_divider - 1);
    for (std::size_t d = first_divider; d + 1 < dims; ++d) append(divider(layout_.sizes[d]));
    std::string begin = "  void* const* const data = a.data[blockIdx.y];\n", end;
    if (is_rows_) {
      fields += "  unsigned rows, columns;\n";
      append(static_cast<std::uint32_t>(group_.rows()));
      append(static_cast<std::uint32_t>(group_.columns()));
      result_.threads = static_cast<unsigned>(layout_.threads_of_row * layout_.rows_of_block);
      result_.blocks = static_cast<unsigned>((group_.rows() + layout_.rows_of_block - 1) / layout_.rows_of_block);
      begin += print_rows(operands);
      if (!result_.sums.empty()) {
        result_.blocks = std::min(result_.blocks, most_summing_threads / result_.threads);
        if (reductions_ > 0 && layout_.threads_of_row > 32) end = "  __syncthreads();\n";
        end += "  }\n" + ends_;
      }
    } else {
      fields += fmt::format("  unsigned counts[{}];\n", copies_);
      const std::int64_t count = numel(group_.shape), of_block = Layout::block_threads * layout_.elements();
      result_.counts_at = result_.arguments.size();
      for (std::size_t i = 0; i < copies_; ++i) append(static_cast<std::uint32_t>(count));
      result_.threads = Layout::block_threads;
      result_.blocks = static_cast<unsigned>((count + of_block - 1) / of_block);
      begin += "  const unsigned count = a.counts[blockIdx.y];\n" + print_position();
    }
    for (CudaText::ColumnSum& sum : result_.sums) {
      const Shape parts{result_.blocks, group_.columns()};
      sum.operand = result_.operands.size();
      result_.operands.emplace_back(nullptr, parts, contiguous_strides(parts), DType::f32, Stream{});
      result_.places.push_back({});
      result_.is_written.push_back(true);
    }
    while (result_.arguments.size() % 8 != 0) result_.arguments.push_back({});
    result_.text = fmt::format(
        "#include \"compile/device/generated.cuh\"\nusing namespace tern;\nusing namespace tern::gpu;\n\n"
        "struct alignas(8) Arguments {{\n{}}};\n\nextern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ "
        "Arguments a) {{\n{}{}{}{}}}\n",
        fields, result_.threads, CudaText::name, begin, reads_, body_, end);
  }
  /// Text for a thread's row, and the places of its k-th vector there. A block that adds up columns has several rows, one after the other.
  std::string print_rows(std::size_t operands) const {
    const bool adds_columns = !result_.sums.empty();
    std::string text = fmt::format(
        "  const unsigned thread = threadIdx.x % {0};\n  const auto column = [&](int k) {{ return (k * {0} + thread) * {1}u; }};\n",
        layout_.threads_of_row, layout_.width);
    if (reductions_ > 0) text += fmt::format("  __shared__ float shared[{}][32];\n", reductions_);
    if (adds_columns) text += fmt::format("  constexpr int parts = {};\n", operands) + sums_;
    if (adds_columns && layout_.rows_of_block > 1)
      text += fmt::format("  __shared__ float summed[{}];\n", Layout::summing_threads / std::max<std::int64_t>(layout_.threads_of_row, 32) *
                                                                  layout_.threads_of_row * layout_.elements());
    if (adds_columns)
      text +=
          fmt::format("  for (unsigned first = blockIdx.x * {0}; first < a.rows; first += gridDim.x * {0}) {{\n", layout_.rows_of_block);
    else text += fmt::format("  const unsigned first = blockIdx.x * {};\n", layout_.rows_of_block);
    text += fmt::format("  const unsigned own = first + threadIdx.x / {};\n  const bool is_row = own < a.rows;\n  unsigned i1 = own;\n",
                        layout_.threads_of_row);
    for (std::size_t d = 1; d + 1 < layout_.sizes.size(); ++d)
      text += fmt::format("  unsigned i{1} = a.sizes[{2}].divide(i{0});\n  i{0} -= i{1} * a.sizes[{2}].divisor;\n", d, d + 1, d - 1);
    return text +
           (layout_.fills_row()
                ? fmt::format("  const auto valid = [&](int) {{ return is_row ? {}u : 0u; }};\n", layout_.width)
                : std::string(
                      "  const auto valid = [&](int k) { return is_row && column(k) < a.columns ? a.columns - column(k) : 0u; };\n")) +
           "  const auto first_of = [&](int k) { return std::int64_t(own) * a.columns + column(k); };\n";
  }
  /// Text for the place of a thread's k-th vector, or element, in a pointwise kernel.
  std::string print_position() const {
    std::string text = "  struct Position {\n    unsigned valid";
    for (std::size_t d = 0; d < layout_.sizes.size(); ++d) text += fmt::format(", i{}", d);
    text += ";\n  };\n";
    text += fmt::format(
        "  const auto first_of = [&](int k) {{ return (std::int64_t(blockIdx.x) * {0} + k) * {1} * {2} + threadIdx.x * {2}; }};\n",
        layout_.items, Layout::block_threads, layout_.width);
    text +=
        "  const auto position = [&](int k) -> Position {\n    unsigned i0 = unsigned(first_of(k));\n"
        "    if (i0 >= count) return {};\n    const unsigned valid = count - i0;\n";
    std::string indices;
    for (std::size_t d = 0; d + 1 < layout_.sizes.size(); ++d)
      text += fmt::format("    unsigned i{1} = a.sizes[{0}].divide(i{0});\n    i{0} -= i{1} * a.sizes[{0}].divisor;\n", d, d + 1);
    for (std::size_t d = 0; d < layout_.sizes.size(); ++d) indices += fmt::format(", i{}", d);
    return text + "    return {valid" + indices + "};\n  };\n";
  }

  const Group& group_;
  const std::vector<Call>& calls_;
  const std::function<bool(std::size_t)>& lives_inside_;
  const bool is_rows_;
  const std::size_t copies_;  ///< groups that the kernel is for

  const Layout layout_;
  std::vector<Value> values_;
  std::vector<std::pair<Use, View>> views_;
  std::vector<Use> operand_uses_;
  std::vector<double> doubles_;
  std::vector<float> floats_;
  std::size_t names_ = 0, reductions_ = 0;
  std::string sums_, reads_, body_, ends_;
  CudaText result_;
};

}  // namespace

/// Appends the operands of another group's text as the `at`-th; false if the text differs in more.
static bool append(CudaText& text, const CudaText& other, std::size_t at) {
  const std::size_t pointers = text.copies * other.operands.size() * sizeof(void*),
                    counts_end = text.counts_at + text.copies * sizeof(std::uint32_t);
  if (other.text != text.text || other.arguments.size() != text.arguments.size() || !text.draws.empty()) return false;
  for (std::size_t i = pointers; i < text.arguments.size(); ++i)
    if ((i < text.counts_at || i >= counts_end) && text.arguments[i] != other.arguments[i]) return false;
  std::memcpy(text.arguments.data() + text.counts_at + at * sizeof(std::uint32_t), other.arguments.data() + text.counts_at,
              sizeof(std::uint32_t));
  text.operands.insert(text.operands.end(), other.operands.begin(), other.operands.end());
  text.places.insert(text.places.end(), other.places.begin(), other.places.end());
  text.is_written.insert(text.is_written.end(), other.is_written.begin(), other.is_written.end());
  text.blocks = std::max(text.blocks, other.blocks);
  return true;
}

std::optional<CudaText> cuda_text(const Group& group, const std::vector<Call>& calls, const std::function<bool(std::size_t)>& lives_inside,
                                  const std::function<std::size_t(const Call::Place&)>& alignment) {
  const std::size_t copies = 1 + group.same.size();
  CudaText text = Printer(group, calls, lives_inside, alignment, copies).printed();
  text.copies = copies;
  for (std::size_t i = 1; i < copies; ++i)
    if (!append(text, Printer(group.same[i - 1], calls, lives_inside, alignment, copies).printed(), i)) return std::nullopt;
  return text;
}

}  // namespace tern::compiler
