// Primitives: what they print, that they keep what a kernel computes, and what they refuse.
#include <random>

#include "catch.h"
#include "loops/run.h"
#include "schedule_text.h"

using namespace study::loops;
using namespace study::loops::test;
using tern::contains, tern::message_of;

namespace {

/// A primitive with names that the program has, and sometimes without sense.
std::string random_line(const Program& p, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  const auto a_loop = [&] { return p.loops[below(p.loops.size())].name; };
  const auto a_tensor = [&] { return p.tensors[below(p.tensors.size())].name; };
  const auto a_factor = [&] { return std::to_string(std::vector{2, 3, 4, 8, 16}[below(5)]); };
  const auto a_space = [&] { return std::string(below(2) ? "shared" : "registers"); };
  static int fresh = 0;
  const std::string name = "n" + std::to_string(fresh++), next = "n" + std::to_string(fresh++);
  switch (below(12)) {
    case 0:
    case 1:
    case 2: return "split " + a_loop() + " by " + a_factor() + " -> " + name + ", " + next;
    case 3: return "fuse " + a_loop() + ", " + a_loop() + " -> " + name;
    case 4: return "reorder " + a_loop() + ", " + a_loop() + ", " + a_loop();
    case 5: return "bind " + a_loop() + std::vector{" block", " thread", " cores"}[below(3)];
    case 6: return "vectorise " + a_loop() + (below(2) ? " in " + a_tensor() : "");
    case 7: return "unroll " + a_loop();
    case 8:
    case 9: return "keep " + a_tensor() + " in " + a_space() + " at " + a_loop();
    case 10: return "part " + a_tensor() + " by " + a_loop() + " in " + a_space();
    default: return "at " + a_loop() + " compute " + a_tensor();
  }
}

}  // namespace

TEST_CASE("A line of a schedule is printed as it was read") {
  for (const char* text :
       {"split i by 8, 4 -> io, ii, iv", "split i by 2 -> a, b in c", "fuse i, j -> ij", "reorder k, i, j", "reorder k, i in c",
        "bind i block, t thread, u cores", "vectorise v", "unroll k, i in x", "keep a in shared at k as k, i pad 4",
        "keep a, b in registers at k", "keep m in shared", "part s, m by t, v in shared", "part s by t in registers", "at c compute e"}) {
    const std::vector<Line> lines = parse_schedule("# a comment\n\n  " + std::string(text) + " # why\n", "s");
    REQUIRE(lines.size() == 1);
    CHECK(to_text(lines[0]) == text);
    CHECK(lines[0].number == 3);
    CHECK(parse_schedule(to_text(lines[0]), "s")[0].names == lines[0].names);
  }
}

TEST_CASE("A kernel without a schedule computes its formula") {
  for (const std::string& name : kernel_names())
    for (const std::vector<std::int64_t>& sizes : odd_sizes(name)) CHECK_NOTHROW(prove(kernel(name, sizes)));
  const Program product = kernel("matmul", {2, 3, 4});
  Values x = make_values(product);
  const Values c = interpret(product, x);
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < 3; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < 4; ++k) sum += x[0][4 * i + k] * x[1][3 * k + j];
      CHECK(c[2][3 * i + j] == Approx(sum));
    }
  const Program rows = kernel("softmax", {1, 3}), norm = kernel("rms_norm", {1, 2}), curve = kernel("gelu", {2});
  CHECK(interpret(kernel("layer_norm", {1, 2}), {{1, 5}, {1, 3}, {0, 10}, {0, 0}})[3][1] == Approx(13));
  CHECK(interpret(kernel("column_sum", {2, 2}), {{1, 2, 3, 5}, {0, 0}})[1] == std::vector<double>{4, 7});
  CHECK(interpret(kernel("transpose", {2, 3}), {{1, 2, 3, 4, 5, 6}, std::vector<double>(6)})[1] == std::vector<double>{1, 4, 2, 5, 3, 6});
  const std::vector<double> y = interpret(rows, {{1e4, 1e4, 1e4 + std::log(2.0)}, {0, 0, 0}})[1];
  CHECK((y[0] == Approx(0.25) && y[1] == Approx(0.25) && y[2] == Approx(0.5)));
  CHECK(interpret(norm, {{3, 4}, {1, 2}, {0, 0}})[2][1] == Approx(8 / std::sqrt(12.5)));
  CHECK(interpret(curve, {{1, -10}, {0, 0}})[1][0] == Approx(0.8412).epsilon(1e-3));
  CHECK(contains(to_text(rows), "for r in 1:\n  m = -inf\n  for c in 3:\n    m max= x[r, c]\n"));
}

