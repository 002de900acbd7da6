// The CPU's kernels for products, indexing, sorting, random numbers, losses and optimizers over plain Views against a naive loop in
// float64: sizes round the vector and chunk lengths, strided, reversed and broadcast operands, the dtypes, every byte round the outputs,
// and one thread against two.
#include <numeric>

#include "dropout_reference.h"
#include "kernel_array.h"
#include "ops/kernels/index.h"
#include "ops/kernels/loss.h"
#include "ops/kernels/matmul.h"
#include "ops/kernels/optimizer.h"
#include "ops/kernels/random.h"

using namespace tern;
using namespace tern::kernels;
using namespace tern::test;

TEST_CASE("matmul") {
  struct Case {
    std::int64_t m, n, k;
  };
  const std::vector<Case> cases = {{0, 3, 2},    {3, 0, 2},      {3, 4, 0},       {1, 1, 1},     {1, 33, 31},   {33, 1, 1025}, {31, 33, 7},
                                   {40, 40, 32}, {65, 129, 300}, {13, 600, 1025}, {300, 17, 65}, {8, 700, 200}, {700, 20, 200}};
  for (const auto& [m, n, k] : cases)
    for (DType dtype : floats)
      for (bool a_columns : {false, true})
        for (bool b_columns : {false, true})
          for (std::int64_t batch : {1, 3}) {
            if (m * n * k > 1000000 && (batch > 1 || dtype == DType::f16)) continue;
            Array a({batch, m, k}, dtype), b({batch, k, n}, dtype), c({batch, m, n + 3}, dtype);
            a.random(-1, 1);
            b.random(-1, 1, 2);
            c.random(-1, 1, 3);
            // The transposed operand holds the same numbers, read in the other order.
            const auto transpose = [](View& view) { view.strides[1] = 1, view.strides[2] = std::max<std::int64_t>(view.shape[1], 1); };
            if (a_columns) transpose(a.view), a.random(-1, 1);
            if (b_columns) transpose(b.view), b.random(-1, 1, 2);
            std::vector<double> products(static_cast<std::size_t>(batch * m * n));
            const auto left = a.values(), right = b.values();
            for (std::int64_t i = 0; i < batch * m; ++i)
              for (std::int64_t j = 0; j < k; ++j)
                for (std::int64_t column = 0; column < n; ++column)
                  products[static_cast<std::size_t>(i * n + column)] +=
                      left[static_cast<std::size_t>(i * k + j)] * right[static_cast<std::size_t>((i / m * k + j) * n + column)];
            for (Write write : {Write::overwrite, Write::accumulate}) {
              Array y = c;
              run(y, [&](const View& v) {
                View out = v;
                out.shape[2] = n;
                matmul(Cpu{}, a.view, b.view, out, 0.5, write);
              });
              CAPTURE(m, n, k, name(dtype), a_columns, b_columns, batch, int(write));
              check(
                  y,
                  [&](std::int64_t i) {
                    const std::int64_t column = i % (n + 3);
                    if (column >= n) return c[i];
                    return 0.5 * products[static_cast<std::size_t>(i / (n + 3) * n + column)] + (write == Write::accumulate ? c[i] : 0);
                  },
                  dtype == DType::f32 || dtype == DType::f64 ? 8 : 2);
            }
          }
}

