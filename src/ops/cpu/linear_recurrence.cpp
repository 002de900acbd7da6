#include <cstring>
#include <numeric>

#include "ops/cpu/rows.h"
#include "ops/kernels/recurrence.h"
#include "tensor/dispatch.h"

// Linear recurrence on the CPU, token by token: the state stays in the cache, and a token is a few passes over it.
//
// Blocks: a column of the state depends on that channel of v alone, so columns are recurrences of their own. A unit of work is a head's
// state for as many value channels as fill two registers, in rows (Dk, channels), with zeros beyond the last channel. So k S and q S are
// sums of rows, and only backward's sums over channels, for the gradients of q, k and the decay, are sums within registers.
//
// Backward goes through chunks of tokens from the last to the first. The states at their borders come from a forward pass; within a chunk
// those of its tokens are computed again. All other memory grows with a chunk, not with T.
namespace tern::kernels {

namespace {

/// Numbers for the value channels of a block.
template <class C>
struct Channels {
  typedef C Vector __attribute__((vector_size(loops::vector_bytes)));
  static constexpr int parts = 2, count = parts * int(sizeof(Vector) / sizeof(C));
  Vector part[parts];

  /// The first n from memory, and zeros.
  static Channels load(const C* from, std::int64_t n) {
    Channels x{};
    std::memcpy(&x, from, static_cast<std::size_t>(n) * sizeof(C));
    return x;
  }
  void store(C* to, std::int64_t n) const { std::memcpy(to, this, static_cast<std::size_t>(n) * sizeof(C)); }
  [[gnu::always_inline]] Vector folded() const { return part[0] + part[1]; }

  [[gnu::always_inline]] friend Channels operator+(const Channels& a, const Channels& b) {
    return {{a.part[0] + b.part[0], a.part[1] + b.part[1]}};
  }
  [[gnu::always_inline]] friend Channels operator-(const Channels& a, const Channels& b) {
    return {{a.part[0] - b.part[0], a.part[1] - b.part[1]}};
  }
  [[gnu::always_inline]] friend Channels operator*(const Channels& a, const Channels& b) {
    return {{a.part[0] * b.part[0], a.part[1] * b.part[1]}};
  }
  [[gnu::always_inline]] friend Channels operator*(C a, const Channels& b) { return {{a * b.part[0], a * b.part[1]}}; }
};

template <class C>
using Vector = typename Channels<C>::Vector;
template <class C>
constexpr int lanes = int(sizeof(Vector<C>) / sizeof(C));

/// Sums of the lanes of x and y, by halves of 2 H lanes: those of x in the first H of each, those of y in the others.
template <int H, class V, int... Lane>
[[gnu::always_inline]] inline V fold_two(const V& x, const V& y, std::integer_sequence<int, Lane...>) {
  constexpr int n = int(sizeof...(Lane));
  return V(__builtin_shufflevector(x, y, (Lane % (2 * H) < H ? Lane : n + Lane - H)...)) +
         V(__builtin_shufflevector(x, y, (Lane % (2 * H) < H ? Lane + H : n + Lane)...));
}
/// The sum of each of as many rows as there are lanes: a tree of pairs takes 3 instructions a row.
template <class C, int H = 1>
[[gnu::always_inline]] inline Vector<C> fold_rows(const Vector<C>* rows) {
  if constexpr (H == lanes<C>) return *rows;
  else return fold_two<H>(fold_rows<C, 2 * H>(rows), fold_rows<C, 2 * H>(rows + H), std::make_integer_sequence<int, lanes<C>>());
}
/// to[i] += the sum of row i of n. The rows up to a multiple of the lanes are there, and zeros.
template <class C>
void add_sums(const Vector<C>* rows, std::int64_t n, C* to) {
  for (std::int64_t i = 0; i < n; i += lanes<C>) {
    const Vector<C> sums = fold_rows<C>(rows + i);
    for (std::int64_t l = 0; l < std::min<std::int64_t>(lanes<C>, n - i); ++l) to[i + l] += sums[l];
  }
}

/// Tokens of a chunk: their states fill about 256 KiB, a part of the L2 cache.
template <class C>
std::int64_t chunk_of(std::int64_t width) {
  constexpr std::int64_t bytes = 1 << 18;
  return std::clamp<std::int64_t>(bytes / (std::max<std::int64_t>(width, 1) * std::int64_t(sizeof(Channels<C>))), 8, 64);
}

/// Rows of a head in a view (B, T, H, D): one for each token.
template <class C>
struct Tokens {
  C* first = nullptr;
  std::int64_t step = 0;

