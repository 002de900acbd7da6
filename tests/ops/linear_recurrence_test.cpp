// Linear recurrence where the op table does not reach: gradients over several chunks, states that go on, packed sequences, keys that
// repeat. Its rows are in op_cases_recurrent.cpp.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "autodiff/engine.h"
#include "catch.h"
#include "op_cases.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/recurrent.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "plain.h"
#include "threads.h"

namespace tern {

namespace {

using op_cases::difference;
using op_cases::make_input;
using op_cases::tolerance;
using op_cases::value;

/// Operands of a call, all of them leaves.
struct Operands {
  Tensor q, k, v, log_decay, beta, initial, read = {}, write = {};

  Tensors all() const {
    Tensors xs;
    for (const Tensor* x : {&q, &k, &v, &log_decay, &beta, &initial, &read, &write})
      if (x->defined()) xs.push_back(*x);
    return xs;
  }
  Recurrence operator()() const { return linear_recurrence(q, k, v, {log_decay, beta, initial, read, write}); }
  /// As leaves on a GPU, in a dtype.
  Operands on_gpu(DType dtype) const {
    Operands x = *this;
    for (Tensor Operands::* member : {&Operands::q, &Operands::k, &Operands::v, &Operands::log_decay, &Operands::beta, &Operands::initial,
                                      &Operands::read, &Operands::write})
      if (Tensor& operand = x.*member; operand.defined()) operand = to(cast(operand.detach(), dtype), cuda()).set_requires_grad();
    return x;
  }
};

struct Sizes {
  std::int64_t batch, tokens, heads, width, columns;
};

Operands operands(const Sizes& s, int decay_dims, bool has_beta, DType dtype, double lowest = -2) {
  const Shape keys{s.batch, s.tokens, s.heads, s.width}, token{s.batch, s.tokens, s.heads};
  const double key = 1.5 / std::sqrt(static_cast<double>(s.width));
  Operands x{make_input(value(keys), dtype, 0),
             make_input(value(keys, -key, key), dtype, 1),
             make_input(value({s.batch, s.tokens, s.heads, s.columns}), dtype, 2),
             {},
             {},
             make_input(value({s.batch, s.heads, s.width, s.columns}), dtype, 5)};
  if (decay_dims > 0)
    x.log_decay = make_input(value(decay_dims == 1 ? Shape{s.heads} : decay_dims == 3 ? token : keys, lowest, 0), dtype, 3);
  if (has_beta) x.beta = make_input(value(token, 0.1, 1), dtype, 4);
  for (Tensor x_ : x.all()) x_.set_requires_grad();
  return x;
}

/// Gradients of all operands, with weights for both results.
Tensors gradients(const Operands& x) {
  const Recurrence result = x();
  const auto weight = [](const Tensor& of, std::size_t position) {
    return to(make_input({of.shape()}, of.dtype(), position), of.device());
  };
  return grad({result.y, result.state}, x.all(), {weight(result.y, 6), weight(result.state, 7)});
}

Tensors results_and_gradients(const Operands& x) {
  const Recurrence result = x();
  Tensors all = gradients(x);
  all.insert(all.end(), {result.y, result.state});
  return all;
}

template <class F>
void for_each_kind(F f) {
  for (const int decay_dims : {0, 1, 3, 4})
    for (const bool has_beta : {false, true}) {
      INFO("decay of " << decay_dims << " dimensions, " << (has_beta ? "delta rule" : "no beta"));
      f(decay_dims, has_beta);
    }
}

void check_close(const Tensors& got, const Tensors& want, DType dtype, double slack) {
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    INFO("tensor " << i);
    CHECK(difference(cast(got[i], dtype), cast(want[i], dtype), tolerance(dtype, slack, 2)) == "");
  }
}

}  // namespace

TEST_CASE("A selective scan of no tokens leaves the state as it is") {
  for (const bool fused : {false, true}) {
    const FusedKernels kernels(fused);
    const Tensor none = zeros({2, 0, 3}), keys = zeros({2, 0, 4}), before = make_input(value({2, 3, 4}), DType::f32, 0);
    const Recurrence result = selective_scan(none, none, zeros({3, 4}), keys, keys, before);
    CHECK(result.y.shape() == Shape{2, 0, 3});
    CHECK(result.state.to_vector<float>() == before.to_vector<float>());
  }
}