TEST_CASE("matmul broadcasts over batches and takes heads from strided views") {
  // Keys and queries of 4 heads straight out of a (batch, time, 3 * 4 * 8) projection.
  const std::int64_t B = 3, T = 21, H = 4, D = 8, row = 3 * H * D;
  Array qkv({B, T, row}), scores({B, H, T, T});
  qkv.random(-1, 1);
  View q = qkv.view, k = qkv.view;
  q.shape = {B, H, T, D};
  q.strides = {T * row, D, row, 1};
  k.shape = {B, H, D, T};
  k.strides = {T * row, D, 1, row};
  k.data = qkv.view.as<float>() + H * D;
  run(scores, [&](const View& v) { matmul(Cpu{}, q, k, v, 1, Write::overwrite); });
  check(
      scores,
      [&](std::int64_t i) {
        const std::int64_t t = i % T, s = i / T % T, h = i / T / T % H, b = i / T / T / H;
        double sum = 0;
        for (std::int64_t d = 0; d < D; ++d) sum += qkv[(b * T + s) * row + h * D + d] * qkv[(b * T + t) * row + H * D + h * D + d];
        return sum;
      },
      4);

  Array x({5, 6, 7}), w({7, 9}), y({5, 6, 9});
  x.random(-1, 1);
  w.random(-1, 1, 2);
  run(y, [&](const View& v) { matmul(Cpu{}, x.view, w.broadcast(0, 5), v, 1, Write::overwrite); });
  check(
      y,
      [&](std::int64_t i) {
        double sum = 0;
        for (std::int64_t j = 0; j < 7; ++j) sum += x[i / 9 * 7 + j] * w[j * 9 + i % 9];
        return sum;
      },
      4);
}

TEST_CASE("gather and scatter_add") {
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (int dim : {0, 1, 2}) {
        const Shape shape{5, 40, 33};
        Shape x_shape = shape;
        x_shape[dim] = 9;
        Array x(x_shape, dtype, layout), index(shape, DType::i64, layout), y(shape, dtype), source(shape, dtype, layout),
            sum(x_shape, dtype, layout);
        x.random(0, 9);
        source.random(0, 2, 3);
        sum.random(0, 2, 4);
        index.random(0, 9, 2);
        const auto at = [&](std::int64_t i) {
          const std::int64_t p[] = {i / (40 * 33), i / 33 % 40, i % 33};
          std::int64_t result = 0;
          for (int d = 0; d < 3; ++d) result = result * x_shape[d] + (d == dim ? std::int64_t(index[i]) : p[d]);
          return result;
        };
        run(y, [&](const View& v) { gather(Cpu{}, x.view, index.view, v, dim); });
        check(y, [&](std::int64_t i) { return x[at(i)]; });
        std::vector<double> expected;
        for (std::int64_t i = 0; i < sum.size(); ++i) expected.push_back(sum[i]);
        for (std::int64_t i = 0; i < source.size(); ++i) expected[static_cast<std::size_t>(at(i))] += source[i];
        run(sum, [&](const View& v) { scatter_add(Cpu{}, v, index.view, source.view, dim); });
        check(sum, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 8);
      }
}

TEST_CASE("index_select and index_add") {
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (std::int64_t width : {1, 33, 256}) {
        const std::int64_t A = 2, N = 17, I = 150;
        Array x({A, N, width}, dtype, layout), index({I}, DType::i64, layout), y({A, I, width}, dtype, layout),
            sum({A, N, width}, dtype, layout);
        x.random(0, 9);
        index.random(0, 17);
        sum.random(0, 2, 4);
        const auto at = [&](std::int64_t i) { return (i / width / I * N + std::int64_t(index[i / width % I])) * width + i % width; };
        run(y, [&](const View& v) { index_select(Cpu{}, x.view, index.view, v); });
        check(y, [&](std::int64_t i) { return x[at(i)]; });
        y.random(0, 2);
        std::vector<double> expected;
        for (std::int64_t i = 0; i < sum.size(); ++i) expected.push_back(sum[i]);
        for (std::int64_t i = 0; i < y.size(); ++i) expected[static_cast<std::size_t>(at(i))] += y[i];
        run(sum, [&](const View& v) { index_add(Cpu{}, v, index.view, y.view); });
        check(sum, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; }, 16);
      }
}

TEST_CASE("index_copy writes rows of any layout") {
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (std::int64_t width : {1, 33, 256}) {
        const std::int64_t A = 2, N = 170, I = 150;
        Array y({A, N, width}, dtype, layout), index({I}, DType::i64, layout), source({A, I, width}, dtype, layout);
        y.random(0, 2, 4);
        source.random(0, 9);
        index.fill([](std::int64_t i) { return (i * 7 + 3) % 170; });
        std::vector<double> expected;
        for (std::int64_t i = 0; i < y.size(); ++i) expected.push_back(y[i]);
        for (std::int64_t i = 0; i < source.size(); ++i)
          expected[static_cast<std::size_t>((i / width / I * N + std::int64_t(index[i / width % I])) * width + i % width)] = source[i];
        run(y, [&](const View& v) { index_copy(Cpu{}, v, index.view, source.view); });
        check(y, [&](std::int64_t i) { return expected[static_cast<std::size_t>(i)]; });
      }
}