  Tokens(const View& x, std::int64_t b, std::int64_t h) {
    if (!x.data) return;
    first = x.as<C>() + b * x.strides[0] + h * x.strides[2];
    step = x.strides[1];
  }
  C* operator[](std::int64_t t) const { return first + t * step; }
};

/// Additions to a state: v by k; of the delta rule beta (v - k S') by k; v by k and read S' by write.
enum class Rule { value, delta, read };

/// A token: decay of each key channel, key, query, the keys that read and write, and the rate of the delta rule.
template <class C>
struct Token {
  const C *a, *k, *q, *read, *write;
  C beta;
};

/// Operands of a head.
template <class C>
struct Head {
  Tokens<const C> q, k, v, decay, beta, read, write;
  std::int64_t width, channels;  ///< Dk, and numbers of a token's decay
  C* buffer;                     ///< Dk elements

  template <class Kernel>
  Head(const Kernel& a, std::int64_t b, std::int64_t h, C* buffer_)
      : q(a.q, b, h),
        k(a.k, b, h),
        v(a.v, b, h),
        decay(a.decay, b, h),
        beta(a.beta, b, h),
        read(a.keys.read, b, h),
        write(a.keys.write, b, h),
        width(a.q.shape[3]),
        channels(a.decay.data ? a.decay.shape[3] : 0),
        buffer(buffer_) {}

