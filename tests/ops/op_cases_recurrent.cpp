// Rows of ops/recurrent.h. Note [The table] in op_cases.h.
#include "op_cases.h"
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

}  // namespace

void add_recurrent(Rows& rows) {
  const std::vector<Shape> states = {{0, 3}, {2, 0}, {1, 1}, {31, 2}, {2, 33}, {1, 1025}, {3, 5}};
  add_lstm_cell(rows, states);
  add_gru_cell(rows, states);
}

}  // namespace tern::op_cases