TEST_CASE("an index outside the range throws before anything is written") {
  Array x({2, 3, 4}), index({5}, DType::i64), y({2, 5, 4}), lines({2, 3, 1}, DType::i64), z({2, 3, 1});
  index.fill([](std::int64_t i) { return i == 4 ? 3 : 1; });
  lines.fill([](std::int64_t i) { return i == 5 ? -1 : 1; });
  for (Array* out : {&x, &y, &z}) out->fill([](std::int64_t i) { return double(i); });
  const Array x_before = x, y_before = y, z_before = z;
  CHECK_THROWS_WITH(index_select(Cpu{}, x.view, index.view, y.view), "[index_select] expected indices from 0 to 2 but got 3");
  CHECK_THROWS_WITH(index_add(Cpu{}, x.view, index.view, y.view), "[index_add] expected indices from 0 to 2 but got 3");
  CHECK_THROWS_WITH(index_copy(Cpu{}, x.view, index.view, y.view), "[index_copy_] expected indices from 0 to 2 but got 3");
  CHECK_THROWS_WITH(gather(Cpu{}, x.view, lines.view, z.view, 2), "[gather] expected indices from 0 to 3 but got -1");
  CHECK_THROWS_WITH(scatter_add(Cpu{}, x.view, lines.view, z.view, 2), "[scatter_add] expected indices from 0 to 3 but got -1");
  CHECK((x.same_bytes(x_before) && y.same_bytes(y_before) && z.same_bytes(z_before)));
}

TEST_CASE("sort is stable, with NaN largest") {
  for (DType dtype : numbers)
    for (Layout layout : layouts)
      for (std::int64_t n : {0, 1, 31, 33, 1025})
        for (bool descending : {false, true}) {
          Array x({3, n}, dtype, layout), values({3, n}, dtype), indices({3, n}, DType::i64);
          x.random(dtype == DType::u8 ? 0 : -9, 9);
          if (is_floating(dtype) && n > 9) {
            x.set(2, NAN);
            x.set(7, -NAN);
            x.set(4, 0.0);
            x.set(5, -0.0);
            x.set(8, -INFINITY);
          }
          run(values, [&](const View& v) { sort(Cpu{}, x.view, v, indices.view, descending); });
          std::vector<std::int64_t> order(static_cast<std::size_t>(n));
          for (std::int64_t row = 0; row < 3; ++row) {
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
              const double p = x[row * n + (descending ? j : i)], q = x[row * n + (descending ? i : j)];
              return p < q || (!std::isnan(p) && std::isnan(q));
            });
            for (std::int64_t i = 0; i < n; ++i) {
              const std::int64_t from = order[static_cast<std::size_t>(i)];
              if (indices[row * n + i] != double(from) || !close(values[row * n + i], x[row * n + from], 0))
                FAIL("sorted wrongly at " << i);
            }
          }
          CHECK((values.guards_hold() && indices.guards_hold()));
        }
}