TEST_CASE("Each primitive does to a program what its text says") {
  const auto text = [](const std::string& name, const std::string& lines) {
    return to_text(
        scheduled(kernel(name, name == "matmul" ? std::vector<std::int64_t>{6, 8, 10} : std::vector<std::int64_t>{3, 10}), lines));
  };
  CHECK(contains(text("matmul", "split i by 4 -> io, i"),
                 "for io in 2:\n  for i in 4:\n    for j in 8:\n      if 4 * io + i < 6: c[4 * io + i, j] = 0\n"));
  CHECK(contains(text("matmul", "split i by 3, 2 -> a, b, d"), "for a in 1:\n  for b in 3:\n    for d in 2:\n"));
  CHECK(contains(text("matmul", "fuse i, j -> ij"), "for ij in 48:\n  c[ij / 8, ij % 8] = 0\n"));
  CHECK(contains(text("matmul", "fuse i, j -> ij\nsplit ij by 16 -> o, n"), "c[2 * o + n / 8, n % 8] = 0"));
  CHECK(contains(text("matmul", "reorder k, i, j"), "for k in 10:\n  for i in 6:\n    for j in 8:\n      c[i, j] += a[i, k] * b[k, j]\n"));
  CHECK(contains(text("matmul", "reorder j, i in c"), "for j in 8:\n  for i in 6:\n    c[i, j] = 0\n"));
  CHECK(contains(text("matmul", "bind i block, j thread\nunroll k"),
                 "for i in 6:  block\n  for j in 8:  thread\n    for k in 10:  unrolled\n"));
  CHECK(contains(text("matmul", "reorder i, k, j\nvectorise j"), "for j in 8:  vector\n"));
  const std::string kept =
      text("matmul", "split k by 4 -> ko, k\nreorder ko, i, j, k\nkeep c in registers at j\nkeep b in shared at ko as j, k pad 1");
  CHECK(contains(kept, "registers c_r: [1, 1]\n  shared b_s: [4, 8] strides [1, 5]\n"));
  CHECK(contains(kept, "b_s[b_k, b_j] = b[4 * ko + b_k, b_j] if 4 * ko + b_k < 10 else 0\n"));
  CHECK(contains(kept,
                 "c_r[0, 0] = 0\n      for k in 4:\n        if 4 * ko + k < 10: c_r[0, 0] += a[i, 4 * ko + k] * b_s[k, j]\n      c[i, j] "
                 "+= c_r[0, 0]\n"));
  CHECK(contains(text("matmul", "keep c in registers at j"), "    c[i, j] = c_r[0, 0]\n"));
  CHECK(contains(text("softmax", "split c by 4 -> c, t\npart s by t in shared"),
                 "  for t in 4:\n    s_t[t] = 0\n  for c in 3:\n    for t in 4:\n      if 4 * c + t < 10: s_t[t] += e[4 * c + t]\n  for "
                 "t_s in 4:\n    s += s_t[t_s]\n"));
  CHECK(contains(text("softmax", "at c compute e"), "  for c in 10:\n    e[c] = exp(x[r, c] - m)\n    s += e[c]\n"));
  const std::string shared = to_text(scheduled(kernel("matmul", {6, 8, 10}), gpu_product));
  CHECK(contains(shared, "    for ko in 2:\n      barrier\n      for b_e in 4:\n"));
  CHECK(contains(shared, "      barrier\n      for ti in 4:  thread\n"));
}

TEST_CASE("Schedules of all primitives keep what their kernels compute") {
  CHECK(check_text("matmul", gpu_product) < 1e-12);
  CHECK(check_text("softmax", gpu_softmax) < 1e-12);
  CHECK(check_text("softmax",
                   "split r by 4 -> r, q\nbind r block, q thread\nsplit c by 8 -> c, t\npart m, s by t in shared\nbind t thread\nkeep e in "
                   "shared\n") < 1e-12);
  CHECK(check_text("rms_norm",
                   "split c by 4, 8 -> c, v, u\npart s by v, u in registers\nkeep g in registers at r\nvectorise u\nbind r cores\n") <
        1e-12);
  CHECK(check_text("gelu", "split i by 64 -> b, i\nsplit i by 4 -> t, i\nvectorise i\nbind b block, t thread\n") < 1e-12);
}

