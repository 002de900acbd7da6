// `tern-bench grade`: what is checked of a kernel, here of functions that stand for one; how a process that does not end well ends; what is
// refused; and, on a GPU, kernels that are right, wrong, endless, and that write elsewhere.
#include <cmath>

#include "bench/graded_op.h"
#include "bench/watched.h"
#include "compile/generated.h"
#include "flags.h"
#include "paths.h"
#include "skip.h"

using namespace tern::programs::test;
using namespace tern::bench;
using tern::cpu;

namespace {

const std::string lessons = std::string(tern::test::source_directory) + "/study/grade/";

void is_softmax(const Ran& changed, const Ran&) {
  CHECK(changed.result.out ==
        "// y = exp(x) / sum(exp(x)) of each row, without overflow\n"
        "//   x (rows, columns)\n//   y (rows, columns)\n"
        "// launch: softmax<<<rows, 256>>>\n"
        "__global__ void softmax(const float* x, float* y, int rows, int columns);\n");
}

const GradedOp& op_named(const std::string& name) {
  for (const GradedOp& op : graded_ops())
    if (op.name == name) return op;
  throw std::out_of_range(name);
}

using Pointers = std::vector<float*>;

/// The message that grading gives for a function of the tensors' addresses.
std::string fault(const std::string& op, bool is_grad, const Sizes& sizes, const std::function<void(const Pointers&)>& kernel) {
  return fault_of(op_named(op), is_grad, sizes, make_values(op_named(op), sizes, cpu), cpu, [&](std::span<void* const> tensors) {
    Pointers pointers;
    for (void* const tensor : tensors) pointers.push_back(static_cast<float*>(tensor));
    kernel(pointers);
  });
}

void softmax(const Pointers& p, const float* mask, std::size_t columns) {
  double largest = -INFINITY, sum = 0;
  const auto at = [&](std::size_t c) { return double{p[0][c]} + (mask ? mask[c] : 0); };
  for (std::size_t c = 0; c < columns; ++c) largest = std::max(largest, at(c));
  for (std::size_t c = 0; c < columns; ++c) sum += std::exp(at(c) - largest);
  for (std::size_t c = 0; c < columns; ++c) p[1][c] = static_cast<float>(std::exp(at(c) - largest) / sum);
}
void softmaxes(const Pointers& p, std::size_t rows, std::size_t columns) {
  for (std::size_t r = 0; r < rows; ++r) softmax({p[0] + r * columns, p[1] + r * columns}, nullptr, columns);
}

void softmax_grad(const Pointers& p, std::size_t rows, std::size_t columns) {
  for (std::size_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) sum += double{p[0][i]} * p[1][i];
    for (std::size_t i = r * columns; i < (r + 1) * columns; ++i) p[2][i] = static_cast<float>(p[1][i] * (p[0][i] - sum));
  }
}

/// dx of a norm, and the sums of columns, by the formulas of the contract. `mean` is null for rms_norm.
void norm_grad(const float* dy, const float* x, const float* gamma, const float* mean, const float* rstd, float* dx, float* dgamma,
               float* dbeta, std::size_t rows, std::size_t columns) {
  std::vector<double> of_gamma(columns), of_beta(columns);
  for (std::size_t r = 0; r < rows; ++r) {
    const auto n = [&](std::size_t c) { return (x[r * columns + c] - (mean ? double{mean[r]} : 0)) * rstd[r]; };
    const auto g = [&](std::size_t c) { return double{dy[r * columns + c]} * gamma[c]; };
    double sum = 0, product = 0;
    for (std::size_t c = 0; c < columns; ++c) sum += g(c), product += g(c) * n(c);
    if (!mean) sum = 0;
    const auto count = static_cast<double>(columns);
    for (std::size_t c = 0; c < columns; ++c) {
      dx[r * columns + c] = static_cast<float>(rstd[r] * (g(c) - sum / count - n(c) * product / count));
      of_gamma[c] += dy[r * columns + c] * n(c), of_beta[c] += dy[r * columns + c];
    }
  }
  for (std::size_t c = 0; c < columns; ++c) {
    dgamma[c] = static_cast<float>(of_gamma[c]);
    if (dbeta) dbeta[c] = static_cast<float>(of_beta[c]);
  }
}