  /// Valid until the next call.
  Token<C> operator[](std::int64_t t) const {
    const C* a = decay[t];
    if (channels != width) {
      std::fill_n(buffer, width, channels == 0 ? C(1) : *a);
      a = buffer;
    }
    return {a, k[t], q[t], read[t], write[t], beta.first ? *beta[t] : C(1)};
  }
};

/// Channels first .. first + n - 1 of a state (Dk, Dv), or zeros where there is none.
template <class C>
void load_state(const C* state, std::int64_t width, std::int64_t columns, std::int64_t first, std::int64_t n, Channels<C>* s) {
  for (std::int64_t i = 0; i < width; ++i) s[i] = state ? Channels<C>::load(state + i * columns + first, n) : Channels<C>();
}
template <class C>
void store_state(const Channels<C>* s, std::int64_t width, std::int64_t columns, std::int64_t first, std::int64_t n, C* state) {
  for (std::int64_t i = 0; i < width; ++i) s[i].store(state + i * columns + first, n);
}

/// The factor of k^T in the next state: v, or beta (v - k decayed). `kept`: as of advance_kept().
template <class C, Rule rule>
Channels<C> written(const Token<C>& x, const Channels<C>& v, const Channels<C>& kept) {
  return rule == Rule::delta ? x.beta * kept : v;
}
/// Row i of the next state.
template <class C, Rule rule>
Channels<C> next_row(const Token<C>& x, std::int64_t i, const Channels<C>& decayed, const Channels<C>& u, const Channels<C>& read) {
  const Channels<C> y = decayed + x.k[i] * u;
  if constexpr (rule == Rule::read) return y + x.write[i] * read;
  else return y;
}

/// One token, s = a s + k^T u, and what the rule adds. Returns q s.
template <class C, Rule rule>
Channels<C> advance(const Token<C>& x, const Channels<C>& v, Channels<C>* s, std::int64_t width) {
  const C* const key = rule == Rule::delta ? x.k : x.read;
  Channels<C> read{}, y{};
  if constexpr (rule != Rule::value)
    for (std::int64_t i = 0; i < width; ++i) read = read + key[i] * (x.a[i] * s[i]);
  const Channels<C> u = written<C, rule>(x, v, v - read);
  for (std::int64_t i = 0; i < width; ++i) {
    const Channels<C> next = next_row<C, rule>(x, i, x.a[i] * s[i], u, read);
    s[i] = next;
    y = y + x.q[i] * next;
  }
  return y;
}

/// The same for backward: keeps a s in `decayed`, and returns v - k decayed for the delta rule, else read decayed, if there is a read.
template <class C, Rule rule>
Channels<C> advance_kept(const Token<C>& x, const Channels<C>& v, Channels<C>* s, Channels<C>* decayed, std::int64_t width) {
  const C* const key = rule == Rule::delta ? x.k : x.read;
  Channels<C> read{};
  for (std::int64_t i = 0; i < width; ++i) {
    const Channels<C> y = x.a[i] * s[i];
    decayed[i] = y;
    if constexpr (rule == Rule::value) s[i] = y + x.k[i] * v;
    else read = read + key[i] * y;
  }
  if constexpr (rule == Rule::value) return read;
  const Channels<C> kept = rule == Rule::delta ? v - read : read, u = written<C, rule>(x, v, kept);
  for (std::int64_t i = 0; i < width; ++i) s[i] = next_row<C, rule>(x, i, decayed[i], u, read);
  return kept;
}

/// Gradients of a token's query, key, logarithms of the decay, and keys that read and write, of which the lanes are to be added.
template <class C>
struct Partial {
  Vector<C>*dq, *dk, *da, *dread, *dwrite;
};

/// Gradients of one token, from dy and from d, the gradient of the state after it, which becomes that of the state before it. `decayed` and
/// `kept` are those of advance_kept(). Returns the gradient of u.
template <class C, Rule rule>
Channels<C> retreat(const Token<C>& x, const Channels<C>& v, const Channels<C>* decayed, const Channels<C>& kept, const Channels<C>& dy,
                    Channels<C>* d, const Partial<C>& sums, std::int64_t width) {
  const Channels<C> u = written<C, rule>(x, v, kept);
  Channels<C> du{}, dread{};
  for (std::int64_t i = 0; i < width; ++i) {
    const Channels<C> g = d[i] + x.q[i] * dy;
    sums.dq[i] = (next_row<C, rule>(x, i, decayed[i], u, kept) * dy).folded();
    du = du + x.k[i] * g;
    if constexpr (rule == Rule::value) {
      sums.dk[i] = (g * u).folded();
      sums.da[i] = (g * decayed[i]).folded();
      d[i] = x.a[i] * g;
    } else {
      if constexpr (rule == Rule::read) {
        dread = dread + x.write[i] * g;
        sums.dwrite[i] = (g * kept).folded();
      }
      d[i] = g;
    }
  }
  if constexpr (rule == Rule::value) return du;
  if constexpr (rule == Rule::delta) dread = -x.beta * du;  // that of k decayed
  const C* const key = rule == Rule::delta ? x.k : x.read;
  for (std::int64_t i = 0; i < width; ++i) {
    const Channels<C> g = d[i] + key[i] * dread;
    sums.dk[i] = (rule == Rule::delta ? d[i] * u + decayed[i] * dread : d[i] * u).folded();
    if constexpr (rule == Rule::read) sums.dread[i] = (decayed[i] * dread).folded();
    sums.da[i] = (g * decayed[i]).folded();
    d[i] = x.a[i] * g;
  }
  return du;
}

/// Sizes of a call, and the threads among which its heads, or their blocks, are shared.
template <class C>
struct Sizes {
  std::int64_t tokens, heads, width, columns, units;