TEST_CASE("Random schedules that are not refused keep what their kernels compute") {
  std::mt19937 random(7);
  std::map<std::string, int> taken;
  int compiled = 0;
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::string> names = kernel_names();
    const std::string& name = names[static_cast<std::size_t>(round) % names.size()];
    const Program plain = kernel(name, odd_sizes(name)[1 + static_cast<std::size_t>(round / 4) % 2]);
    Program p = plain;
    std::string text;
    for (int i = 0; i < 24; ++i) {
      const std::string line = random_line(p, random);
      const std::string refused = message_of([&] {
        Program next = scheduled(p, line);
        if (statements_run(next) > 3e5) return;
        p = std::move(next);
        text += line + "\n";
        ++taken[line.substr(0, line.find(' '))];
      });
      CHECK((refused.empty() || refused.starts_with("s:1: ")));
      CHECK_FALSE(contains(refused, "\n"));
    }
    INFO(name << "\n" << text << to_text(p));
    const Values values = make_values(plain), expected = interpret(plain, values);
    Values got;
    REQUIRE_NOTHROW(got = interpret(p, values));
    const std::size_t out = values.size() - 1;
    REQUIRE_NOTHROW(compare(name, got[out], expected[out], 1e-11));
    if (round % 100 != 0) continue;
    const CpuKernel kernel(p);  // takes a second
    REQUIRE_NOTHROW(
        compare(name, run_between_red_zones(p, values, [&](auto tensors) { kernel.run(tensors, 2); })[out], expected[out], 1e-4));
    ++compiled;
  }
  CHECK(compiled == 3);
  for (const char* primitive : {"split", "fuse", "reorder", "bind", "vectorise", "unroll", "keep", "part", "at"}) {
    INFO(primitive);
    CHECK(taken[primitive] >= 5);
  }
}