TEST_CASE("random draws are the documented function of seed and position") {
  const std::uint64_t base = 5;
  const PhiloxState state{0x123456789abcdefull, 0xffffffff - 20, &base};
  const auto word = [&](std::int64_t i) { return philox(state.seed, state.offset + base + std::uint64_t(i / 4)).words[i % 4]; };
  for (std::int64_t n : {0, 1, 31, 33, 1025, 20000}) {
    for (DType dtype : floats) {
      Array y({n}, dtype), x({n}, dtype);
      run(y, [&](const View& v) { uniform(Cpu{}, v, -2, 3, state); });
      check(y, [&](std::int64_t i) { return -2 + 5 * double(unit_float(word(i))); });
      run(y, [&](const View& v) { normal(Cpu{}, v, 0.5, 2, state); });
      check(
          y,
          [&](std::int64_t i) {
            const std::int64_t first = i / 2 * 2;
            const double u1 = (double(word(first) >> 8) + 0.5) * 0x1p-24, u2 = double(unit_float(word(first + 1)));
            const double radius = std::sqrt(-2 * std::log(dtype == DType::f64 ? u1 : double(float(u1)))), angle = 2 * M_PI * u2;
            return 0.5 + 2 * radius * (i % 2 == 0 ? std::cos(angle) : std::sin(angle));
          },
          2);
      x.random(-1, 1);
      const double kept = 1 - 0.3;
      for (const std::uint64_t offset : {state.offset + 1, state.offset}) {  // in the middle of a block, and at one's begin
        run(y, [&](const View& v) { dropout(Cpu{}, x.view, v, 0.3, {state.seed, offset, &base}); });
        check(y, [&](std::int64_t i) { return is_dropped(state.seed, offset + base, std::uint64_t(i), 0.3) ? 0 : x[i] / kept; });
      }
      run(x, [&](const View& v) { dropout(Cpu{}, v, v, 0.3, state); });
      check(x, [&](std::int64_t i) { return y[i]; });
    }
    for (DType dtype : all_dtypes) {
      Array y({n}, dtype);
      for (double p : {0.0, 0.3, 0.5, 1.0}) {
        run(y, [&](const View& v) { bernoulli(Cpu{}, v, p, state); });
        check(y, [&](std::int64_t i) { return double(unit_float(word(i))) < p; });
      }
    }
    Array y({n}, DType::i64);
    run(y, [&](const View& v) { permutation(Cpu{}, v, state); });
    std::vector<std::pair<std::uint64_t, std::int64_t>> keys;
    for (std::int64_t i = 0; i < n; ++i) {
      const PhiloxBlock block = philox(state.seed, state.offset + base + std::uint64_t(i));
      keys.emplace_back(std::uint64_t(block.words[1]) << 32 | block.words[0], i);
    }
    std::sort(keys.begin(), keys.end());
    check(y, [&](std::int64_t i) { return double(keys[static_cast<std::size_t>(i)].second); });
  }
}