void norm(const float* x, const float* gamma, const float* beta, float* y, std::size_t rows, std::size_t columns) {
  for (std::size_t r = 0; r < rows; ++r) {
    double mean = 0, squares = 0;
    for (std::size_t c = 0; c < columns && beta; ++c) mean += x[r * columns + c] / static_cast<double>(columns);
    for (std::size_t c = 0; c < columns; ++c) squares += std::pow(x[r * columns + c] - mean, 2) / static_cast<double>(columns);
    for (std::size_t c = 0; c < columns; ++c)
      y[r * columns + c] = static_cast<float>((x[r * columns + c] - mean) / std::sqrt(squares + 1e-5) * gamma[c] + (beta ? beta[c] : 0));
  }
}

constexpr double pi = 3.14159265358979323846;
double normal(double x) { return (1 + std::erf(x / std::sqrt(2.0))) / 2; }

/// The exit code of a process that watches another at its work, and what it throws.
std::pair<int, std::string> watch(const std::function<void(const Watched&)>& work) {
  const TempDirectory directory;
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const Watched watched;
      work(watched);
      ::_exit(0);
    } catch (const std::exception& error) {
      spill(directory / "said", error.what());
      ::_exit(77);
    }
  }
  const int code = finish(child);
  return {code, slurp(directory / "said")};
}

/// A lesson with one text in the place of another.
fs::path changed(const TempDirectory& directory, const std::string& lesson, const std::string& from, const std::string& to) {
  std::string text = slurp(lessons + lesson);
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return spill(directory / "kernel.cu", text.replace(at, from.size(), to));
}

Result graded(const fs::path& file, const std::string& words = "") {
  return run("/usr/bin/timeout", with({"60", bench, "grade", file, "--seconds", "1e-3"}, words_of(words)));
}

/// A kernel that is not right: exit code 1, and one line.
void check_failed(const Result& result, const std::string& said) {
  INFO(result.err << "expected: " << said);
  CHECK(result.code == 1);
  CHECK(result.err.rfind("tern-bench: kernel.cu at (", 0) == 0);
  CHECK(count_lines(result.err) == 1);
  CHECK(contains(result.err, said));
}

}  // namespace

const FlagTable& tern::programs::test::grade_table() {
  static const FlagTable table{{bench, "grade"},
                               {{"--show", is_softmax, "--show"},
                                {"--op layer_norm", says("const float* x, const float* gamma, const float* beta, float* y"), "--show"},
                                {"--grad", says("// launch grad: softmax_grad<<<rows, 256>>>"), "--show"}},
                               {{"", "expected a file KERNEL.cu: --show prints what it declares"},
                                {"--op fft", "--op: expected softmax, attention_softmax, layer_norm, rms_norm, gelu but got fft"},
                                {"OUT/none", "could not be read"},
                                {lessons + "softmax_naive.cu --grad", "expected a line // launch grad: NAME<<<GRID, BLOCK>>>"},
                                {lessons + "softmax_naive.cu --size 64", "--size: expected rows,columns, of less than 2^31 elements"},
                                {lessons + "softmax_naive.cu --size 65536,65536", "--size: expected rows,columns, of less than 2^31"},
                                {lessons + "softmax_naive.cu --limit 0", "--limit: "},
                                {lessons + "softmax_naive.cu --device cuda", "--device cuda: "},
                                {lessons + "softmax_naive.cu --json OUT/no/x", "could not be opened"}}};
  return table;
}

TEST_CASE("tern-bench: each flag of grade shows as its row says") { check_flags(grade_table()); }

TEST_CASE("tern-bench: a wrong value of grade is refused") { check_refusals(grade_table().command, grade_table().refusals); }

