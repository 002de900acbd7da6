// Note [The table] in op_cases.h. Here it is assembled, and compared with what src/ops/*.h declare.
#include "op_cases.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "catch.h"
#include "tensor/dispatch.h"

namespace tern::op_cases {

const Rows& table() {
  static const Rows rows = [] {
    Rows all;
    add_pointwise(all);
    add_unary(all);
    add_reduce(all);
    add_view(all);
    add_index(all);
    add_products(all);
    add_normalize(all);
    add_conv(all);
    add_attention(all);
    add_factory(all);
    return all;
  }();
  return rows;
}

/// The functions of a header that return a tensor, or several.
static std::set<std::string> declared_ops(const std::filesystem::path& header) {
  std::ifstream file(header);
  std::stringstream text;
  text << file.rdbuf();
  const std::string source = text.str();
  static const std::regex declaration(R"((?:^|\n)(?:inline )?(?:Tensor|Tensors|Sorted|ResidualNorm|ConvStep) (operator[^(\s]+|\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator i(source.begin(), source.end(), declaration), end; i != end; ++i) names.insert((*i)[1]);
  return names;
}

static std::set<std::string> public_ops() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(TERN_SOURCE_DIR "/src/ops"))
    if (entry.path().extension() == ".h") names.merge(declared_ops(entry.path()));
  return names;
}

TEST_CASE("Every public op is a row, and every row is a public op") {
  std::set<std::string> rows;
  for (const Row& row : table()) {
    rows.insert(row.name);
    CHECK_FALSE(row.cases.empty());
  }
  const std::set<std::string> declared = public_ops();
  REQUIRE(declared.size() > 90);
  for (const std::string& name : declared) {
    INFO(name << " is declared in src/ops but has no row in the table");
    CHECK(rows.count(name) == 1);
  }
  for (const std::string& name : rows) {
    INFO(name << " is a row, but no header of src/ops declares it");
    CHECK(declared.count(name) == 1);
  }
}

TEST_CASE("Headers are searched for every kind of declaration") {
  const std::filesystem::path header = std::filesystem::temp_directory_path() / "tern_declared_ops.h";
  std::ofstream(header) << "namespace tern {\n/// Tensor not_this(\nTensor one(const Tensor& x);\ninline Tensor two(T x) { return x; }\n"
                           "Tensors three(int i);\nSorted four();\nTensor operator+(T a, T b);\n  Tensor five(T x);\nint six();\n}\n";
  CHECK(declared_ops(header) == std::set<std::string>{"one", "two", "three", "four", "operator+"});
  std::filesystem::remove(header);
}

TEST_CASE("Every row has cases at the sizes that matter") {
  // Ops that take an element count of their own choosing.
  static const std::set<std::string> fixed = {"matmul", "linear", "rope_table"};
  for (const Row& row : table()) {
    if (fixed.count(row.name)) continue;
    std::set<std::int64_t> seen;
    for (const Case& op : row.cases) {
      for (const Input& input : op.inputs) {
        seen.insert(numel(input.shape));
        for (std::int64_t size : input.shape) seen.insert(size);
      }
      if (op.inputs.empty())
        for (const reference::Array& y : op.reference({{}, DType::f64})) seen.insert(numel(y.shape));
    }
    for (std::int64_t size : sizes) {
      INFO(row.name << " has no case with " << size << " elements");
      CHECK(seen.count(size) == 1);
    }
  }
}

}  // namespace tern::op_cases