  Sizes(const View& q, const View& v)
      : tokens(q.shape[1]), heads(q.shape[2]), width(q.shape[3]), columns(v.shape[3]), units(q.shape[0] * q.shape[2]) {}
  std::int64_t blocks() const { return (columns + Channels<C>::count - 1) / Channels<C>::count; }
  std::int64_t threads(std::int64_t count) const {
    const std::int64_t by_work = units * columns * width * tokens / loops::stream_grain;
    return std::clamp<std::int64_t>(by_work, 1, std::clamp<std::int64_t>(count, 1, num_threads()));
  }
};

template <class C, Rule rule>
void forward(const LinearRecurrence& a) {
  const Sizes<C> sizes(a.q, a.v);
  const std::int64_t width = sizes.width, columns = sizes.columns, blocks = sizes.blocks();
  const std::int64_t threads = sizes.threads(sizes.units * blocks);
  const loops::Scratch<Channels<C>> states(threads * width, a.y.stream);
  const loops::Scratch<C> buffers(threads * width, a.y.stream);
  loops::share_dynamically(sizes.units * blocks, threads, [&](std::int64_t unit, std::int64_t thread) {
    const std::int64_t first = unit % blocks * Channels<C>::count, head = unit / blocks;
    const std::int64_t n = std::min<std::int64_t>(Channels<C>::count, columns - first);
    const Head<C> x(a, head / sizes.heads, head % sizes.heads, buffers.data() + thread * width);
    const Tokens<C> y(a.y, head / sizes.heads, head % sizes.heads);
    Channels<C>* const s = states.data() + thread * width;
    load_state(a.initial.data ? a.initial.as<const C>() + head * width * columns : nullptr, width, columns, first, n, s);
    for (std::int64_t t = 0; t < sizes.tokens; ++t) {
      advance<C, rule>(x[t], Channels<C>::load(x.v[t] + first, n), s, width).store(y[t] + first, n);
    }
    store_state(s, width, columns, first, n, a.state.as<C>() + head * width * columns);
  });
}

/// Gradients of a head.
template <class C, Rule rule>
class HeadGradient {
 public:
  /// Blocks' rows and vectors that a thread needs, the latter zeros.
  static std::int64_t states_for(const Sizes<C>& s) {
    const std::int64_t chunk = chunk_of<C>(s.width);
    return (1 + chunk + (s.tokens + chunk - 1) / chunk) * s.width + chunk;
  }
  static std::int64_t vectors_for(const Sizes<C>& s) { return 5 * round_up(s.width, std::int64_t(lanes<C>)); }

  HeadGradient(const LinearRecurrenceGrad& a, const Sizes<C>& sizes, std::int64_t head, Channels<C>* states, Vector<C>* sums, C* buffer)
      : a_(a),
        sizes_(sizes),
        offset_(head * sizes.width * sizes.columns),
        x_(a, head / sizes.heads, head % sizes.heads, buffer),
        dy_(a.dy, head / sizes.heads, head % sizes.heads),
        dq_(a.dq, head / sizes.heads, head % sizes.heads),
        dk_(a.dk, head / sizes.heads, head % sizes.heads),
        dv_(a.dv, head / sizes.heads, head % sizes.heads),
        da_(a.dlog_decay, head / sizes.heads, head % sizes.heads),
        dbeta_(a.dbeta, head / sizes.heads, head % sizes.heads),
        dread_(a.dkeys.read, head / sizes.heads, head % sizes.heads),
        dwrite_(a.dkeys.write, head / sizes.heads, head % sizes.heads),
        chunk_(chunk_of<C>(sizes.width)),
        gradient_(states),
        decayed_(gradient_ + sizes.width),
        kept_(decayed_ + chunk_ * sizes.width),
        borders_(kept_ + chunk_),
        sums_{sums, sums + vectors_for(sizes) / 5, sums + vectors_for(sizes) / 5 * 2, sums + vectors_for(sizes) / 5 * 3,
              sums + vectors_for(sizes) / 5 * 4} {
    for (std::int64_t t = 0; t < sizes_.tokens; ++t) {
      std::fill_n(dq_[t], sizes_.width, C(0));
      std::fill_n(dk_[t], sizes_.width, C(0));
      std::fill_n(da_[t], x_.channels, C(0));
      if (rule == Rule::delta) *dbeta_[t] = 0;
      if (rule == Rule::read) std::fill_n(dread_[t], sizes_.width, C(0)), std::fill_n(dwrite_[t], sizes_.width, C(0));
    }
  }

  /// Value channels first .. first + n - 1.
  void block(std::int64_t first, std::int64_t n) {
    const std::int64_t width = sizes_.width, chunks = (sizes_.tokens + chunk_ - 1) / chunk_;
    if (chunks > 0) load_state(head_of(a_.initial), width, sizes_.columns, first, n, borders_);
    for (std::int64_t c = 0; c + 1 < chunks; ++c) {
      Channels<C>* const s = std::copy_n(borders_ + c * width, width, borders_ + (c + 1) * width) - width;
      for (std::int64_t t = c * chunk_; t < (c + 1) * chunk_; ++t) advance<C, rule>(x_[t], Channels<C>::load(x_.v[t] + first, n), s, width);
    }
    load_state(head_of(a_.dstate), width, sizes_.columns, first, n, gradient_);
    for (std::int64_t c = chunks - 1; c >= 0; --c) backward_chunk(c, first, n);
    if (a_.dinitial.data) store_state(gradient_, width, sizes_.columns, first, n, a_.dinitial.as<C>() + offset_);
  }

