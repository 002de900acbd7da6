// sgemm-cpu: checks each rung of the ladder against a product in f64, and measures it against Eigen.
#include <fmt/format.h>
#include <omp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>
#include <limits>

#include "../report.h"
#include "ladder.h"
#if STUDY_EIGEN
#include <Eigen/Core>
#endif

namespace study::cpu {
namespace {

struct Rung {
  const char* name;
  void (*run)(const Product&);
  bool is_threaded = false;
};

#if STUDY_EIGEN
void eigen(const Product& p) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Eigen::Map<Matrix>(p.c, p.m, p.n).noalias() = Eigen::Map<const Matrix>(p.a, p.m, p.k) * Eigen::Map<const Matrix>(p.b, p.k, p.n);
}
constexpr bool has_eigen = true;
#else
void eigen(const Product&) {}
constexpr bool has_eigen = false;
#endif

constexpr Rung rungs[] = {
    {"naive", naive},     {"loop_order", loop_order}, {"cache_tiles", cache_tiles}, {"register_tiles", register_tiles},
    {"packing", packing}, {"threads", threads, true}};

/// The median ms of calls in about the seconds given, after one that does not count; of a single one where it takes longer than that.
double measure(double seconds, const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  const auto once = [&] {
    const auto start = Clock::now();
    f();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  const double first = once();
  if (first > seconds * 1e3) return first;
  const int repeats = std::clamp(static_cast<int>(seconds * 1e3 / std::max(first, 1e-3)), 3, 1000);
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(once());
  return median(times);
}

double check_rung(const char* name, void (*run)(const Product&)) {
  double worst = 0;
  for (const Size& size : check_sizes) {
    const auto a = random_matrix(static_cast<std::size_t>(size.m) * size.k, 1),
               b = random_matrix(static_cast<std::size_t>(size.k) * size.n, 2);
    std::vector<float> c(static_cast<std::size_t>(size.m) * size.n, std::numeric_limits<float>::quiet_NaN());
    run({a.data(), b.data(), c.data(), size.m, size.n, size.k});
    const double error = relative_error(c, product_in_f64(a, b, size));
    if (!(error < 2e-6))
      throw std::runtime_error(fmt::format("{} ({}, {}, {}): the relative error is {:.3g}", name, size.m, size.n, size.k, error));
    worst = std::max(worst, error);
  }
  return worst;
}

void run(long side, double seconds, int thread_count, bool only_check, const std::string& json) {
  Lines lines(json);
  if (thread_count > 0) omp_set_num_threads(thread_count);
  const int all = omp_get_max_threads();
  const auto count = static_cast<std::size_t>(side * side);
  const std::vector<float> a = random_matrix(count, 1), b = random_matrix(count, 2);
  std::vector<float> c(count);
  const Product product{a.data(), b.data(), c.data(), side, side, side};
  const double flops = 2.0 * static_cast<double>(side * side * side);
  double library[2] = {};  // ms on one thread, and on all
  const auto report = [&](const char* name, bool is_threaded, double error, double ms) {
    fmt::print("{:<16} {:>7} {:>10.2f} {:>9.2f}", name, is_threaded ? all : 1, ms, flops / ms / 1e6);
    if (library[is_threaded] > 0) fmt::print(" {:>8.1f}%", 100 * library[is_threaded] / ms);
    fmt::print(" {:>9.1e}\n", error);
    lines.add(fmt::format(
        R"({{"op": "sgemm", "shape": [{0}, {0}, {0}], "device": "cpu", "threads": {1}, "impl": "{2}", "ms": {3:.4f}, "gflops": {4:.3f}, )"
        R"("of_library": {5:.4f}, "error": {6:.2e}}})",
        side, is_threaded ? all : 1, name, ms, flops / ms / 1e6, library[is_threaded] / ms, error));
  };
  const auto timed = [&](void (*f)(const Product&), bool is_threaded) {
    omp_set_num_threads(is_threaded ? all : 1);
    return measure(seconds, [&] { f(product); });
  };
  if (!only_check)
    fmt::print("{:<16} {:>7} {:>10} {:>9} {:>9} {:>9}\n", "rung", "threads", "ms", "GFLOP/s", has_eigen ? "of Eigen" : "", "error");
  for (const bool is_threaded : {false, true}) {
    if (!has_eigen || only_check) continue;
    library[is_threaded] = timed(eigen, is_threaded);
    report("Eigen", is_threaded, check_rung("Eigen", eigen), library[is_threaded]);
  }
  for (const Rung& rung : rungs) {
    omp_set_num_threads(all);
    const double error = check_rung(rung.name, rung.run);
    if (only_check) fmt::print("{}: right at {} sizes, to {:.1e}\n", rung.name, check_sizes.size(), error);
    else report(rung.name, rung.is_threaded, error, timed(rung.run, rung.is_threaded));
  }
}

}  // namespace
}  // namespace study::cpu

int main(int argc, char** argv) {
  CLI::App app("Check and measure the SGEMM ladder on the CPU.", "sgemm-cpu");
  long side = 1024;
  double seconds = 0.5;
  int threads = 0;
  bool only_check = false;
  std::string json;
  app.add_option("--size", side, "rows and columns of the matrices")->check(CLI::Range(1, 16384))->capture_default_str();
  app.add_option("--seconds", seconds, "how long each figure is measured, about")->capture_default_str();
  app.add_option("--threads", threads, "of the last rung, and of Eigen beside it; 0: one a processor")->check(CLI::Range(0, 1024));
  app.add_flag("--check", only_check, "check, and measure nothing");
  app.add_option("--json", json, "append rows to this file, one JSON object a line");
  CLI11_PARSE(app, argc, argv);
  try {
    study::cpu::run(side, seconds, threads, only_check, json);
  } catch (const std::exception& error) {
    fmt::print(stderr, "sgemm-cpu: {}\n", error.what());
    return 1;
  }
  return 0;
}