TEST_CASE("tern-bench grade: the lessons compile, and a file that does not is refused with NVRTC's line") {
  if (!tern::compiler::has_nvrtc()) return tern::test::skip("it needs NVRTC");
  const TempDirectory directory;
  for (const char* words :
       {"softmax_naive.cu", "softmax.cu", "softmax.cu --grad", "layer_norm.cu --op layer_norm", "layer_norm.cu --op layer_norm --grad"}) {
    INFO(words);
    const Result result = run(bench, with({"grade", "--device", "cpu"}, words_of(lessons + words)));
    check_refused(result, "compiles, but expected a GPU to run it on", "tern-bench");
  }
  struct Wrong {
    std::string from, to, said;
  };
  for (const auto& [from, to, said] :
       std::vector<Wrong>{{"sum = 0;", "sum = 0", "kernel.cu(9): error: expected a \";\""},
                          {"launch: softmax", "launch: soft", "kernel.cu(3): error: identifier \"soft\" is undefined"},
                          {"float* y, int", "float* y, long", "kernel.cu(3): error: a value of type"},
                          {"(rows + 127)", "(row + 127)", "kernel.cu(3): error: identifier \"row\" is undefined"},
                          {", 128>>>", ">>>", "kernel.cu(3): error: too few arguments in function call"},
                          {"// launch", "// needs: columns <\n// launch", "kernel.cu(4): error: expected an expression"},
                          {"128>>>", "128", "kernel.cu:3: expected // launch: NAME<<<GRID, BLOCK>>> but got"},
                          {"__global__", "#include <vector>\n__global__", "source file \"vector\""}}) {
    INFO(to);
    check_refused(graded(changed(directory, "softmax_naive.cu", from, to), "--device cpu"), said, "tern-bench");
  }
  // As kernels are often written: with headers that nvcc needs none of, and a name that C++ does not decorate.
  const std::string headers =
      "#include <cuda_runtime.h>\n#include <math.h>\n#include <float.h>\n#include <stdint.h>\nextern \"C\" __global__";
  check_refused(graded(changed(directory, "softmax_naive.cu", "__global__", headers), "--device cpu"), "compiles, but", "tern-bench");
}

TEST_CASE("tern-bench grade: each op's reference is its formula") {
  tern::manual_seed(0);
  for (const Sizes& size : op_named("softmax").odd) {
    INFO(size[0] << " x " << size[1]);
    const auto rows = static_cast<std::size_t>(size[0]), columns = static_cast<std::size_t>(size[1]);
    CHECK(fault("softmax", false, size, [&](const Pointers& p) { softmaxes(p, rows, columns); }) == "");
    CHECK(fault("softmax", true, size, [&](const Pointers& p) { softmax_grad(p, rows, columns); }) == "");
    CHECK(fault("layer_norm", false, size, [&](const Pointers& p) { norm(p[0], p[1], p[2], p[3], rows, columns); }) == "");
    CHECK(fault("rms_norm", false, size, [&](const Pointers& p) { norm(p[0], p[1], nullptr, p[2], rows, columns); }) == "");
    CHECK(fault("layer_norm", true, size,
                [&](const Pointers& p) { norm_grad(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], rows, columns); }) == "");
    CHECK(fault("rms_norm", true, size,
                [&](const Pointers& p) { norm_grad(p[0], p[1], p[2], nullptr, p[3], p[4], p[5], nullptr, rows, columns); }) == "");
  }
  for (const Sizes& size : op_named("attention_softmax").odd) {
    const auto keys = static_cast<std::size_t>(size[3]), rows = static_cast<std::size_t>(size[1] * size[2]),
               batch = static_cast<std::size_t>(size[0]);
    CHECK(fault("attention_softmax", false, size, [&](const Pointers& p) {
            for (std::size_t r = 0; r < batch * rows; ++r) softmax({p[0] + r * keys, p[2] + r * keys}, p[1] + r / rows * keys, keys);
          }) == "");
    CHECK(fault("attention_softmax", true, size, [&](const Pointers& p) { softmax_grad(p, batch * rows, keys); }) == "");
  }
  for (const Sizes& size : op_named("gelu").odd) {
    const auto count = static_cast<std::size_t>(size[0]);
    CHECK(fault("gelu", false, size, [&](const Pointers& p) {
            for (std::size_t i = 0; i < count; ++i) p[1][i] = static_cast<float>(p[0][i] * normal(p[0][i]));
          }) == "");
    CHECK(fault("gelu", true, size, [&](const Pointers& p) {
            for (std::size_t i = 0; i < count; ++i) {
              const double x = p[1][i];
              p[2][i] = static_cast<float>(p[0][i] * (normal(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * pi)));
            }
          }) == "");
  }
}

