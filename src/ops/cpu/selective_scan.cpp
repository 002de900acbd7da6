#include "ops/cpu/loops.h"
#include "ops/kernels/math.h"
#include "ops/kernels/recurrence.h"
#include "tensor/dispatch.h"
#include "tensor/sizes.h"

// Selective scan on the CPU, token by token. A unit of work is a group of channels of one row: its states, (N, channels), stay in the L1
// cache, and all loops run along the channels, each a lane, with zeros beyond the last channel. exp takes most of the time.
//
// Backward goes through chunks of tokens from the last to the first. The states at their borders come from a forward pass; within a chunk
// states and decays of its tokens are computed again, and kept.
namespace tern::kernels {

namespace {

constexpr std::int64_t lanes = SelectiveScanGrad::group, chunk = 32;

/// Numbers of a group's channels.
template <class C>
struct alignas(64) Group {
  C lane[lanes];

  static Group load(const C* from, std::int64_t n) {
    Group x{};
    for (std::int64_t l = 0; l < n; ++l) x.lane[l] = from[l];
    return x;
  }
  void store(C* to, std::int64_t n) const {
    for (std::int64_t l = 0; l < n; ++l) to[l] = lane[l];
  }
};

/// A group of channels of a row.
template <class C>
struct Unit {
  std::int64_t tokens, channels, size, row, first, n;

  template <class Kernel>
  Unit(const Kernel& k, std::int64_t unit)
      : tokens(k.x.shape[1]),
        channels(k.x.shape[2]),
        size(k.a.shape[1]),
        row(unit / ceil_div(channels, lanes)),
        first(unit % ceil_div(channels, lanes) * lanes),
        n(std::min(lanes, channels - first)) {}

  /// The group's numbers of a token in (B, T, D), and the N numbers of one in (B, T, N).
  C* signal(const View& x, std::int64_t t) const { return x.as<C>() + (row * tokens + t) * channels + first; }
  C* keys(const View& x, std::int64_t t) const { return x.as<C>() + (row * tokens + t) * size; }
  /// (channels, N) of a group to or from (N, channels).
  void load_states(const C* from, Group<C>* to) const {
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t l = 0; l < lanes; ++l) to[i].lane[l] = l < n ? from[l * size + i] : C(0);
  }
  void store_states(const Group<C>* from, C* to) const {
    for (std::int64_t i = 0; i < size; ++i)
      for (std::int64_t l = 0; l < n; ++l) to[l * size + i] = from[i].lane[l];
  }
  C* states(const View& x) const { return x.as<C>() + (row * channels + first) * size; }
};

/// after = exp(dt a) before + dt x b for one of N, with the decay; the same groups may be before and after.
template <class C>
[[gnu::flatten]] inline void advance(const Group<C>& dt, const Group<C>& a, const Group<C>& before, const Group<C>& u, C b, Group<C>& decay,
                                     Group<C>& after) {
#pragma omp simd
  for (std::int64_t l = 0; l < lanes; ++l) {
    decay.lane[l] = math::exp(dt.lane[l] * a.lane[l]);
    after.lane[l] = decay.lane[l] * before.lane[l] + u.lane[l] * b;
  }
}
template <class C>
[[gnu::always_inline]] inline Group<C> product(const Group<C>& x, const Group<C>& y) {
  Group<C> result;
#pragma omp simd
  for (std::int64_t l = 0; l < lanes; ++l) result.lane[l] = x.lane[l] * y.lane[l];
  return result;
}

std::int64_t threads_for(const View& x, std::int64_t units, std::int64_t size) {
  return std::clamp<std::int64_t>(units * lanes * x.shape[1] * size / loops::function_grain, 1,
                                  std::min<std::int64_t>(units, num_threads()));
}

template <class C>
void forward(const SelectiveScan& k) {
  const std::int64_t size = k.a.shape[1], units = k.x.shape[0] * ceil_div(k.x.shape[2], lanes);
  if (units == 0) return;
  const std::int64_t threads = threads_for(k.x, units, size);
  const loops::Scratch<Group<C>> scratch(threads * 2 * size, k.y.stream);
  loops::share_dynamically(units, threads, [&](std::int64_t at, std::int64_t thread) {
    const Unit<C> unit(k, at);
    Group<C>*const h = scratch.data() + thread * 2 * size, *const a = h + size;
    unit.load_states(unit.states(k.initial), h);
    unit.load_states(k.a.as<C>() + unit.first * size, a);
    for (std::int64_t t = 0; t < unit.tokens; ++t) {
      const Group<C> dt = Group<C>::load(unit.signal(k.dt, t), unit.n);
      const Group<C> u = product(dt, Group<C>::load(unit.signal(k.x, t), unit.n));
      const C *const b = unit.keys(k.b, t), *const c = unit.keys(k.c, t);
      Group<C> y{}, decay;
      for (std::int64_t i = 0; i < size; ++i) {
        advance(dt, a[i], h[i], u, b[i], decay, h[i]);
#pragma omp simd
        for (std::int64_t l = 0; l < lanes; ++l) y.lane[l] += c[i] * h[i].lane[l];
      }
      y.store(unit.signal(k.y, t), unit.n);
    }
    unit.store_states(h, unit.states(k.state));
  });
}

/// Backward of a group, in its memory: (N) groups each of a, da and the gradient of the state, and states and decays of a chunk's tokens.
template <class C>
class GroupGradient {
 public:
  static std::int64_t groups(std::int64_t tokens, std::int64_t size) { return (3 + ceil_div(tokens, chunk) + 2 * chunk + 1) * size; }