TEST_CASE("cross_entropy and its gradient") {
  for (DType dtype : floats)
    for (std::int64_t columns : {1, 31, 33, 1025, 3000})
      for (double smoothing : {0.0, 0.1})
        for (bool weighted : {false, true}) {
          const std::int64_t rows = 9, ignored = -100;
          const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
          Array memory({rows, columns + 2}, dtype), lse({rows}, wide), targets({rows}, DType::i64), weights({rows}, wide),
              losses({rows}, wide);
          Array g({rows}, wide), dx({rows, columns}, dtype);
          memory.random(-4, 4);
          View x = memory.view;
          x.shape[1] = columns;
          const auto at = [&](std::int64_t n, std::int64_t v) { return memory[n * (columns + 2) + v]; };
          targets.random(0, double(columns)).set(3, double(ignored));
          weights.random(0.5, 2);
          g.random(-1, 1);
          const auto lse_of = [&](std::int64_t n) {
            double sum = 0;
            for (std::int64_t v = 0; v < columns; ++v) sum += std::exp(at(n, v));
            return n == 3 ? 0 : std::log(sum);
          };
          const auto loss_of = [&](std::int64_t n) {
            if (n == 3) return 0.0;
            double mean = 0;
            for (std::int64_t v = 0; v < columns; ++v) mean += at(n, v) / double(columns);
            const double top = lse_of(n), loss = (1 - smoothing) * (top - at(n, std::int64_t(targets[n]))) + smoothing * (top - mean);
            return loss * (weighted ? weights[n] : 1);
          };
          const TokenTargets tokens{targets.view, weighted ? weights.view : View{}, ignored, smoothing};
          run(losses, [&](const View& y) { cross_entropy(Cpu{}, x, tokens, lse.view, y); });
          check(losses, loss_of);
          check(lse, lse_of);
          Array value({}, wide), total({}, wide);
          for (bool mean : {false, true}) {
            reduce_losses(Cpu{}, losses.view, tokens, mean, value.view, total.view);
            double sum = 0, divisor = 0;
            for (std::int64_t n = 0; n < rows; ++n) {
              sum += losses[n];
              if (n != 3) divisor += weighted ? weights[n] : 1;
            }
            if (!mean) divisor = 1;
            check(total, [&](std::int64_t) { return divisor; });
            check(value, [&](std::int64_t) { return sum / divisor; });
          }
          const auto gradient_of = [&](std::int64_t i, double of_loss) {
            const std::int64_t n = i / columns, v = i % columns;
            if (n == 3) return 0.0;
            const double hit = v == std::int64_t(targets[n]) ? 1 - smoothing : 0;
            return of_loss * (weighted ? weights[n] : 1) * (std::exp(at(n, v) - lse_of(n)) - hit - smoothing / double(columns));
          };
          for (bool shared : {false, true}) {
            View gradient = g.view;
            if (shared) gradient.strides[0] = 0;
            run(dx, [&](const View& y) { cross_entropy_grad(Cpu{}, x, lse.view, tokens, {gradient, total.view}, y); });
            check(dx, [&](std::int64_t i) { return gradient_of(i, g[shared ? 0 : i / columns] / total[0]); });
          }
          for (bool given : {false, true}) {
            // The logits move to dx, and become their gradient there.
            dx.fill([&](std::int64_t i) { return at(i / columns, i % columns); });
            run(dx, [&](const View& y) { cross_entropy_with_grad(Cpu{}, y, tokens, {given ? g.view : View{}, {}}, losses.view); });
            check(losses, loss_of);
            check(dx, [&](std::int64_t i) { return gradient_of(i, given ? g[i / columns] : 1); });
          }
          if (columns == 31) {
            targets.set(8, 31);
            CHECK_THROWS_AS(cross_entropy(Cpu{}, x, tokens, lse.view, losses.view), Error);
            CHECK_THROWS_AS(cross_entropy_grad(Cpu{}, x, lse.view, tokens, {g.view, {}}, dx.view), Error);
            CHECK_THROWS_AS(cross_entropy_with_grad(Cpu{}, dx.view, tokens, {}, losses.view), Error);
          }
        }
}

TEST_CASE("a gradient times a factor, in a new place or added to one") {
  for (DType dtype : floats)
    for (std::int64_t n : {0, 1, 31, 33, 1025, 40000})
      for (Write write : {Write::overwrite, Write::accumulate}) {
        Array x({n}, dtype), y({n}, dtype), factor({}, dtype == DType::f64 ? DType::f64 : DType::f32);
        x.random(-2, 2);
        y.random(-2, 2);
        factor.set(0, 0.37);
        std::vector<double> before;
        for (std::int64_t i = 0; i < n; ++i) before.push_back(write == Write::accumulate ? y[i] : 0);
        run(y, [&](const View& to) { scale(Cpu{}, std::vector<Scaling>{{x.view, to, write}}, {factor.view, {}}); });
        check(y, [&](std::int64_t i) { return before[static_cast<std::size_t>(i)] + factor[0] * x[i]; });
      }
}