TEST_CASE("Gradients of selective_scan cross the chunks and groups of its kernel") {
  const auto at = [](const Shape& shape, std::size_t position, double low = -1, double high = 1) {
    Tensor x = make_input(value(shape, low, high), DType::f64, position);
    return x.set_requires_grad();
  };
  const Tensors in = {at({2, 70, 19}, 0), at({2, 70, 19}, 1, 0.01, 0.6), at({19, 3}, 2, -1, 0), at({2, 70, 3}, 3), at({2, 70, 3}, 4),
                      at({2, 19, 3}, 5)};
  const Tensors weights = {make_input(value({2, 70, 19}), DType::f64, 6), make_input(value({2, 19, 3}), DType::f64, 7)};
  const auto gradients = [&](bool fused) {
    const FusedKernels kernels(fused);
    const Recurrence result = selective_scan(in[0], in[1], in[2], in[3], in[4], in[5]);
    return grad({result.y, result.state}, in, weights);
  };
  const Tensors got = gradients(true), want = gradients(false);
  for (std::size_t i = 0; i < in.size(); ++i) CHECK(difference(got[i], want[i], tolerance(DType::f64, 16, 1)) == "");
}

TEST_CASE("Gradients of linear_recurrence cross the borders of chunks and of blocks of channels") {
  for_each_kind([](int decay_dims, bool has_beta) {
    for (const std::int64_t tokens : {1, 63, 64, 65, 130})
      for (const auto& [width, columns] : {std::pair{16, 16}, {64, 33}, {256, 6}}) {
        INFO(tokens << " tokens, heads of " << width << " x " << columns);
        const Operands x = operands({1, tokens, 2, width, columns}, decay_dims, has_beta, DType::f64);
        check_close(gradients(x), test::plain(gradients)(x), DType::f64, 100);
      }
  });
}

TEST_CASE("Decays below every float's range leave numbers in linear_recurrence, in both forms") {
  for_each_kind([](int decay_dims, bool has_beta) {
    if (decay_dims == 0) return;
    for (const double lowest : {-50.0, -1e4, -1e30}) {
      INFO("log_decay from " << lowest);
      const Operands x = operands({1, 130, 1, 8, 8}, decay_dims, has_beta, DType::f32, lowest);
      const Recurrence one = x(), other = test::plain([&] { return x(); })();
      check_close({one.y, one.state}, {other.y, other.state}, DType::f32, 20);
      const Tensors first = gradients(x), second = test::plain(gradients)(x);
      for (const Tensor& d : first) CHECK(all(isfinite(d)).item<bool>());
      check_close(first, second, DType::f32, 20);
    }
  });
}

TEST_CASE("linear_recurrence goes on from its state, in chunks and token by token") {
  for_each_kind([](int decay_dims, bool has_beta) {
    const Operands x = operands({2, 130, 2, 8, 5}, decay_dims, has_beta, DType::f32);
    const auto part = [&](const Tensor& y, std::int64_t first, std::int64_t last) {
      return y.defined() && y.dims() > 1 ? slice(y, 1, first, last) : y;
    };
    const NoGrad unrecorded;
    const Recurrence whole = x();
    for (const bool fused : {true, false})
      for (const std::int64_t step : {1, 65, 100}) {
        const FusedKernels scope(fused);
        INFO((fused ? "kernel" : "composition") << ", " << step << " tokens at a time");
        Tensors ys;
        Tensor state = x.initial;
        for (std::int64_t t = 0; t < 130; t += step) {
          const std::int64_t last = std::min<std::int64_t>(t + step, 130);
          const Recurrence now =
              linear_recurrence(part(x.q, t, last), part(x.k, t, last), part(x.v, t, last),
                                {decay_dims == 1 ? x.log_decay : part(x.log_decay, t, last), part(x.beta, t, last), state});
          ys.push_back(now.y);
          state = now.state;
        }
        check_close({cat(ys, 1), state}, {whole.y, whole.state}, DType::f32, 8);
      }
  });
}