  GroupGradient(const SelectiveScanGrad& k, std::int64_t at, Group<C>* memory)
      : k_(k), unit_(k, at), size_(unit_.size), a_(memory), da_(a_ + size_), g_(da_ + size_), borders_(g_ + size_) {
    states_ = borders_ + ceil_div(unit_.tokens, chunk) * size_;
    decays_ = states_ + (chunk + 1) * size_;
    part_ = (unit_.first / lanes * k.x.shape[0] + unit_.row) * unit_.tokens * size_;
  }

  void run() {
    unit_.load_states(k_.a.as<C>() + unit_.first * size_, a_);
    std::fill_n(da_, size_, Group<C>{});
    if (k_.dstate.data) unit_.load_states(unit_.states(k_.dstate), g_);
    else std::fill_n(g_, size_, Group<C>{});
    unit_.load_states(unit_.states(k_.initial), states_);
    for (std::int64_t first = 0; first < unit_.tokens; first += chunk) {
      std::copy_n(states_, size_, borders_ + first / chunk * size_);
      for (std::int64_t t = first; t < std::min(first + chunk, unit_.tokens); ++t) advance_token(t, states_, decays_, states_);
    }
    for (std::int64_t first = (ceil_div(unit_.tokens, chunk) - 1) * chunk; first >= 0; first -= chunk) {
      const std::int64_t end = std::min(first + chunk, unit_.tokens);
      std::copy_n(borders_ + first / chunk * size_, size_, states_);
      for (std::int64_t t = first; t < end; ++t) {
        Group<C>* const before = states_ + (t - first) * size_;
        advance_token(t, before, decays_ + (t - first) * size_, before + size_);
      }
      for (std::int64_t t = end - 1; t >= first; --t) return_token(t, states_ + (t - first) * size_, decays_ + (t - first) * size_);
    }
    unit_.store_states(g_, unit_.states(k_.dinitial));
    unit_.store_states(da_, unit_.states(k_.da));
  }

 private:
  void advance_token(std::int64_t t, const Group<C>* before, Group<C>* decays, Group<C>* after) const {
    const Group<C> dt = Group<C>::load(unit_.signal(k_.dt, t), unit_.n);
    const Group<C> u = product(dt, Group<C>::load(unit_.signal(k_.x, t), unit_.n));
    const C* const b = unit_.keys(k_.b, t);
    for (std::int64_t i = 0; i < size_; ++i) advance(dt, a_[i], before[i], u, b[i], decays[i], after[i]);
  }
  /// Takes g_, the gradient of the state after the token but for what the token itself reads, to before it.
  void return_token(std::int64_t t, const Group<C>* before, const Group<C>* decays) {
    const Group<C> dt = Group<C>::load(unit_.signal(k_.dt, t), unit_.n), x = Group<C>::load(unit_.signal(k_.x, t), unit_.n),
                   dy = Group<C>::load(unit_.signal(k_.dy, t), unit_.n), u = product(dt, x);
    const C *const b = unit_.keys(k_.b, t), *const c = unit_.keys(k_.c, t);
    C *const db = k_.db.as<C>() + part_ + t * size_, *const dc = k_.dc.as<C>() + part_ + t * size_;
    const Group<C>* const after = before + size_;
    Group<C> ddt{}, du{};
    for (std::int64_t i = 0; i < size_; ++i) {
      C of_b = 0, of_c = 0;
#pragma omp simd reduction(+ : of_b, of_c)
      for (std::int64_t l = 0; l < lanes; ++l) {
        const C g = g_[i].lane[l] + c[i] * dy.lane[l], kept = g * decays[i].lane[l], of_exponent = kept * before[i].lane[l];
        of_c += dy.lane[l] * after[i].lane[l];
        of_b += g * u.lane[l];
        ddt.lane[l] += of_exponent * a_[i].lane[l];
        da_[i].lane[l] += of_exponent * dt.lane[l];
        du.lane[l] += g * b[i];
        g_[i].lane[l] = kept;
      }
      db[i] = of_b;
      dc[i] = of_c;
    }
    for (std::int64_t l = 0; l < lanes; ++l) ddt.lane[l] += du.lane[l] * x.lane[l];
    ddt.store(unit_.signal(k_.ddt, t), unit_.n);
    product(du, dt).store(unit_.signal(k_.dx, t), unit_.n);
  }

  const SelectiveScanGrad& k_;
  const Unit<C> unit_;
  const std::int64_t size_;
  Group<C>*a_, *da_, *g_, *borders_, *states_, *decays_;
  std::int64_t part_;  ///< where the group's part of db and dc begins
};

template <class C>
void backward(const SelectiveScanGrad& k) {
  const std::int64_t size = k.a.shape[1], units = k.x.shape[0] * ceil_div(k.x.shape[2], lanes);
  if (units == 0) return;
  const std::int64_t threads = threads_for(k.x, units, size), groups = GroupGradient<C>::groups(k.x.shape[1], size);
  const loops::Scratch<Group<C>> memory(threads * groups, k.dx.stream);
  loops::share_dynamically(units, threads,
                           [&](std::int64_t at, std::int64_t thread) { GroupGradient<C>(k, at, memory.data() + thread * groups).run(); });
}

}  // namespace

void SelectiveScan::run(Cpu) const {
  dispatch_f32_f64(y.dtype, "selective_scan", [&]<class C>() { forward<C>(*this); });
}

void SelectiveScanGrad::run(Cpu) const {
  dispatch_f32_f64(dx.dtype, "selective_scan", [&]<class C>() { backward<C>(*this); });
}

}  // namespace tern::kernels
