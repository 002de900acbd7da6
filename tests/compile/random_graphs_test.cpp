// Random functions with a loss, its gradients and an update in place: compiled, they give what they give as written, bit for bit but for
// products of one weight that run as one. A graph that does not is cut op by op while it fails, and printed as C++.
//
//   TERN_GRAPHS=10000 TERN_GRAPHS_SEED=0 build/cpu/tests/test-compile "Random graphs*"
#include <cstdlib>
#include <optional>
#include <set>

#include "backend/memory.h"
#include "bytes.h"
#include "catch.h"
#include "compile/compile.h"
#include "compile/generated.h"
#include "random_graph.h"
#include "skip.h"

namespace tern::random_graphs {

namespace {

Graph drawn(std::uint64_t seed) {
  Graph graph;
  graph.seed = seed;
  test::SplitMix64 draw{seed * 1000003 + 17};
  const DType dtypes[] = {DType::f32, DType::f32, DType::f32, DType::f32, DType::f64, DType::bf16};
  graph.dtype = dtypes[draw(6)];
  // Sizes of a graph are few, so that shapes meet; one of six has tensors of some 50,000 elements, which chains divide into chunks.
  const std::int64_t sizes[] = {0, 1, 1, 2, 3, 5, 8, 16, 33};
  const bool is_large = draw(6) == 0;
  const std::int64_t m = is_large ? 200 + static_cast<std::int64_t>(draw(3)) * 57 : sizes[draw(9)], n = is_large ? 240 : sizes[1 + draw(8)],
                     k = sizes[draw(9)];
  const Shape shapes[] = {{m, n}, {m, n}, {n}, {m, 1}, {k, is_large ? 1 : m, n}, {n, n}, {}};
  const auto draw_shapes = [&](std::uint64_t count, std::uint64_t among) {
    std::vector<Shape> result;
    for (std::uint64_t i = 0; i < count; ++i) result.push_back(shapes[draw(among)]);
    return result;
  };
  graph.inputs = draw_shapes(1 + draw(3), 7);
  graph.parameters = draw_shapes(1 + draw(3), 6);
  graph.buffers = draw_shapes(1 + draw(2), 6);
  std::size_t values = graph.inputs.size() + graph.parameters.size() + graph.buffers.size();
  const std::size_t count = 5 + draw(36);
  // The later values are read more often.
  const auto operand = [&] { return draw(2) ? values - 1 - draw(std::min<std::size_t>(values, 4)) : draw(values); };
  for (std::size_t i = 0; i < count; ++i, ++values) {
    Instruction op{.kind = draw(1 << 16), .form = draw(1 << 16), .number = draw(1 << 16), .a = operand(), .b = operand(), .c = operand()};
    graph.instructions.push_back(op);
  }
  for (std::size_t i = 0; i < 3; ++i) graph.losses.push_back(values - 1 - i);
  graph.accumulates = draw(4) == 0;
  graph.threads = 1 + static_cast<int>(draw(2));
  return graph;
}

Tensors elements_for(const std::vector<Shape>& shapes, DType dtype) {
  Tensors result;
  for (const Shape& shape : shapes) result.push_back(randn(shape, 0, 1, dtype));
  return result;
}

State state_of(const Graph& graph) {
  manual_seed(graph.seed);
  State state{elements_for(graph.parameters, graph.dtype), elements_for(graph.buffers, graph.dtype), {}};
  for (Tensor& p : state.parameters) {
    state.moments.push_back(zeros_like(p));
    if (graph.accumulates) p.set_grad(zeros_like(p));
    p.set_requires_grad();
  }
  return state;
}

using Bytes = std::vector<std::vector<unsigned char>>;
void append(Bytes& bytes, const Tensor& x) {
  bytes.emplace_back();
  if (!x.defined()) return;
  const NoGrad unrecorded;
  Tensor whole = to(clone(x), cpu);
  // On a GPU a NaN's sign and payload depend on the instruction that a compiler chose.
  if (x.device() != cpu && is_floating(whole.dtype())) whole = where(isnan(whole), std::numeric_limits<double>::quiet_NaN(), whole);
  bytes.back().resize(static_cast<std::size_t>(whole.numel()) * size_of(whole.dtype()));
  backend::copy_to_host(Cpu{}, bytes.back().data(), whole.view().data, bytes.back().size(), {cpu});
}

/// All that a call leaves: its results, the state, and the generator's position.
Bytes bytes_of(const Tensors& results, const State& state) {
  Bytes bytes;
  for (const Tensor& x : results) append(bytes, x);
  for (const Tensors* tensors : {&state.parameters, &state.buffers, &state.moments})
    for (const Tensor& x : *tensors) append(bytes, x);
  for (const Tensor& p : state.parameters) append(bytes, p.grad());
  bytes.push_back({});
  for (std::uint64_t position = context().generator.position(); position > 0; position /= 256)
    bytes.back().push_back(static_cast<unsigned char>(position % 256));
  return bytes;
}

enum class Outcome { equal, refused, reordered, differs };

/// Where and how graphs are compiled, and a place for the code of their groups.
struct Setting {
  Device device = cpu;
  CompileOptions options = {};
  std::string* code = nullptr;
};

/// Five calls of a graph as written and compiled. `refused`: it edits what its gradient needs, and throws as written.
Outcome outcome_of(const Graph& graph, const Setting& setting, std::string& why) {
  set_num_threads(graph.threads);
  const DeviceScope here(setting.device);
  const State plain = state_of(graph), compiled = state_of(graph);
  const auto programs = std::make_shared<compiler::Programs>(setting.device, setting.options);
  manual_seed(graph.seed + 1);
  for (int call = 0; call < 5; ++call) {
    const Tensors inputs = elements_for(graph.inputs, graph.dtype);
    const auto copies = [&] {
      Tensors result;
      for (const Tensor& x : inputs) result.push_back(clone(x)), result.back().set_requires_grad(graph.is_open);
      return result;
    };
    const auto written = [&](const State& state, const Tensors& in) {
      Run run(graph, state, in, nullptr);
      return graph.is_open ? run.closed(run.values(), in) : run();
    };
    const auto by_program = [&](const Tensors& in) {
      if (!graph.is_open) return programs->call([&](const Tensors& x) { return Run(graph, compiled, x, nullptr)(); }, in);
      const Tensors values = programs->call([&](const Tensors& x) { return Run(graph, compiled, x, nullptr).values(); }, in);
      return Run(graph, compiled, in, nullptr).closed(values, in);
    };
    const std::uint64_t position = context().generator.position();
    Bytes want;
    try {
      want = bytes_of(written(plain, copies()), plain);
    } catch (const Error&) {
      return Outcome::refused;
    }
    context().generator.set_position(position);
    try {
      const Bytes got = bytes_of(by_program(copies()), compiled);
      if (got == want) continue;
      // A generated kernel adds up a row of f32 in another order, and so does a product of several (merge_products_test.cpp).
      if (programs->text(Stage::code).find("reduce_row") != std::string::npos && setting.device != cpu) return Outcome::reordered;
      const std::vector<ProgramOverview::Group> groups = programs->overview().groups;
      if (std::any_of(groups.begin(), groups.end(), [](const auto& group) { return group.is_product; })) return Outcome::reordered;
      const std::size_t at = static_cast<std::size_t>(std::mismatch(got.begin(), got.end(), want.begin(), want.end()).first - got.begin());
      why = fmt::format("call {}: tensor {} of {} (results, gradients, parameters, buffers, moments, gradients, position) differs", call,
                        at, want.size());
    } catch (const Error& error) {
      why = fmt::format("call {}: {}", call, error.what());
    }
    return Outcome::differs;
  }
  if (setting.code) *setting.code += programs->text(Stage::code);
  return Outcome::equal;
}

/// A graph that differs, without the ops and terms of the loss that it differs without.
Graph shrunk(Graph graph, const Setting& setting) {
  std::string why;
  const auto still_differs = [&](const Graph& less) { return outcome_of(less, setting, why) == Outcome::differs; };
  for (bool is_smaller = true; is_smaller;) {
    is_smaller = false;
    for (std::size_t i = graph.instructions.size(); i-- > 0;) {
      if (graph.instructions[i].is_cut) continue;
      for (const bool to_first : {true, false}) {
        Graph less = graph;
        less.instructions[i].is_cut = true;
        if (!to_first) less.instructions[i].a = less.instructions[i].b;
        if (!still_differs(less)) continue;
        graph = less, is_smaller = true;
        break;
      }
    }
    for (std::size_t i = graph.losses.size(); graph.losses.size() > 1 && i-- > 0;) {
      Graph less = graph;
      less.losses.erase(less.losses.begin() + static_cast<std::ptrdiff_t>(i));
      if (still_differs(less)) graph = less, is_smaller = true;
    }
  }
  return graph;
}

std::string text_of(const Graph& graph, const Setting& setting) {
  const DeviceScope here(setting.device);
  std::string text, why;
  const State state = state_of(graph);
  const auto declare = [&](const char* letter, const std::vector<Shape>& shapes) {
    for (std::size_t i = 0; i < shapes.size(); ++i)
      text += fmt::format("  Tensor {}{} = randn({{{}}}, DType::{});\n", letter, i, fmt::join(shapes[i].begin(), shapes[i].end(), ", "),
                          name(graph.dtype));
  };
  text += fmt::format("  // seed {}, {} threads{}\n", graph.seed, graph.threads,
                      graph.accumulates ? ", gradients accumulate" : ", without gradients before");
  declare("x", graph.inputs), declare("p", graph.parameters), declare("b", graph.buffers);
  const Tensors inputs = elements_for(graph.inputs, graph.dtype);
  for (Tensor x : inputs) x.set_requires_grad(graph.is_open);
  Run run(graph, state, inputs, &text);
  graph.is_open ? run.closed(run.values(), inputs) : run();
  outcome_of(graph, setting, why);
  return text + "  // " + why + "\n";
}

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Compares `count` graphs from the seed on.
void check(std::uint64_t first, std::uint64_t count, const Setting& setting, std::optional<DType> dtype = {}, bool are_open = false) {
  const int threads = num_threads();
  std::uint64_t refused = 0, reordered = 0;
  int differing = 0;
  for (std::uint64_t seed = first; seed < first + count && differing < 3; ++seed) {
    Graph graph = drawn(seed);
    if (dtype) graph.dtype = *dtype;
    if (are_open) graph.is_open = true, graph.accumulates = false;
    std::string why;
    const Outcome outcome = outcome_of(graph, setting, why);
    refused += outcome == Outcome::refused;
    reordered += outcome == Outcome::reordered;
    if (outcome != Outcome::differs) continue;
    ++differing;
    FAIL_CHECK("seed " << seed << ": " << why << "\n" << text_of(shrunk(graph, setting), setting));
  }
  set_num_threads(threads);
  CHECK(refused <= count / 16);
  CHECK(reordered <= (setting.device == cpu ? count / 200 : count / 4));
}

}  // namespace

TEST_CASE("Random graphs with gradients and edits in place are bitwise those as written") {
  check(number_of("TERN_GRAPHS_SEED", 0), number_of("TERN_GRAPHS", 3000), {});
}
TEST_CASE("The groups that a GPU has, kernel by kernel, are random graphs as written") {
  check(number_of("TERN_GRAPHS_SEED", 5000), number_of("TERN_GRAPHS", 1500), {.options = {.as_on_gpu = true}});
}
TEST_CASE("Random graphs whose gradients are no part of the compiled function are bitwise those as written") {
  check(number_of("TERN_GRAPHS_SEED", 10000), number_of("TERN_GRAPHS", 1000), {}, {}, true);
  check(number_of("TERN_GRAPHS_SEED", 15000), number_of("TERN_GRAPHS", 800), {.options = {.as_on_gpu = true}}, {}, true);
}
TEST_CASE("Random graphs on a GPU are bitwise those as written: f64 in groups, all without", "[cuda]") {
  check(number_of("TERN_GRAPHS_SEED", 0), number_of("TERN_GRAPHS", 100), {.device = cuda()}, DType::f64);
  check(number_of("TERN_GRAPHS_SEED", 1000), number_of("TERN_GRAPHS", 300), {.device = cuda(), .options = {.fuse = false}});
  check(number_of("TERN_GRAPHS_SEED", 10000), number_of("TERN_GRAPHS", 100), {.device = cuda()}, DType::f64, true);
}

TEST_CASE("The groups of random graphs have code for a GPU, which compiles") {
  std::string code;
  check(0, 60, {.code = &code});
  std::set<std::string> kernels;
  for (std::size_t at = code.find("#include"); at != std::string::npos;) {
    const std::size_t end = code.find("#include", at + 1);
    kernels.insert(code.substr(at, end - at));
    at = end;
  }
  CHECK(kernels.size() > 100);
  if (!compiler::has_nvrtc()) test::skip("no NVRTC");
  std::size_t count = 0;
  for (const std::string& text : kernels) {
    const char* const architectures[] = {"sm_80", "sm_90a", "sm_100a"};
    INFO(text);
    CHECK_FALSE(compiler::compile_cuda(text, architectures[count++ % 3]).empty());
  }
}

}  // namespace tern::random_graphs
