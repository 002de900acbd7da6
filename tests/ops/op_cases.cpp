// Note [The table] in op_cases.h. Here it is assembled, and compared with what src/ops/*.h declare.
#include "op_cases.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "catch.h"
#include "ops/linalg.h"
#include "paths.h"
#include "tensor/dispatch.h"

namespace tern::op_cases {

/// The rows compare devices with each other, so both have to have them where both are there. op_cases_linalg.cpp and linalg_test.cpp say
/// so otherwise.
static bool has_linalg_rows() { return has_linalg() && (cuda_device_count() == 0 || has_linalg(cuda())); }

const Rows& table() {
  static const Rows rows = [] {
    Rows all;
    add_pointwise(all);
    add_compare(all);
    add_unary(all);
    add_reduce(all);
    add_view(all);
    add_index(all);
    add_products(all);
    add_normalize(all);
    add_conv(all);
    add_attention(all);
    add_factory(all);
    add_quantize(all);
    add_indexing(all);
    add_statistics(all);
    if (has_linalg_rows()) add_linalg(all);
    add_images(all);
    add_resample(all);
    add_batch_norm(all);
    add_recurrent(all);
    // For work on one op: TERN_OP=softplus test-ops "Ops give*,*erivatives*,Mistakes*".
    if (const char* only = std::getenv("TERN_OP")) std::erase_if(all, [&](const Row& row) { return row.name != only; });
    return all;
  }();
  return rows;
}

/// The functions that a header declares at namespace scope, but for namespace detail, whatever they return.
static std::set<std::string> declared_functions(const std::filesystem::path& header) {
  std::ifstream file(header);
  std::stringstream text;
  text << file.rdbuf();
  std::string source = text.str();
  const std::string detail = "\nnamespace detail {", end_of_detail = "\n}  // namespace detail";
  for (std::size_t begin = 0; (begin = source.find(detail)) != std::string::npos;)
    source.erase(begin, source.find(end_of_detail, begin) + end_of_detail.size() - begin);
  static const std::regex declaration(R"((?:^|\n)[A-Za-z_][\w:<>,&* ]*[&*\s](operator[^(\s]+|\w+)\()");
  std::set<std::string> names;
  for (std::sregex_iterator i(source.begin(), source.end(), declaration), end; i != end; ++i) names.insert((*i)[1]);
  return names;
}

/// The functions of src/ops/*.h that are no ops: they compute nothing from tensors, or check a function that the caller has.
static const std::set<std::string> not_ops = {
    "has_matmul_precision", "checkpoint", "checkpoint_policy_of", "name", "gradcheck", "gradgradcheck", "has_linalg", "tensors_of"};

static const std::set<std::string> internal_headers = {"op.h", "composed_attention.h"};

static std::set<std::string> public_ops() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(std::string(test::source_directory) + "/src/ops"))
    if (entry.path().extension() == ".h" && !internal_headers.contains(entry.path().filename().string()))
      names.merge(declared_functions(entry.path()));
  for (const std::string& name : not_ops) {
    INFO(name << " is not an op, and no header of src/ops declares it");
    CHECK(names.erase(name) == 1);
  }
  if (!has_linalg_rows())
    for (const std::string& name : declared_functions(std::string(test::source_directory) + "/src/ops/linalg.h")) names.erase(name);
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
  const std::filesystem::path header = std::filesystem::temp_directory_path() / "tern_declared_functions.h";
  std::ofstream(header) << R"(#pragma once
namespace tern {
/// Tensor not_this(
using NorThis = std::function<Tensors(const Tensors&)>;
struct Pair {
  Tensor first(int i);
};
Tensor one(const Tensor& x);
inline Tensor two(T x) { return one(x); }
Tensors three(int i);
Pair four();
Tensor operator+(T a, T b);
  Tensor indented(T x);
int five();
std::pair<Tensor, Tensor> six(const Tensor& x);
std::vector<std::pair<std::string, Tensor>>
seven(const Tensor& x, int dim = max(1, 2));
const Tensor& eight(const Tensor& x);
template <class T>
std::optional<T> nine(const Tensor& x);
unsigned long ten(const Tensor& x);
}  // namespace tern
)";
  CHECK(declared_functions(header) ==
        std::set<std::string>{"one", "two", "three", "four", "operator+", "five", "six", "seven", "eight", "nine", "ten"});
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