TEST_CASE("tern-bench grade: a kernel's first fault is named") {
  tern::manual_seed(0);
  const Sizes size = {5, 33};
  const auto after = [&](const std::function<void(const Pointers&)>& more) {
    return fault("softmax", false, size, [&](const Pointers& p) {
      softmaxes(p, 5, 33);
      more(p);
    });
  };
  CHECK(after([](const Pointers&) {}) == "");
  const std::string wrong = after([](const Pointers& p) { p[1][2 * 33 + 17] += 0.25f, p[1][4 * 33] = NAN; });
  INFO(wrong);
  CHECK(contains(wrong, "expected y[2, 17] = "));
  CHECK(contains(wrong, " from x[2, 17] = "));
  CHECK(wrong.ends_with("; 2 of 165 elements are wrong"));
  const std::string short_of_a_row = fault("softmax", false, size, [](const Pointers& p) { softmaxes(p, 4, 33); });
  CHECK(contains(short_of_a_row, "expected y[4, 0] = "));
  CHECK(contains(short_of_a_row, " but it was not written from x[4, 0] = "));
  CHECK(short_of_a_row.ends_with("; 33 of 165 elements are wrong"));
  CHECK(after([](const Pointers& p) { p[1][165 + 6] = 0; }) == "expected no write outside of y but got one 7 behind its last element");
  CHECK(after([](const Pointers& p) { p[1][-3] = 0; }) == "expected no write outside of y but got one 3 before its first element");
  CHECK(after([](const Pointers& p) { p[0][165] = 0; }) == "expected no write outside of x but got one 1 behind its last element");
  CHECK(contains(after([](const Pointers& p) { p[0][34] = 7; }), "expected x[1, 1], an input, to stay "));
  // Without the largest element of a row: exp overflows.
  CHECK(contains(fault("softmax", false, size,
                       [](const Pointers& p) {
                         for (std::size_t r = 0; r < 5; ++r) {
                           float sum = 0;
                           for (std::size_t c = 0; c < 33; ++c) sum += std::exp(p[0][33 * r + c]);
                           for (std::size_t c = 0; c < 33; ++c) p[1][33 * r + c] = std::exp(p[0][33 * r + c]) / sum;
                         }
                       }),
                 "expected y[1, 0] = "));
  // Sums of columns have the inputs of a column alone.
  const std::string sums = fault("layer_norm", true, size, [](const Pointers& p) {
    norm_grad(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], 5, 33);
    p[6][3] += 1;
  });
  CHECK(contains(sums, "expected dgamma[3] = "));
  CHECK(contains(sums, " from gamma[3] = "));
  CHECK(sums.ends_with("; 1 of 33 elements are wrong"));
}

