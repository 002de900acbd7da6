// Rows of ops/recurrent.h. Note [The table] in op_cases.h.
#include "op_cases.h"
#include "ops/pointwise.h"
#include "ops/recurrent.h"

namespace tern::op_cases {

using namespace reference;

namespace {

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

void add_lstm_cell(Rows& rows, const std::vector<Shape>& states) {
  Row row{"lstm_cell", {}};
  row.slack = 8;
  row.roundings = 2;
  for (const Shape& s : states) {
    const std::int64_t width = s[1];
    Case op;
    op.inputs = {value({s[0], 4 * width}), value({s[0], 4 * width}), value(s)};
    op.call = [](In in) -> Tensors {
      const LSTMState after = lstm_cell(in[0], in[1], in[2]);
      return {after.h, after.c};
    };
    op.reference = [=](Ref in) -> Arrays {
      const auto sum_of_gate = [&](std::int64_t gate, const Shape& at) {
        const Shape place = {at[0], gate * width + at[1]};
        return in[0](place) + in[1](place);
      };
      const auto cell = [&](const Shape& at) {
        return logistic(sum_of_gate(1, at)) * in[2](at) + logistic(sum_of_gate(0, at)) * std::tanh(sum_of_gate(2, at));
      };
      return {make(s, in.dtype, [&](const Shape& at) { return logistic(sum_of_gate(3, at)) * std::tanh(cell(at)); }),
              make(s, in.dtype, cell)};
    };
    row.cases.push_back(op);
  }
  row.mistakes = {{[] { lstm_cell(sample({2, 12}), sample({2, 16}), sample({2, 4})); }, {"(2, 12)", "(2, 4)", "4 H"}},
                  {[] { lstm_cell(sample({2, 16}), sample({3, 16}), sample({2, 4})); }, {"(3, 16)", "(2, 4)"}},
                  {[] { lstm_cell(sample({16}), sample({16}), sample({4})); }, {"(16,)", "(4,)"}},
                  {[] { lstm_cell(sample({2, 16}, DType::i64), sample({2, 16}), sample({2, 4})); }, {"floating", "i64"}}};
  rows.push_back(row);
}

void add_gru_cell(Rows& rows, const std::vector<Shape>& states) {
  Row row{"gru_cell", {}};
  row.slack = 8;
  row.roundings = 2;
  for (const Shape& s : states) {
    const std::int64_t width = s[1];
    Case op;
    op.inputs = {value({s[0], 3 * width}), value({s[0], 3 * width}), value(s)};
    op.call = [](In in) -> Tensors { return {gru_cell(in[0], in[1], in[2])}; };
    op.reference = [=](Ref in) {
      return one(make(s, in.dtype, [&](const Shape& at) {
        const auto of = [&](std::size_t input, std::int64_t gate) { return in[input]({at[0], gate * width + at[1]}); };
        const double r = logistic(of(0, 0) + of(1, 0)), z = logistic(of(0, 1) + of(1, 1)), n = std::tanh(of(0, 2) + r * of(1, 2));
        return (1 - z) * n + z * in[2](at);
      }));
    };
    row.cases.push_back(op);
  }
  row.mistakes = {{[] { gru_cell(sample({2, 12}), sample({2, 9}), sample({2, 4})); }, {"(2, 9)", "(2, 4)", "3 H"}},
                  {[] { gru_cell(sample({2, 16}), sample({2, 12}), sample({2, 4})); }, {"(2, 16)"}},
                  {[] { gru_cell(sample({2, 12}, DType::i64), sample({2, 12}), sample({2, 4})); }, {"floating", "i64"}}};
  rows.push_back(row);
}

/// Sizes and options of a case of linear_recurrence.
struct Recurrences {
  std::int64_t batch, tokens, heads, width, columns;
  int decay_dims = 0;  ///< of log_decay: none, a head's, a token's or a channel's
  bool has_beta = false, has_initial = false;
  double low = -2, high = 0;  ///< of log_decay
  bool has_read = false;