TEST_CASE("A log_decay of -inf keeps packed sequences apart in linear_recurrence") {
  for (const int decay_dims : {3, 4})
    for (const bool has_beta : {false, true})
      for (const bool fused : {true, false}) {
        INFO("decay of " << decay_dims << " dimensions, beta " << has_beta << ", fused " << fused);
        const FusedKernels scope(fused);
        Operands x = operands({1, 100, 1, 8, 8}, decay_dims, has_beta, DType::f64);
        const std::int64_t start = 70;
        const Tensor positions = reshape(arange(100, DType::i64), {1, 100, 1});
        const Tensor is_start = eq(decay_dims == 4 ? unsqueeze(positions, 3) : positions, static_cast<double>(start));
        x.log_decay = masked_fill(x.log_decay.detach(), is_start, -std::numeric_limits<double>::infinity()).set_requires_grad();
        const Tensor packed = x().y;
        Operands alone = x;
        for (Tensor Operands::* member : {&Operands::q, &Operands::k, &Operands::v, &Operands::log_decay, &Operands::beta})
          if ((alone.*member).defined()) alone.*member = slice(x.*member, 1, start).detach();
        alone.initial = {};
        CHECK(difference(slice(packed, 1, start), alone().y, tolerance(DType::f64, 20, 0)) == "");
        for (const Tensor& d : gradients(x)) CHECK(all(isfinite(d)).item<bool>());
        // Nothing of the second sequence reaches the first, nor the state before it.
        const Tensor y = sum(slice(packed, 1, start));
        const Tensors of_second = grad({y}, {x.v, x.initial}, {ones_like(y)});
        CHECK(max(abs(slice(of_second[0], 1, 0, start))).item<double>() == 0);
        CHECK(max(abs(of_second[1])).item<double>() == 0);
      }
}

TEST_CASE("The delta rule of linear_recurrence replaces the value of a key that repeats") {
  // The matrix that the chunked form inverts is then all ones below its diagonal: powers of it reach 1e17.
  const Tensor k = broadcast_to(reshape(Tensor::from({1.0, 0.0, 0.0}, {3}), {1, 1, 1, 3}), {1, 130, 1, 3});
  const Tensor v = make_input(value({1, 130, 1, 4}), DType::f64, 2), beta = ones({1, 130, 1}, DType::f64);
  for (const DType dtype : {DType::f64, DType::f32})
    for (const bool fused : {true, false}) {
      const FusedKernels scope(fused);
      const Tensor values = cast(v, dtype), y = linear_recurrence(cast(k, dtype), cast(k, dtype), values, {.beta = cast(beta, dtype)}).y;
      CHECK(difference(y, values, tolerance(dtype, 8, 0)) == "");
    }
}

TEST_CASE("linear_recurrence gives the same bits with one thread and with two") {
  const Operands x = operands({3, 130, 3, 32, 64}, 4, true, DType::f32);
  Tensors one, two;
  {
    const test::Threads threads(1);
    one = results_and_gradients(x);
  }
  {
    const test::Threads threads(2);
    two = results_and_gradients(x);
  }
  for (std::size_t i = 0; i < one.size(); ++i) CHECK(op_cases::storage_bytes(one[i]) == op_cases::storage_bytes(two[i]));
}

double size(const Tensor& x) { return norm(cast(x, DType::f64)).item<double>(); }

/// The norm of the difference, relative to `scale` or, if that is more, to the norm of what is wanted, of elements of 0.01 at least.
double relative_error(const Tensor& got, const Tensor& want, double scale = 0) {
  return size(cast(got, DType::f64) - cast(want, DType::f64)) /
         std::max({scale, size(want), 0.01 * std::sqrt(static_cast<double>(want.numel()))});
}

TEST_CASE("The kernels of linear_recurrence by token on a GPU give what its composition gives", "[cuda]") {
  constexpr double forgotten = -std::numeric_limits<double>::infinity();
  for_each_kind([&](int decay_dims, bool has_beta) {
    for (const bool reads : {false, true})
      for (const std::int64_t tokens : {1, 130})
        for (const auto& [width, columns] : {std::pair{1, 2}, {2, 1}, {16, 64}, {64, 33}, {48, 16}, {272, 64}})
          for (const double lowest : {-1.0, -50.0, -1e4, forgotten}) {
            if ((decay_dims == 0 && lowest < -1) || (reads && has_beta)) continue;
            INFO(tokens << " tokens, heads of " << width << " x " << columns << ", log_decay from " << lowest << ", reads " << reads);
            Operands cpu_x = operands({2, tokens, 3, width, columns}, decay_dims, has_beta, DType::f64, std::max(lowest, -1e4));
            if (std::isinf(lowest)) cpu_x.log_decay = masked_fill(cpu_x.log_decay, lt(cpu_x.log_decay, -0.95e4), lowest) * 1e-4;
            if (reads) {
              const double key = 0.5 / std::sqrt(static_cast<double>(width));
              cpu_x.read = make_input(value(cpu_x.q.shape(), -key, key), DType::f64, 8);
              cpu_x.write = make_input(value(cpu_x.q.shape(), -key, key), DType::f64, 9);
            }
            if (decay_dims == 1) cpu_x.log_decay = broadcast_to(cpu_x.log_decay.detach(), {2, tokens, 3});
            for (const DType dtype : {DType::f64, DType::f32}) {
              const Operands x = cpu_x.on_gpu(dtype);
              const Tensors got = results_and_gradients(x), want = test::plain(results_and_gradients)(cpu_x.on_gpu(DType::f64));
              for (std::size_t i = 0; i < got.size(); ++i) {
                INFO(name(dtype) << ", tensor " << i);
                CHECK(all(isfinite(got[i])).item<bool>());
                // The gradient of a decay is what is left of sums of q dq and k dk, by which its error is measured.
                const bool is_decay = i == 3 && decay_dims > 0;
                const double terms = is_decay ? size(want[0] * x.q) + size(want[1] * x.k) : 0;
                CHECK(relative_error(got[i], want[i], terms) < (dtype == DType::f64 ? 0x1p-44 : 0x1p-17));
              }
            }
          }
  });
}