 private:
  const C* head_of(const View& states) const { return states.data ? states.as<const C>() + offset_ : nullptr; }

  void backward_chunk(std::int64_t c, std::int64_t first, std::int64_t n) {
    const std::int64_t width = sizes_.width, begin = c * chunk_, end = std::min(begin + chunk_, sizes_.tokens);
    for (std::int64_t t = begin; t < end; ++t)
      kept_[t - begin] =
          advance_kept<C, rule>(x_[t], Channels<C>::load(x_.v[t] + first, n), borders_ + c * width, decayed_ + (t - begin) * width, width);
    for (std::int64_t t = end - 1; t >= begin; --t) {
      const Token<C> x = x_[t];
      const Channels<C>& kept = kept_[t - begin];
      const Channels<C> du = retreat<C, rule>(x, Channels<C>::load(x_.v[t] + first, n), decayed_ + (t - begin) * width, kept,
                                              Channels<C>::load(dy_[t] + first, n), gradient_, sums_, width);
      (rule == Rule::delta ? x.beta * du : du).store(dv_[t] + first, n);
      add_sums<C>(sums_.dq, width, dq_[t]);
      add_sums<C>(sums_.dk, width, dk_[t]);
      if (x_.channels == width) {
        add_sums<C>(sums_.da, width, da_[t]);
      } else if (x_.channels == 1) {
        *da_[t] += total(std::accumulate(sums_.da, sums_.da + width, Vector<C>{}));
      }
      if (rule == Rule::delta) *dbeta_[t] += total((du * kept).folded());
      if (rule == Rule::read) add_sums<C>(sums_.dread, width, dread_[t]), add_sums<C>(sums_.dwrite, width, dwrite_[t]);
    }
  }
  static C total(const Vector<C>& x) { return loops::fold_register<loops::Sum>(x); }

  const LinearRecurrenceGrad& a_;
  const Sizes<C>& sizes_;
  std::int64_t offset_;
  Head<C> x_;
  Tokens<const C> dy_;
  Tokens<C> dq_, dk_, dv_, da_, dbeta_, dread_, dwrite_;
  std::int64_t chunk_;
  Channels<C>*gradient_, *decayed_, *kept_, *borders_;
  Partial<C> sums_;
};

template <class C, Rule rule>
void backward(const LinearRecurrenceGrad& a) {
  using Gradient = HeadGradient<C, rule>;
  const Sizes<C> sizes(a.q, a.v);
  const std::int64_t threads = sizes.threads(sizes.units), count = Gradient::states_for(sizes), vectors = Gradient::vectors_for(sizes);
  const loops::Scratch<Channels<C>> states(threads * count, a.dq.stream);
  const loops::Scratch<Vector<C>> sums(threads * vectors, a.dq.stream);
  const loops::Scratch<C> buffers(threads * sizes.width, a.dq.stream);
  std::fill_n(sums.data(), threads * vectors, Vector<C>{});
  loops::share_dynamically(sizes.units, threads, [&](std::int64_t head, std::int64_t thread) {
    Gradient gradient(a, sizes, head, states.data() + thread * count, sums.data() + thread * vectors,
                      buffers.data() + thread * sizes.width);
    for (std::int64_t first = 0; first < sizes.columns; first += Channels<C>::count)
      gradient.block(first, std::min<std::int64_t>(Channels<C>::count, sizes.columns - first));
  });
}

}  // namespace

void LinearRecurrence::run(Cpu) const {
  dispatch_f32_f64(y.dtype, "linear_recurrence", [&]<class C>() {
    if (beta.data) forward<C, Rule::delta>(*this);
    else if (keys.read.data) forward<C, Rule::read>(*this);
    else forward<C, Rule::value>(*this);
  });
}

void LinearRecurrenceGrad::run(Cpu) const {
  dispatch_f32_f64(dq.dtype, "linear_recurrence", [&]<class C>() {
    if (beta.data) backward<C, Rule::delta>(*this);
    else if (keys.read.data) backward<C, Rule::read>(*this);
    else backward<C, Rule::value>(*this);
  });
}

}  // namespace tern::kernels