TEST_CASE("tern-bench grade: a process that is watched ends in an exit code or one line") {
  using Outcome = std::pair<int, std::string>;
  CHECK(watch([](const Watched&) { ::_exit(3); }) == Outcome(3, ""));
  CHECK(watch([](const Watched& watched) {
          watched.at("a long place", 0.05);
          watched.at("there");
          ::usleep(200'000);  // without a limit
          ::_exit(4);
        }) == Outcome(4, ""));
  CHECK(watch([](const Watched& watched) {
          watched.at("a long place", 0.1);
          ::pause();
        }) == Outcome(77, "a long place: expected an end within 0.1 s but there was none: is a loop endless?"));
  CHECK(watch([](const Watched& watched) {
          watched.at("a bad place");
          ::signal(SIGSEGV, SIG_DFL);
          ::raise(SIGSEGV);
        }) == Outcome(77, "a bad place: expected an end but got signal 11"));
}

TEST_CASE("tern-bench grade --json --size: the lessons are right on a GPU, and timed", "[cuda]") {
  const TempDirectory directory;
  struct Lesson {
    std::string words, op;
    double bar;
  };
  for (const auto& [words, op, bar] : std::vector<Lesson>{{"softmax_naive.cu", "softmax_fwd", 6.5},
                                                          {"softmax.cu", "softmax_fwd", 6.5},
                                                          {"softmax.cu --grad", "softmax_bwd", 0.5},
                                                          {"layer_norm.cu --op layer_norm", "layer_norm_fwd", 15.8},
                                                          {"layer_norm.cu --op layer_norm --grad", "layer_norm_bwd", 3.7}}) {
    const std::string rows = directory / op;
    const Result result = run(bench, with({"grade", "--size", "512,1000", "--seconds", "1e-3", "--json", rows}, words_of(lessons + words)));
    INFO(words << "\n" << result.out << result.err);
    REQUIRE(result.code == 0);
    CHECK(contains(result.out, "right at 7 of 7 odd sizes"));
    CHECK(contains(result.out, fmt::format("x over plain on average; the course asks for {}x: ", bar)));
    const std::vector<Json> found = json_lines(rows);
    REQUIRE(found.size() >= 4);
    CHECK(found[0]["op"] == op);
    CHECK(found[0]["shape"] == Json::array({512, 1000}));
    CHECK(found[0]["impl"] == "yours");
    for (const Json& row : found) CHECK((number_of(row, "ms") > 0 && number_of(row, "gbs") > 0 && number_of(row, "of_copy") > 0));
    fs::remove(rows);
  }
}

TEST_CASE("tern-bench grade --limit: a kernel that is wrong, endless or writes elsewhere ends in one line", "[cuda]") {
  const TempDirectory directory;
  const auto of_naive = [&](const std::string& from, const std::string& to, const std::string& words = "") {
    return graded(changed(directory, "softmax_naive.cu", from, to), words);
  };
  check_failed(of_naive("expf(x[c] - largest) / sum", "expf(x[c] - largest)"), "expected y[0, 0] = ");
  check_failed(of_naive("y[c] = expf", "if (c != 30) y[c] = expf"), "at (3, 31): expected y[0, 30] = ");
  check_failed(of_naive("y[c] = expf", "if (c != 30) y[c] = expf"), "but it was not written");
  check_failed(of_naive("if (row >= rows) return;", "if (row > rows) return;"),
               "(1, 1): expected no write outside of y but got one 1 behind its last element");
  check_failed(of_naive("++c) sum", "++c) ((float*)x)[c] = 0, sum"), ", an input, to stay ");
  check_failed(of_naive("float largest = -INFINITY", "if (columns == 33) *(float*)8 = 0;\n  float largest = -INFINITY"),
               "(5, 33): expected a kernel that runs but got [cuda] ");
  check_failed(of_naive("128>>>", "2048>>>"), "(1, 1): expected a kernel that runs but got [cuda] launch: ");
  check_failed(of_naive("float largest = -INFINITY",
                        "while (columns == 33 && *(volatile const float*)x < 1e9f) {}\n  float largest = -INFINITY", "--limit 0.5"),
               "(5, 33): expected an end within 0.5 s but there was none");
  // Kernels that work at some sizes, and one that is launched with what it needs of shared memory.
  const Result some = of_naive("// launch", "// needs: columns % 4 == 0\n// launch", "--size 64,64");
  INFO(some.err);
  CHECK(contains(some.out, "right at 3 of 7 odd sizes"));
  check_refused(of_naive("// launch", "// needs: columns == 5\n// launch"), "expected to work at a size to be timed", "tern-bench");
  const Result shared = of_naive("(rows + 127) / 128, 128>>>", "(rows + 127) / 128, 128, 64 * 1024>>>", "--size 64,64");
  INFO(shared.err);
  CHECK(shared.code == 0);
}