  std::size_t beta_at() const { return decay_dims > 0 ? 4 : 3; }
  std::size_t initial_at() const { return beta_at() + (has_beta ? 1 : 0); }
  std::size_t read_at() const { return initial_at() + (has_initial ? 1 : 0); }
  Shape state() const { return {batch, heads, width, columns}; }
};

/// The tokens one after another.
Arrays recur(Ref in, const Recurrences& of) {
  const bool is_f64 = in.dtype == DType::f64;
  Array y = make({of.batch, of.tokens, of.heads, of.columns}, in.dtype, [](const Shape&) { return 0; });
  Array s =
      make(of.state(), is_f64 ? DType::f64 : DType::f32, [&](const Shape& at) { return of.has_initial ? in[of.initial_at()](at) : 0; });
  const auto decay = [&](const Shape& channel) {
    Shape at = channel;
    while (at.size() > of.decay_dims) at.erase(at.size() - 1);
    return of.decay_dims == 0 ? 1 : std::exp(in[3](of.decay_dims == 1 ? Shape{channel[2]} : at));
  };
  each({of.batch, of.tokens, of.heads, of.columns}, [&](const Shape& at) {
    const std::int64_t b = at[0], h = at[2], j = at[3];
    double u = in[2](at), read = 0, other = 0;
    for (std::int64_t i = 0; i < of.width; ++i) {
      double& state = s({b, h, i, j});
      state *= decay({b, at[1], h, i});
      read += in[1]({b, at[1], h, i}) * state;
      if (of.has_read) other += in[of.read_at()]({b, at[1], h, i}) * state;
    }
    if (of.has_beta) u = in[4 - (of.decay_dims == 0)]({b, at[1], h}) * (u - read);
    for (std::int64_t i = 0; i < of.width; ++i) {
      double& state = s({b, h, i, j});
      state += in[1]({b, at[1], h, i}) * u;
      if (of.has_read) state += in[of.read_at() + 1]({b, at[1], h, i}) * other;
      y(at) += in[0]({b, at[1], h, i}) * state;
    }
  });
  return {y, s};
}

Case recurrence_case(const Recurrences& of) {
  const Shape keys{of.batch, of.tokens, of.heads, of.width};
  const double key = 1.5 / std::sqrt(static_cast<double>(std::max<std::int64_t>(of.width, 1)));  // keys of a length near 1
  Case op;
  op.inputs = {value(keys, -2 * key, 2 * key), value(keys, -key, key), value({of.batch, of.tokens, of.heads, of.columns})};
  if (of.decay_dims == 1) op.inputs.push_back(value({of.heads}, of.low, of.high));
  if (of.decay_dims == 3) op.inputs.push_back(value({of.batch, of.tokens, of.heads}, of.low, of.high));
  if (of.decay_dims == 4) op.inputs.push_back(value(keys, of.low, of.high));
  if (of.has_beta) op.inputs.push_back(value({of.batch, of.tokens, of.heads}, 0.1, 1));
  if (of.has_initial) op.inputs.push_back(value(of.state(), -1, 1));
  for (std::size_t i = 3; i < op.inputs.size(); ++i) op.inputs[i].optional = true;
  if (of.has_read) op.inputs.insert(op.inputs.end(), {value(keys, -key, key), value(keys, -key, key)});
  op.call = [=](In in) -> Tensors {
    const auto operand = [&](bool is_there, std::size_t at) { return is_there ? in[at] : Tensor(); };
    const Recurrence result = linear_recurrence(in[0], in[1], in[2],
                                                {.log_decay = operand(of.decay_dims > 0, 3),
                                                 .beta = operand(of.has_beta, of.beta_at()),
                                                 .initial_state = operand(of.has_initial, of.initial_at()),
                                                 .read = operand(of.has_read, of.read_at()),
                                                 .write = operand(of.has_read, of.read_at() + 1)});
    return {result.y, result.state};
  };
  op.reference = [=](Ref in) { return recur(in, of); };
  return op;
}

void add_linear_recurrence(Rows& rows) {
  Row row{"linear_recurrence", {}};
  row.slack = 8;
  row.roundings = 2;
  const auto add = [&](const Recurrences& of) { row.cases.push_back(recurrence_case(of)); };
  // Every kind of decay and both rules, with and without a state before, in one chunk and in two.
  for (const int decay_dims : {0, 1, 3, 4}) {
    add({1, 2, 2, 2, 2, decay_dims, true, true});
    add({1, 5, 1, 2, 1, decay_dims, false, decay_dims == 3});
    add({2, 65, 1, 3, 2, decay_dims, decay_dims % 2 == 1, decay_dims % 2 == 0});
  }
  // Lengths round a chunk's, and none.
  for (const std::int64_t tokens : {0, 1, 31, 33, 63, 64, 130}) add({1, tokens, 1, 4, 3, 4, true, true});
  // Sizes of heads: one block of value channels on the CPU and several, with a remainder.
  add({1, 65, 1, 16, 16, 4, true, true});
  add({1, 66, 2, 64, 33, 3, true, true});
  add({1, 5, 1, 128, 64, 4, false, true});
  add({1, 66, 1, 256, 5, 4, true, true});
  add({0, 3, 2, 2, 2, 3, true, true});
  add({1, 3, 1, 2, 0, 4, true});
  add({1, 3, 1, 0, 2, 4, true, true});
  add({1, 2, 1, 1, 1025, 1});
  // A channel's decay of a key of one channel.
  add({1, 5, 1, 1, 2, 4, true});
  // Strong decays: of the 64 of a chunk the product is below every float's range.
  for (const int decay_dims : {3, 4}) add({1, 70, 1, 3, 2, decay_dims, decay_dims == 3, true, -50, 0});
  // Reads and writes by keys of their own.
  for (const int decay_dims : {0, 1, 3, 4}) add({1, 3, 2, 2, 2, decay_dims, false, decay_dims == 4, -2, 0, true});
  for (const std::int64_t tokens : {1, 66}) add({1, tokens, 1, 3, 2, 4, false, true, -0.6, 0, true});
  add({1, 3, 2, 8, 8, 3, false, false, -2, 0, true});
  // The chunked kernels of a GPU: heads in multiples of 8 up to 64, each kind of decay, chunks with a remainder, and without.
  for (const int decay_dims : {0, 1, 3, 4})
    for (const bool has_beta : {false, true}) {
      if (decay_dims == 4 && has_beta) continue;
      add({2, 4, 2, 16, 8, decay_dims, has_beta, has_beta});
      if (decay_dims > 1) add({1, 65, 2, 16, 24, decay_dims, has_beta, true, -1, 0});
    }
  for (const int decay_dims : {3, 4}) {
    add({1, 64, 1, 64, 64, decay_dims, decay_dims == 3, true});
    add({1, 130, 1, 40, 8, decay_dims, decay_dims == 3, true, -0.2, 0});
    add({1, 70, 1, 16, 16, decay_dims, decay_dims == 3, true, -50, 0});
  }
  row.on_cuda_by_16_bits = true;
  row.mistakes = {
      {[] { linear_recurrence(sample({1, 3, 2, 4}), sample({1, 3, 2, 4}), sample({1, 3, 2, 5}), {.read = sample({1, 3, 2, 4})}); },
       {"read and write", "(1, 3, 2, 4)", "none"}},
      {[] {
         linear_recurrence(sample({1, 3, 2, 4}), sample({1, 3, 2, 4}), sample({1, 3, 2, 5}),
                           {.beta = sample({1, 3, 2}), .read = sample({1, 3, 2, 4}), .write = sample({1, 3, 2, 4})});
       },
       {"no beta"}},
      {[] { linear_recurrence(sample({2, 3, 4}), sample({2, 3, 4}), sample({2, 3, 4})); }, {"(2, 3, 4)"}},
      {[] { linear_recurrence(sample({1, 3, 2, 4}), sample({1, 3, 2, 5}), sample({1, 3, 2, 4})); }, {"(1, 3, 2, 5)", "Dk"}},
      {[] { linear_recurrence(sample({1, 3, 2, 4}), sample({1, 3, 2, 4}), sample({1, 2, 2, 4})); }, {"(1, 2, 2, 4)"}},
      {[] { linear_recurrence(sample({1, 3, 2, 4}), sample({1, 3, 2, 4}), sample({1, 3, 2, 5}), {.log_decay = sample({1, 3, 2, 5})}); },
       {"(2,)", "(1, 3, 2)", "(1, 3, 2, 4)", "(1, 3, 2, 5)"}},
      {[] { linear_recurrence(sample({1, 3, 2, 4}), sample({1, 3, 2, 4}), sample({1, 3, 2, 5}), {.beta = sample({2})}); },
       {"beta", "(1, 3, 2)", "(2,)"}},
      {[] { linear_recurrence(sample({1, 3, 2, 4}), sample({1, 3, 2, 4}), sample({1, 3, 2, 5}), {.initial_state = sample({1, 2, 5, 4})}); },
       {"initial_state", "(1, 2, 4, 5)", "(1, 2, 5, 4)"}},
      {[] { linear_recurrence(sample({1, 3, 2, 4}, DType::i64), sample({1, 3, 2, 4}), sample({1, 3, 2, 5})); }, {"floating", "i64"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

void add_selective_scan(Rows& rows) {
  Row row{"selective_scan", {}};
  row.slack = 8;
  row.roundings = 2;
  const auto add = [&](std::int64_t batch, std::int64_t tokens, std::int64_t channels, std::int64_t size, bool has_initial,
                       double low = -3) {
    const Shape signal{batch, tokens, channels}, keys{batch, tokens, size}, state{batch, channels, size};
    Case op;
    op.inputs = {value(signal), value(signal, 0.05, 1), value({channels, size}, low, 0), value(keys), value(keys)};
    if (has_initial) op.inputs.push_back(value(state)), op.inputs.back().optional = true;
    op.call = [=](In in) -> Tensors {
      const Recurrence result = selective_scan(in[0], in[1], in[2], in[3], in[4], has_initial ? in[5] : Tensor());
      return {result.y, result.state};
    };
    op.reference = [=](Ref in) -> Arrays {
      Array h = make(state, in.dtype == DType::f64 ? DType::f64 : DType::f32, [&](const Shape& at) { return has_initial ? in[5](at) : 0; });
      Array y = make(signal, in.dtype, [](const Shape&) { return 0; });
      each(signal, [&](const Shape& at) {
        for (std::int64_t n = 0; n < size; ++n) {
          double& of = h({at[0], at[2], n});
          of = std::exp(in[1](at) * in[2]({at[2], n})) * of + in[1](at) * in[0](at) * in[3]({at[0], at[1], n});
          y(at) += in[4]({at[0], at[1], n}) * of;
        }
      });
      return {y, h};
    };
    row.cases.push_back(op);
  };
  for (const std::int64_t tokens : {1, 2, 3, 5, 8}) add(2, tokens, 2, 3, tokens % 2 == 1);
  add(1, 33, 3, 16, true);
  add(1, 31, 1, 1, false);
  add(1, 2, 1025, 1, false);
  add(2, 3, 0, 2, true);
  add(0, 3, 2, 2, false);
  add(1, 70, 2, 2, true, -100);  // decays below every float's range
  row.mistakes = {
      {[] { selective_scan(sample({1, 3, 2}), sample({1, 2, 2}), sample({2, 4}), sample({1, 3, 4}), sample({1, 3, 4})); }, {"(1, 2, 2)"}},
      {[] { selective_scan(sample({1, 3, 2}), sample({1, 3, 2}), sample({3, 4}), sample({1, 3, 4}), sample({1, 3, 4})); }, {"(3, 4)"}},
      {[] { selective_scan(sample({1, 3, 2}), sample({1, 3, 2}), sample({2, 4}), sample({1, 3, 5}), sample({1, 3, 5})); }, {"(1, 3, 5)"}},
      {[] {
         selective_scan(sample({1, 3, 2}), sample({1, 3, 2}), sample({2, 4}), sample({1, 3, 4}), sample({1, 3, 4}), sample({1, 4, 2}));
       },
       {"initial_state", "(1, 2, 4)", "(1, 4, 2)"}},
      {[] { selective_scan(sample({1, 3, 2}, DType::i64), sample({1, 3, 2}), sample({2, 4}), sample({1, 3, 4}), sample({1, 3, 4})); },
       {"floating", "i64"}}};
  rows.push_back(row);
  rows.push_back(plain(row));
}

void add_associative_scan(Rows& rows) {
  Row row{"associative_scan", {}};
  row.slack = 8;
  row.dtypes = {DType::f64, DType::f32};  // 16 bits round what each combination gives
  // h_i = a_i h_(i-1) + b_i, along each dimension.
  const ScanPair pair = [](const Tensors& l, const Tensors& r) -> Tensors { return {l[0] * r[0], l[1] * r[0] + r[1]}; };
  const auto add = [&](const Shape& shape, int dim) {
    row.cases.push_back({{value(shape, 0.2, 1), value(shape)},
                         [=](In in) -> Tensors { return associative_scan(pair, {in[0], in[1]}, dim); },
                         [=](Ref in) -> Arrays {
                           Array a = in[0], b = in[1];
                           const std::size_t at_dim = static_cast<std::size_t>(dim < 0 ? dim + static_cast<int>(shape.size()) : dim);
                           each(shape, [&](const Shape& at) {
                             if (at[at_dim] == 0) return;
                             Shape before = at;
                             --before[at_dim];
                             b(at) += a(at) * b(before);
                             a(at) *= a(before);
                           });
                           return {a, b};
                         }});
  };
  for (const std::int64_t n : {0, 1, 2, 3, 4, 5, 7, 8, 31, 33}) add({2, n, 2}, 1);
  add({6, 2}, 0);
  add({2, 9}, -1);
  add({2, 1025}, 0);
  row.mistakes = {{[=] { associative_scan(pair, {}, 0); }, {"none"}},
                  {[=] { associative_scan(pair, {sample({2, 3}), sample({2, 4})}, 1); }, {"(2, 3)", "(2, 4)"}},
                  {[=] { associative_scan(pair, {sample({2, 3})}, 2); }, {"(2, 3)", "2"}},
                  {[] { associative_scan([](const Tensors& l, const Tensors&) { return Tensors{l[0]}; }, {sample({3}), sample({3})}, 0); },
                   {"2 tensors", "1"}}};
  rows.push_back(row);
}

}  // namespace

void add_recurrent(Rows& rows) {
  add_selective_scan(rows);
  add_associative_scan(rows);
  const std::vector<Shape> states = {{0, 3}, {2, 0}, {1, 1}, {31, 2}, {2, 33}, {1, 1025}, {3, 5}};
  add_lstm_cell(rows, states);
  add_gru_cell(rows, states);
  add_linear_recurrence(rows);
}

}  // namespace tern::op_cases
