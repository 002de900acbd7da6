#include "ops/kernels/optimizer.h"

#include "catch.h"
#include "twin.h"

namespace tern {

using namespace cuda_test;

namespace {

constexpr std::int64_t sizes[] = {0, 1, 31, 33, 1025, 300001, 1200000};

}  // namespace

TEST_CASE("adam agrees with the CPU over several steps", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t n : sizes)
      for (int shift : {0, 1})
        for (bool decoupled : {false, true}) {
          INFO(name(dtype) << ", " << n << ", shift " << shift);
          const DType kept = dtype == DType::f64 ? DType::f64 : DType::f32;
          const bool is_half = size_of(dtype) == 2;
          Twin p(dtype, {n}, {1}, shift), g(dtype, {n}), m(kept, {n}), v(kept, {n}), master(kept, {n}, {1}, shift), lr(DType::f32, {1}),
              step(DType::f32, {1});
          Twin factor(DType::f32, {1}), advance(DType::f32, {1});
          p.randomize(1).upload();
          master.randomize(3).upload();
          g.randomize(2, 0.5, 2).upload();  // far from -weight_decay * p: a first step divides what is left by its own size
          for (std::int64_t i = 0; i < n; ++i) {
            m.set(i, 0);
            v.set(i, 0);
          }
          m.upload();
          v.upload();
          lr.set(0, 0.02).upload();
          factor.set(0, 0.75).upload();
          const auto arguments = [&](auto view) {
            kernels::AdamArguments a{view(p), view(g), view(m), view(v), view(lr), view(step)};
            a.weight_decay = 0.1;
            a.decoupled = decoupled;
            if (is_half) a.master = view(master);
            if (shift == 1) a.scale = {view(factor), view(advance)};
            return a;
          };
          for (int t = 1; t <= (n > 2000 ? 1 : 3); ++t) {
            step.set(0, t).upload();
            advance.set(0, t != 2).upload();  // the second is skipped
            kernels::adam(Cpu{}, arguments([](const Twin& twin) { return twin.host(); }));
            kernels::adam(Cuda{}, arguments([](const Twin& twin) { return twin.device(); }));
          }
          CHECK(p.difference(4 * tolerance(dtype)) == "");
          CHECK(m.difference(tolerance(kept)) == "");
          CHECK(v.difference(tolerance(kept)) == "");
          CHECK(master.difference(is_half ? 4 * tolerance(kept) : 0) == "");
        }
}

TEST_CASE("lion agrees with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t n : sizes)
      for (int shift : {0, 1}) {
        INFO(name(dtype) << ", " << n << ", shift " << shift);
        const DType kept = dtype == DType::f64 ? DType::f64 : DType::f32;
        const bool is_half = size_of(dtype) == 2;
        Twin p(dtype, {n}, {1}, shift), g(dtype, {n}), m(kept, {n}), master(kept, {n}, {1}, shift), lr(DType::f32, {1}),
            factor(DType::f32, {1}), advance(DType::f32, {1});
        p.randomize(1).upload();
        g.randomize(2, 0.5, 2).upload();  // far from 0, where rounding would choose the sign
        m.randomize(3, 0.5, 2).upload();
        master.randomize(4).upload();
        lr.set(0, 0.125).upload();
        factor.set(0, 0.75).upload();
        const auto arguments = [&](auto view) {
          kernels::LionArguments a{view(p), view(g), view(m), view(lr)};
          a.weight_decay = 0.1;
          if (is_half) a.master = view(master);
          if (shift == 1) a.scale = {view(factor), view(advance)};
          return a;
        };
        for (int t = 1; t <= 2; ++t) {
          advance.set(0, t != 2).upload();  // the second is skipped
          kernels::lion(Cpu{}, arguments([](const Twin& twin) { return twin.host(); }));
          kernels::lion(Cuda{}, arguments([](const Twin& twin) { return twin.device(); }));
        }
        CHECK(p.difference(4 * tolerance(dtype)) == "");
        CHECK(m.difference(tolerance(kept)) == "");
        CHECK(master.difference(is_half ? 4 * tolerance(kept) : 0) == "");
      }
}

TEST_CASE("sgd agrees with the CPU", "[cuda]") {
  for (DType dtype : floats)
    for (std::int64_t n : sizes)
      for (int kind = 0; kind < 3; ++kind) {  // plain, momentum, Nesterov
        INFO(name(dtype) << ", " << n << ", kind " << kind);
        const DType kept = dtype == DType::f64 ? DType::f64 : DType::f32;
        const bool is_half = size_of(dtype) == 2;
        Twin p(dtype, {n}), g(dtype, {n}), buffer(kept, {n}, {1}, std::max(kind - 1, 0)), master(kept, {n}), lr(DType::f32, {1}),
            factor(DType::f32, {1});
        p.randomize(1).upload();
        g.randomize(2).upload();
        buffer.randomize(3).upload();
        master.randomize(4).upload();
        lr.set(0, 0.1).upload();
        factor.set(0, 0.75).upload();
        const auto arguments = [&](auto view) {
          kernels::SgdArguments a{view(p), view(g), kind > 0 ? view(buffer) : View{}, view(lr)};
          a.momentum_factor = 0.9;
          a.weight_decay = 0.01;
          a.nesterov = kind == 2;
          if (is_half) a.master = view(master);
          if (kind != 1) a.scale.factor = view(factor);
          return a;
        };
        kernels::sgd(Cpu{}, arguments([](const Twin& twin) { return twin.host(); }));
        kernels::sgd(Cuda{}, arguments([](const Twin& twin) { return twin.device(); }));
        CHECK(p.difference(tolerance(dtype)) == "");
        CHECK(buffer.difference(kind > 0 ? tolerance(kept) : 0) == "");
        CHECK(master.difference(is_half ? tolerance(kept) : 0) == "");
      }
}

}  // namespace tern