TEST_CASE("What is no schedule is refused in one line that names the place") {
  const std::string long_name(40, 'a');
  const std::pair<std::string, const char*> wrong[] = {
      {"spilt i by 2 -> a, b", "s:1: expected split, fuse, reorder, bind, vectorise, unroll, keep, part or at but got 'spilt'"},
      {"\n\nsplit i by 0 -> a, b", "s:3: expected a number from 1 to 65536 but got '0'"},
      {"split i by 99999999999999999999 -> a, b", "expected a number from 1 to 65536"},
      {"split i by -4 -> a, b", "expected a number from 1 to 65536 but got '-'"},
      {"split i by 2, 2 -> a, b", "expected 3 names after ->"},
      {"split i by 2 -> a, a", "expected different names"},
      {"split i by 2", "expected -> but got the end of the line"},
      {"split " + long_name + " by 2 -> a, b", "expected a loop but got 'aaaa"},
      {"fuse i -> a", "expected two loops"},
      {"bind i warp", "expected block or thread or cores but got 'warp'"},
      {"keep a in disk at i", "expected shared or registers but got 'disk'"},
      {"keep a in shared at i extra", "expected the end of the line but got 'extra'"},
      {"at c", "expected compute"},
      {"unroll i, j,", "expected a loop but got the end of the line"},
      {"unroll a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "expected at most 16 in a list"},
      {std::string("unroll i\0j", 10), "expected the end of the line but got '?'"},
      {"unroll \x1b[31mi", "expected a loop but got '?'"},
      {std::string(70000, '#'), "s: expected at most 65536 bytes"},
      {[] {
         std::string many;
         for (int i = 0; i < 300; ++i) many += "unroll k\n";
         return many;
       }(),
       "s:201: expected at most 200 lines"}};
  for (const auto& [text, message] : wrong) {
    const std::string found = message_of([&, t = text] { parse_schedule(t, "s"); });
    INFO(found);
    CHECK(contains(found, message));
    CHECK_FALSE(contains(found, "\n"));
  }
}

TEST_CASE("A line that cannot be done is refused with why") {
  struct Wrong {
    const char *kernel, *lines, *message;
  };
  const Wrong wrong[] = {
      {"matmul", "split q by 2 -> a, b", "s:1: split q by 2 -> a, b: [loops] expected a loop q but there is none"},
      {"matmul", "split i by 2 -> a, b in z", "there is no z"},
      {"matmul", "split i by 2 -> a, j", "expected a name that no loop around it has but got j twice"},
      {"matmul", "split i by 65536, 65536 -> a, b, d", "expected factors of at most 2^24"},
      {"matmul", "bind i block\nsplit i by 2 -> a, b", "s:2: split i by 2 -> a, b: [loops] expected loop i before it is bound"},
      {"matmul", "fuse i, j -> f\nsplit f by 48 -> a, b", "expected a factor that divides"},
      {"matmul", "fuse i, k -> f", "expected loop k to stand directly in i"},
      {"matmul", "reorder j", "expected two of the loops"},
      {"softmax", "reorder c, r", "expected the loops c, r directly in each other"},
      {"matmul", "bind j block", "expected blocks to be the outermost loops"},
      {"matmul", "bind j cores", "expected cores to be the outermost loop"},
      {"matmul", "bind i cores, j thread", "expected threads of a GPU, or cores"},
      {"matmul", "bind k thread", "expected one thread to write c[i, j] but the steps of loop k do at once"},
      {"softmax", "split c by 8 -> c, t\nbind t thread", "the steps of loop t do at once: reduce in parts first"},
      {"softmax", "split c by 8 -> c, v\nvectorise v", "the steps of loop v do at once"},
      {"matmul", "split j by 8 -> jo, j\nvectorise j", "expected a vector to be the innermost loop"},
      {"softmax", "vectorise c in y", "expected a vector of 2, 4, 8, 16, 32 or 64 elements but loop c has 1024"},
      {"matmul", "split k by 64 -> ko, k\nunroll ko, k, j in c", "expected at most 512 steps to unroll"},
      {"matmul", "bind i block\nsplit j by 2048 -> jo, j\nbind j thread", "expected at most 1024 threads"},
      {"matmul", "keep a in shared", "expected a loop, 'at NAME'"},
      {"matmul", "keep z in shared at i", "there is no z"},
      {"matmul", "keep b in registers at k as j, i", "expected an order of the axes k, j"},
      {"softmax", "keep y in registers at c", "[loops] expected"},
      {"softmax", "keep s in registers at r", "but it does more"},
      {"matmul", "keep a in shared at i\nkeep b in shared at i\nbind i block, j thread", "expected at most 48 KiB"},
      {"softmax", "part x by c", "expected a reduction into x"},
      {"softmax", "part s by r", "expected a loop that s is reduced over"},
      {"softmax", "split c by 8 -> c, t\npart m, s by t in registers\nbind t thread",
       "expected each thread to read registers of its own but m_t is written by another"},
      {"softmax", "at c compute y", "expected a loop c that reads y"},
      {"softmax", "at c compute m", "expected one statement that writes m"},
      {"softmax", "bind c block", "expected blocks to be the outermost"},
      {"softmax", "split c by 8 -> c, t in e\nat c compute e", "loops like those of its reader"},
      // The threads of a block do not see what another block adds up.
      {"matmul", "split k by 256 -> ko, k\nreorder ko, i, j, k\nbind ko block", "the steps of loop ko do at once"},
  };
  for (const Wrong& w : wrong) {
    const std::string found = message_of([&] { scheduled(w.kernel, w.lines); });
    INFO(w.lines << "\n" << found);
    CHECK(contains(found, w.message));
    CHECK_FALSE(contains(found, "\n"));
  }
  std::string many = "split i by 2 -> x0, i\n";
  for (int i = 1; i < 199; ++i)
    many += "split i by 1, 1, 1, 1 -> " + [&] {
      std::string names;
      for (int k = 0; k < 4; ++k) names += "x" + std::to_string(i) + "_" + std::to_string(k) + ", ";
      return names;
    }() + "i\n";
  CHECK(contains(message_of([&] { scheduled("matmul", many); }), "expected at most 1000 loops"));
}

TEST_CASE("Sizes and kernels that are none are refused") {
  CHECK(contains(message_of([] { kernel("fft", {8}); }),
                 "expected a kernel of column_sum, gelu, layer_norm, matmul, rms_norm, softmax, transpose but got 'fft'"));
  CHECK(contains(message_of([] { kernel("matmul", {8}); }), "expected sizes (M, N, K)"));
  CHECK(contains(message_of([] { kernel("gelu", {0}); }), "each from 1 to 2^28"));
  CHECK(contains(message_of([] { kernel("softmax", {1 << 20, 1 << 20}); }), "expected at most 2^28 elements"));
}