TEST_CASE("adam and sgd") {
  for (DType dtype : floats)
    for (std::int64_t n : {0, 1, 31, 33, 1025, 70000})
      for (bool variant : {false, true})
        for (bool scaled : {false, true}) {
          const bool is_half = size_of(dtype) == 2;
          const DType kept = dtype == DType::f64 ? DType::f64 : DType::f32;
          Array p({n}, dtype), g({n}, dtype), m({n}, kept), v({n}, kept), master({n}, kept), lr({1}), step({1}), factor({1}), advance({1});
          p.random(-1, 1);
          g.random(-1, 1, 2);
          m.random(-1, 1, 3);
          v.random(0, 1, 4);
          master.random(-1, 1, 5);
          lr.fill([](std::int64_t) { return 0.125; });
          step.fill([](std::int64_t) { return 3; });
          factor.fill([](std::int64_t) { return 0.75; });
          advance.fill([](std::int64_t) { return 1; });
          const Array& value = is_half ? master : p;
          const GradientScaleView scale = scaled ? GradientScaleView{factor.view, advance.view} : GradientScaleView{};
          CAPTURE(name(dtype), n, variant, scaled);

          Array p1 = p, m1 = m, v1 = v, master1 = master;
          const auto keep = [&](const Array& from, Array& to) {
            std::memcpy(to.view.data, from.view.data, static_cast<std::size_t>(n) * size_of(to.view.dtype));
          };
          run(p1, [&](const View& out) {
            Array m2 = m, v2 = v, master2 = master;
            adam(Cpu{}, {out, g.view, m2.view, v2.view, lr.view, step.view, 0.9, 0.99, 1e-6, 0.1, variant, is_half ? master2.view : View{},
                         scale});
            keep(m2, m1);
            keep(v2, v1);
            keep(master2, master1);
          });
          const auto arriving = [&](std::int64_t i) { return g[i] * (scaled ? 0.75 : 1); };
          const auto gradient = [&](std::int64_t i) { return arriving(i) + (variant ? 0 : 0.1 * value[i]); };
          const auto first = [&](std::int64_t i) { return 0.9 * m[i] + (1 - 0.9) * gradient(i); };
          const auto second = [&](std::int64_t i) { return 0.99 * v[i] + (1 - 0.99) * gradient(i) * gradient(i); };
          const auto rounded = [&](const Array& exact) {  // bit for bit what the master says
            return [&](std::int64_t i) { return dispatch_floats(dtype, "test", [&]<class T>() { return double(T(float(exact[i]))); }); };
          };
          check(m1, first);
          check(v1, second);
          check(
              is_half ? master1 : p1,
              [&](std::int64_t i) {
                const double decayed = variant ? value[i] * (1 - 0.125 * 0.1) : value[i];
                return decayed - 0.125 * (first(i) / (1 - std::pow(0.9, 3))) / (std::sqrt(second(i) / (1 - std::pow(0.99, 3))) + 1e-6);
              },
              8);
          if (is_half) check(p1, rounded(master1), 0);

          Array p3 = p, buffer = m, master3 = master;
          run(p3, [&](const View& out) {
            Array momentum = m, master2 = master;
            sgd(Cpu{}, {out, g.view, momentum.view, lr.view, 0.75, 0.5, variant, is_half ? master2.view : View{}, scale});
            keep(momentum, buffer);
            keep(master2, master3);
          });
          const auto decayed = [&](std::int64_t i) { return arriving(i) + 0.5 * value[i]; };
          const auto velocity = [&](std::int64_t i) { return 0.75 * m[i] + decayed(i); };
          check(buffer, velocity);
          check(is_half ? master3 : p3,
                [&](std::int64_t i) { return value[i] - 0.125 * (variant ? decayed(i) + 0.75 * velocity(i) : velocity(i)); });
          if (is_half) check(p3, rounded(master3), 0);
          Array p4 = p, master4 = master;
          run(p4, [&](const View& out) {
            Array master2 = master;
            sgd(Cpu{}, {out, g.view, {}, lr.view, 0, 0.5, false, is_half ? master2.view : View{}, scale});
            keep(master2, master4);
          });
          check(is_half ? master4 : p4, [&](std::int64_t i) { return value[i] - 0.125 * decayed(i); });

          // A step that is not to be taken writes nothing.
          advance.fill([](std::int64_t) { return 0; });
          Array p5 = p, m5 = m, v5 = v, master5 = master;
          const GradientScaleView none{factor.view, advance.view};
          adam(Cpu{}, {p5.view, g.view, m5.view, v5.view, lr.view, step.view, 0.9, 0.99, 1e-6, 0.1, variant,
                       is_half ? master5.view : View{}, none});
          sgd(Cpu{}, {p5.view, g.view, m5.view, lr.view, 0.75, 0.5, variant, is_half ? master5.view : View{}, none});
          CHECK((p5.same_bytes(p) && m5.same_bytes(m) && v5.same_bytes(v) && master5.same_bytes(master)));
        }
}