TEST_CASE("The kernels of selective_scan on a GPU give what its composition gives", "[cuda]") {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const std::int64_t tokens : {1, 8, 70})
      for (const auto& [channels, size] : {std::pair{1, 1}, {19, 3}, {70, 16}, {130, 40}})
        for (const double lowest : {-1.0, -200.0}) {
          INFO(name(dtype) << ", " << tokens << " tokens, " << channels << " channels of " << size << ", a from " << lowest);
          const auto at = [&](const Shape& shape, std::size_t position, double low = -1, double high = 1) {
            return to(cast(make_input(value(shape, low, high), DType::f64, position), dtype), cuda()).set_requires_grad();
          };
          const Shape signal{2, tokens, channels}, keys{2, tokens, size}, state{2, channels, size};
          const Tensors in = {at(signal, 0), at(signal, 1, 0.01, 0.6), at({channels, size}, 2, lowest, 0), at(keys, 3), at(keys, 4),
                              at(state, 5)};
          const Tensors weights = {at(signal, 6).detach(), at(state, 7).detach()};
          const auto all_of = [&] {
            const Recurrence result = selective_scan(in[0], in[1], in[2], in[3], in[4], in[5]);
            Tensors all = grad({result.y, result.state}, in, weights);
            all.insert(all.end(), {result.y, result.state});
            return all;
          };
          const Tensors got = all_of(), want = test::plain(all_of)();
          for (std::size_t i = 0; i < got.size(); ++i) {
            INFO("tensor " << i);
            CHECK(relative_error(got[i], want[i]) < (dtype == DType::f64 ? 0x1p-44 : 0x1p-17));
          }
        }
}

TEST_CASE("The chunked kernels of linear_recurrence on a GPU give what its composition gives", "[cuda]") {
  for_each_kind([](int decay_dims, bool has_beta) {
    if (decay_dims == 4 && has_beta) return;
    for (const DType dtype : {DType::bf16, DType::f16})
      for (const std::int64_t tokens : {1, 64, 200})
        for (const double lowest : {-0.1, -1.0, -50.0, -1e4, -std::numeric_limits<double>::infinity()}) {
          if (decay_dims == 0 && lowest < -0.1) continue;
          INFO(name(dtype) << ", " << tokens << " tokens, log_decay from " << lowest);
          Operands x = operands({2, tokens, 3, 64, 64}, decay_dims, has_beta, DType::f32, std::max(lowest, -1e4));
          // Of -inf, a few.
          if (std::isinf(lowest)) x.log_decay = masked_fill(x.log_decay, lt(x.log_decay, -0.95e4), lowest) * 1e-4;
          x = x.on_gpu(dtype);
          // As a view of tokens: the gradient of a head's one decay is a sum over all of them, which may cancel to any part of its error.
          if (decay_dims == 1)
            x.log_decay = broadcast_to(cast(x.log_decay.detach(), DType::f32), {2, tokens, 3}).detach().set_requires_grad();
          const Tensors got = results_and_gradients(x), want = test::plain(results_and_gradients)(x);
          for (std::size_t i = 0; i < got.size(); ++i) {
            INFO("tensor " << i);
            CHECK(all(isfinite(got[i])).item<bool>());
            CHECK(relative_error(got[i], want[i]) < (dtype == DType::bf16 ? 0x1.8p-8 : 0x1.8p-11));
          }
        }
  });
}

}  // namespace tern
