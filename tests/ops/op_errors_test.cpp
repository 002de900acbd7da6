// Mistakes over the whole table: each is an Error that names the op, and leaves tensors as they were.
#include <fmt/format.h>

#include "catch.h"
#include "op_cases.h"

namespace tern::op_cases {

namespace {

/// The message of the Error that a call throws; "" if it throws none, and what it is for any other exception.
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  } catch (const std::exception& error) {
    return std::string("not an Error: ") + error.what();
  }
  return "";
}

const std::string& shown_name(const Row& row) { return row.shown_name.empty() ? row.name : row.shown_name; }
bool starts_with(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

}  // namespace

TEST_CASE("Mistakes are errors that name the op and what was wrong") {
  for (const Row& row : table()) {
    for (std::size_t i = 0; i < row.mistakes.size(); ++i) {
      INFO(row.name << ", mistake " << i);
      const std::string message = message_of(row.mistakes[i].call);
      CAPTURE(message);
      const std::string& special = row.mistakes[i].shown_name;
      CHECK(starts_with(message, "[" + (special.empty() ? shown_name(row) : special) + "] expected "));
      for (const std::string& text : row.mistakes[i].contains) {
        INFO("should contain " << text);
        CHECK(message.find(text) != std::string::npos);
      }
    }
  }
}

TEST_CASE("Undefined inputs are errors") {
  for (const Row& row : table()) {
    for (const Case& op : row.cases) {
      const DType dtype = op.dtypes.empty() ? row.dtypes.front() : op.dtypes.front();
      for (std::size_t missing = 0; missing < op.inputs.size(); ++missing) {
        if (op.inputs[missing].optional) continue;
        INFO(row.name << ", input " << missing << " undefined");
        Tensors inputs;
        for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs.push_back(i == missing ? Tensor() : make_input(op.inputs[i], dtype, i));
        // Which of the two names is shown depends on who looks first.
        CHECK(starts_with(message_of([&] { op.call({inputs, dtype, cpu}); }), "["));
      }
      break;
    }
  }
}

TEST_CASE("Every row with inputs names its mistakes") {
  // Ops that no shape and no dtype of a defined tensor is wrong for.
  static const std::vector<std::string> total = {"clone", "contiguous", "cast",  "zeros_like", "ones_like", "full_like", "zero_", "any",
                                                 "all",   "to",         "isnan", "isinf",      "isfinite",  "nonzero",   "unique"};
  for (const Row& row : table()) {
    if (std::find(total.begin(), total.end(), row.name) != total.end()) continue;
    INFO(row.name);
    CHECK_FALSE(row.mistakes.empty());
  }
}

TEST_CASE("An in-place op that throws leaves its target as it was") {
  for (const Row& row : table()) {
    for (const Case& op : row.cases) {
      if (op.inputs.empty() || !op.inputs[0].edited) continue;
      INFO(row.name);
      Tensors inputs;
      for (std::size_t i = 0; i < op.inputs.size(); ++i) inputs.push_back(make_input(op.inputs[i], DType::f32, i));
      inputs[0].set_requires_grad();
      const std::vector<float> before = inputs[0].to_vector<float>();
      const std::string message = message_of([&] { op.call({inputs, DType::f32, cpu}); });
      CHECK(starts_with(message, "[" + shown_name(row) + "] expected an in-place edit"));
      CHECK(inputs[0].to_vector<float>() == before);
      CHECK(inputs[0].version() == 0);
      {
        const NoGrad unrecorded;
        CHECK(message_of([&] { op.call({inputs, DType::f32, cpu}); }) == "");
      }
    }
  }
}

}  // namespace tern::op_cases
