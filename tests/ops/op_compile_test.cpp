// Every op of the table in a compiled function: results, gradients and second gradients are those of the function as written, bit for bit
// but for products that run as one, also of other elements than those that were traced.
#include <algorithm>
#include <set>

#include "autodiff/engine.h"
#include "compile/compile.h"
#include "for_each_case.h"
#include "message.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "skip.h"
#include "tensor/context.h"

namespace tern::op_cases {

namespace {

/// The results, which are squared so that what arrives at the op differs from element to element, the gradients of the leaves, and those of
/// the squared gradients.
Tensors pass(const Row& row, const Case& op, DType dtype, Device device, const Tensors& arguments) {
  Tensors leaves, results, sums;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    leaves.push_back(arguments[i].detach());
    if (row.differentiable && op.inputs[i].differentiable && is_floating(leaves[i].dtype())) leaves[i].set_requires_grad();
  }
  Tensors in = leaves;
  for (Tensor& x : in)
    if (x.requires_grad()) x = x * 1.0;
  for (const Tensor& y : op.call({in, dtype, device})) {
    results.push_back(is_floating(y.dtype()) ? y * y : y);
    if (results.back().requires_grad()) sums.push_back(sum(results.back()));
  }
  const bool twice = row.twice && op.twice && size_of(dtype) > 2;  // 16 bits are the same formulas
  if (!sums.empty()) backward(sums, {}, twice);
  Tensors reached;
  for (const Tensor& x : leaves)
    if (x.requires_grad() && x.grad().defined()) {
      reached.push_back(x);
      results.push_back(x.grad());
    }
  if (!twice || reached.empty()) return results;
  Tensors squares;
  for (const Tensor& first : grad(sums, reached, {}, true))
    if (first.defined() && first.requires_grad()) squares.push_back(sum(first * first));
  if (squares.empty()) return results;
  for (const Tensor& second : grad(squares, reached)) results.push_back(second);
  return results;
}

Tensors arguments_of(const Case& op, DType dtype, Device device, std::size_t draw) {
  Tensors arguments;
  for (std::size_t i = 0; i < op.inputs.size(); ++i) arguments.push_back(to(make_input(op.inputs[i], dtype, i + draw), device));
  return arguments;
}

/// Rows with a case whose result the host must know, or whose call sets the generator.
const std::set<std::string> cannot_compile = {"allclose",
                                              "bincount",
                                              "cholesky",
                                              "dequantize",
                                              "det",
                                              "dropout",
                                              "eigh",
                                              "inverse",
                                              "masked_select",
                                              "multinomial",
                                              "nonzero",
                                              "qr",
                                              "quantize",
                                              "quantized_embedding",
                                              "quantized_linear",
                                              "rand_like",
                                              "randn_like",
                                              "residual_layer_norm",
                                              "residual_rms_norm",
                                              "scaled_dot_product_attention",
                                              "solve",
                                              "svd",
                                              "to",
                                              "unique"};

std::vector<std::vector<unsigned char>> bytes_of(const Tensors& results) {
  std::vector<std::vector<unsigned char>> bytes;
  for (const Tensor& x : results) bytes.push_back(x.defined() ? storage_bytes(to(clone(x), cpu)) : std::vector<unsigned char>());
  return bytes;
}

Tensors copies_of(const Tensors& results) {
  Tensors copies;
  for (const Tensor& x : results) copies.push_back(to(clone(x), cpu));
  return copies;
}

/// Sums whose terms are added up in another order differ by roundings of their largest parts, also where those cancel: the tolerance is one
/// of the largest element.
void check_close(const Tensors& got, const Tensors& want, const Tolerance& tolerance) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    Tolerance allowed = tolerance;
    if (want[i].defined())
      for (const double w : read(want[i]).values)
        if (std::isfinite(w)) allowed.absolute = std::max(allowed.absolute, tolerance.relative * std::abs(w));
    const std::string found = difference(got[i], want[i], allowed);
    if (!found.empty()) FAIL_CHECK("result " << i << ": " << found);
  }
}

void check_on(Device device) {
  std::size_t compiled_cases = 0;
  std::set<std::string> refused;
  for_each_case(
      [&](const Row& row, const Case& op, DType dtype) {
        const bool edits = std::any_of(op.inputs.begin(), op.inputs.end(), [](const Input& x) { return x.edited; });
        if (edits || op.inputs.empty() || is_huge(op) || (device != cpu && row.on_cuda_in_any_order)) return;
        // On a GPU each group is compiled, in a tenth of a second: of every 64th case.
        const bool fuses = device == cpu || compiled_cases % 64 == 0;
        compiler::Programs programs(device, {.fuse = fuses});
        const auto f = [&](const Tensors& in) { return pass(row, op, dtype, device, in); };
        try {
          for (std::size_t call = 0; call < 5; ++call) {
            const Tensors arguments = arguments_of(op, dtype, device, call < 2 ? 0 : 10 * call);
            manual_seed(7 + call);
            const auto want = copies_of(f(arguments));
            const std::uint64_t position = context().generator.position();
            manual_seed(7 + call);
            const auto got = copies_of(programs.call(f, arguments));
            // A generated kernel adds up a row in another order, and so does a product of several, as of gradients of two orders.
            const std::vector<ProgramOverview::Group> groups = programs.overview().groups;
            const bool is_reordered = std::any_of(groups.begin(), groups.end(), [](const auto& group) { return group.is_product; }) ||
                                      (fuses && device != cpu && contains(programs.text(Stage::code), "reduce_row"));
            if (!is_reordered) CHECK((bytes_of(got) == bytes_of(want)));
            else check_close(got, want, gradient_tolerance(row, dtype));
            CHECK(context().generator.position() == position);
          }
          ++compiled_cases;
        } catch (const Error& error) {
          if (!contains(error.what(), "[compile] expected a step ")) throw;
          refused.insert(row.name);
        }
      },
      device);
  CHECK(compiled_cases > 1000);
  for (const std::string& name : refused) {
    INFO(name);
    CHECK(cannot_compile.contains(name));
  }
  if (device != cpu) return;
  refused.insert({"eigh", "svd", "to"});  // on a GPU by a library that waits; from the CPU to the CPU here
  CHECK(refused == cannot_compile);
}

}  // namespace

TEST_CASE("Compiled ops and their gradients are those as written, bit for bit") { check_on(cpu); }
TEST_CASE("Compiled ops and their gradients on the GPU are those as written, bit for bit", "[cuda]") { check_on(cuda()); }

}  // namespace tern::op_cases
