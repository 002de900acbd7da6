#include <bit>
#include <vector>

#include "cuda/runtime/allocator.h"
#include "cuda/runtime/launch.h"
#include "ops/kernels/recurrence.h"
#include "tensor/dispatch.h"

// Linear recurrence on a GPU token by token, for f32 and f64, every rule and heads of any size: the kernels in chunks (chunked_forward.cu)
// are for 16 bits and narrow heads.
//
// Every kernel goes along the tokens with one vector of a state in registers, a column S[:, j] or a row S[i, :], which is spread over some
// lanes of a warp. Which of the two: the one whose neighbours it needs nothing from, so that there are only sums over its own elements.
//
//   forward          columns   S, y_j = q S[:, j], and what the token read, r_j
//   value_gradients  columns   dS from the last token, of v and of r
//   query_gradients  rows      S once more, dq_i = S[i, :] dy, and of read
//   key_gradients    rows      dS once more, dk_i = dS[i, :] v, of write, and of the decay
//
// Gradients of the decays: with R the sum of the logarithms up to a token, S is e^R times a state that has no decay, which q e^R and read
// e^R read, and k e^-R and write e^-R write. So R has the gradient q dq + read dread - k dk - write dwrite, and a logarithm the sum of
// those from its token on.
namespace tern::gpu::by_token {

namespace {

constexpr int threads = 128;
constexpr std::int64_t widest = 512;  // a warp's

/// Additions to S': v by k; beta (v - k S') by k; v by k and read S' by write.
enum class Rule { value, delta, read };

/// (B, T, H, D), D contiguous, or (B, T, H).
template <class C>
struct Tokens {
  C* data = nullptr;
  std::int64_t batch = 0, token = 0, head = 0;

  Tokens() = default;
  Tokens(const View& x) : data(x.as<C>()) {  // NOLINT(google-explicit-constructor)
    if (data) batch = x.strides[0], token = x.strides[1], head = x.strides[2];
  }
};

struct Sizes {
  std::int64_t batch;
  int tokens, heads, keys, values;
  int decays;  ///< of a token: 0, 1, or one for each key
};

/// A thread's part of vectors own, own + 1, ... of a head: elements of `size` that lie `lanes` groups apart, from group `lane` on.
struct Place {
  std::int64_t sequence;  ///< the head, counted over the batch
  std::int64_t batch;
  int head, own, lane, size, lanes;
  bool is_there;

  /// vectors: each thread's, of `owners` of a head.
  __device__ Place(const Sizes& sizes, int owners, int vectors, int size_, int lanes_)
      : lane(static_cast<int>(threadIdx.x % lanes_)), size(size_), lanes(lanes_) {
    const std::int64_t place = (std::int64_t(blockIdx.x) * threads + threadIdx.x) / lanes, groups = owners / vectors,
                       count = sizes.batch * sizes.heads * groups;
    is_there = place < count;
    const std::int64_t at = is_there ? place : count - 1;
    sequence = at / groups;
    own = static_cast<int>(at % groups) * vectors;
    batch = sequence / sizes.heads;
    head = static_cast<int>(sequence % sizes.heads);
  }
  /// The head's row of token 0.
  template <class C>
  __device__ C* rows(const Tokens<C>& x) const {
    return x.data + batch * x.batch + head * x.head;
  }
  __device__ bool is_first() const { return is_there && lane == 0; }
  /// Of token t, the thread's vectors' numbers.
  template <class C, int m>
  __device__ void store(const Tokens<C>& x, int t, const C (&numbers)[m]) const {
    if (!is_first()) return;
#pragma unroll
    for (int j = 0; j < m; ++j) rows(x)[t * x.token + own + j] = numbers[j];
  }
  /// The sum over the vector's lanes, in all of them.
  template <class C>
  __device__ C sum(C x) const {
    for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
  }
};

/// n elements of a vector. With is_whole its size is a multiple of 4, rows are at multiples of 16 bytes, and a group is 4 elements.
template <class C, int n, bool is_whole>
struct Part {
  static constexpr int group = is_whole ? 4 : 1;
  C x[n];

  static __device__ Part all(C value) {
    Part part;
#pragma unroll
    for (C& e : part.x) e = value;
    return part;
  }
  /// Place of element i in the vector.
  static __device__ int index(int i, const Place& at) { return (i / group * at.lanes + at.lane) * group + i % group; }
  static __device__ Part load(const C* row, const Place& at) {
    Part part = all(0);
#pragma unroll
    for (int i = 0; i < n; i += group) {
      if (index(i, at) >= at.size) continue;
      if constexpr (is_whole) {
        const float4 four = __ldg(reinterpret_cast<const float4*>(row + index(i, at)));
        part.x[i] = four.x, part.x[i + 1] = four.y, part.x[i + 2] = four.z, part.x[i + 3] = four.w;
      } else {
        part.x[i] = __ldg(row + index(i, at));
      }
    }
    return part;
  }
  /// Of a state's column: elements `step` apart.
  static __device__ Part gather(const C* from, std::int64_t step, const Place& at) {
    Part part = all(0);
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (index(i, at) < at.size) part.x[i] = from[index(i, at) * step];
    return part;
  }
  __device__ void scatter(C* to, std::int64_t step, const Place& at) const {
#pragma unroll
    for (int i = 0; i < n; ++i)
      if (at.is_there && index(i, at) < at.size) to[index(i, at) * step] = x[i];
  }
  __device__ void scale(const Part& by) {
#pragma unroll
    for (int i = 0; i < n; ++i) x[i] *= by.x[i];
  }
  __device__ void scale(C by) {
#pragma unroll
    for (C& e : x) e *= by;
  }
  /// x += factor y.
  __device__ void add(C factor, const Part& y) {
#pragma unroll
    for (int i = 0; i < n; ++i) x[i] += factor * y.x[i];
  }
  __device__ C dot(const Part& y, const Place& at) const {
    C sum = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) sum += x[i] * y.x[i];
    return at.sum(sum);
  }
};

template <class P, int m>
__device__ void scale_all(P (&s)[m], const P& by) {
#pragma unroll
  for (P& part : s) part.scale(by);
}
template <class P, int m, class C>
__device__ void add_all(P (&s)[m], const C (&factors)[m], const P& x) {
#pragma unroll
  for (int j = 0; j < m; ++j) s[j].add(factors[j], x);
}
template <class P, int m, class C>
__device__ void dot_all(C (&to)[m], const P (&s)[m], const P& x, const Place& at) {
#pragma unroll
  for (int j = 0; j < m; ++j) to[j] = s[j].dot(x, at);
}

template <class C>
struct Operands {
  Tokens<const C> q, k, v, decay, beta, read, write;
};

/// Decays of a token for all keys, and for one.
template <class P, class C>
__device__ P decays(const C* row, const Sizes& sizes, const Place& at) {
  return sizes.decays > 1 ? P::load(row, at) : P::all(*row);
}
template <class C>
__device__ C decay_of(const C* row, const Sizes& sizes, int key) {
  return sizes.decays > 1 ? row[key] : sizes.decays == 1 ? *row : C(1);
}

/// y, reads (the r that were read) and state may be absent.
template <class C, int n, int m, bool is_whole, Rule rule>
__global__ void __launch_bounds__(threads)
    recurrence_forward(Sizes sizes, int lanes, Operands<C> in, const C* initial, Tokens<C> y, Tokens<C> reads, C* state) {
  using P = Part<C, n, is_whole>;
  const Place at(sizes, sizes.values, m, sizes.keys, lanes);
  const std::int64_t column = at.sequence * sizes.keys * sizes.values + at.own;
  const C *q = at.rows(in.q), *k = at.rows(in.k), *v = at.rows(in.v) + at.own, *decay = at.rows(in.decay), *beta = at.rows(in.beta),
          *read = at.rows(in.read), *write = at.rows(in.write);
  P s[m];
#pragma unroll
  for (int j = 0; j < m; ++j) s[j] = initial ? P::gather(initial + column + j, sizes.values, at) : P::all(0);
  for (int t = 0; t < sizes.tokens; ++t) {
    if (sizes.decays > 0) scale_all(s, decays<P>(decay + t * in.decay.token, sizes, at));
    const P key = P::load(k + t * in.k.token, at);
    C r[m] = {};
    if constexpr (rule == Rule::delta) {
      dot_all(r, s, key, at);
      const C rate = beta[t * in.beta.token];
#pragma unroll
      for (int j = 0; j < m; ++j) s[j].add(rate * (v[t * in.v.token + j] - r[j]), key);
    } else {
      if constexpr (rule == Rule::read) {
        dot_all(r, s, P::load(read + t * in.read.token, at), at);
        add_all(s, r, P::load(write + t * in.write.token, at));
      }
#pragma unroll
      for (int j = 0; j < m; ++j) s[j].add(v[t * in.v.token + j], key);
    }
    if (rule != Rule::value && reads.data) at.store(reads, t, r);
    if (!y.data) continue;
    C out[m];
    dot_all(out, s, P::load(q + t * in.q.token, at), at);
    at.store(y, t, out);
  }
  if (!state) return;
#pragma unroll
  for (int j = 0; j < m; ++j) s[j].scatter(state + column + j, sizes.values, at);
}

/// dv; of_reads: the gradient of r, of the delta rule without its factor -beta, that of u.
template <class C, int n, int m, bool is_whole, Rule rule>
__global__ void __launch_bounds__(threads) recurrence_value_gradients(Sizes sizes, int lanes, Operands<C> in, Tokens<const C> dy_,
                                                                      const C* dstate, Tokens<C> dv, Tokens<C> of_reads, C* dinitial) {
  using P = Part<C, n, is_whole>;
  const Place at(sizes, sizes.values, m, sizes.keys, lanes);
  const std::int64_t column = at.sequence * sizes.keys * sizes.values + at.own;
  const C *q = at.rows(in.q), *k = at.rows(in.k), *dy = at.rows(dy_) + at.own, *decay = at.rows(in.decay), *beta = at.rows(in.beta),
          *read = at.rows(in.read), *write = at.rows(in.write);
  P d[m];
#pragma unroll
  for (int j = 0; j < m; ++j) d[j] = dstate ? P::gather(dstate + column + j, sizes.values, at) : P::all(0);
  for (int t = sizes.tokens - 1; t >= 0; --t) {
    const P query = P::load(q + t * in.q.token, at);
#pragma unroll
    for (int j = 0; j < m; ++j) d[j].add(dy[t * dy_.token + j], query);
    const P key = P::load(k + t * in.k.token, at);
    C of_v[m], of_r[m];
    dot_all(of_v, d, key, at);
    if constexpr (rule == Rule::delta) {
      const C rate = beta[t * in.beta.token];
#pragma unroll
      for (int j = 0; j < m; ++j) {
        of_r[j] = of_v[j];
        of_v[j] *= rate;
        d[j].add(-of_v[j], key);
      }
    }
    if constexpr (rule == Rule::read) {
      dot_all(of_r, d, P::load(write + t * in.write.token, at), at);
      add_all(d, of_r, P::load(read + t * in.read.token, at));
    }
    at.store(dv, t, of_v);
    if constexpr (rule != Rule::value) at.store(of_reads, t, of_r);
    if (sizes.decays > 0) scale_all(d, decays<P>(decay + t * in.decay.token, sizes, at));
  }
  if (!dinitial) return;
#pragma unroll
  for (int j = 0; j < m; ++j) d[j].scatter(dinitial + column + j, sizes.values, at);
}

/// Vectors of a token's values, as rows of a state meet them: of which k_i is the factor, and the gradient of r.
template <class P, Rule rule, class C>
struct Values {
  P added, of_reads;
  C of_beta = 0;

  /// reads and of_reads: of a rule that has r, as value_gradients leaves them.
  __device__ Values(const C* v, const C* reads, const C* of_reads_, C beta, const Place& at) : added(P::load(v, at)) {
    if constexpr (rule == Rule::value) return;
    of_reads = P::load(of_reads_, at);
    if constexpr (rule == Rule::delta) {
      added.add(-1, P::load(reads, at));
      of_beta = added.dot(of_reads, at);
      added.scale(beta);
      of_reads.scale(-beta);
    }
  }
};

/// dq; of_read: the gradient of read, of the delta rule that of k as it reads; last: sums of state dstate for each row.
template <class C, int n, int m, bool is_whole, Rule rule>
__global__ void __launch_bounds__(threads)
    recurrence_query_gradients(Sizes sizes, int lanes, Operands<C> in, const C* initial, Tokens<const C> dy_, const C* dstate,
                               Tokens<const C> reads_, Tokens<const C> of_reads_, Tokens<C> dq, Tokens<C> of_read, Tokens<C> dbeta,
                               C* last) {
  using P = Part<C, n, is_whole>;
  const Place at(sizes, sizes.keys, m, sizes.values, lanes);
  const std::int64_t row = at.sequence * sizes.keys + at.own;
  const C *k = at.rows(in.k) + at.own, *v = at.rows(in.v), *dy = at.rows(dy_), *decay = at.rows(in.decay), *beta = at.rows(in.beta),
          *write = at.rows(in.write) + at.own, *reads = at.rows(reads_), *of_reads = at.rows(of_reads_);
  P s[m];
#pragma unroll
  for (int j = 0; j < m; ++j) s[j] = initial ? P::load(initial + (row + j) * sizes.values, at) : P::all(0);
  for (int t = 0; t < sizes.tokens; ++t) {
#pragma unroll
    for (int j = 0; j < m; ++j) s[j].scale(decay_of(decay + t * in.decay.token, sizes, at.own + j));
    const Values<P, rule, C> values(v + t * in.v.token, reads + t * reads_.token, of_reads + t * of_reads_.token,
                                    rule == Rule::delta ? beta[t * in.beta.token] : C(0), at);
    if constexpr (rule != Rule::value) {
      C of[m];
      dot_all(of, s, values.of_reads, at);
      at.store(of_read, t, of);
      if (rule == Rule::delta && at.is_first() && at.own == 0) at.rows(dbeta)[t * dbeta.token] = values.of_beta;
    }
#pragma unroll
    for (int j = 0; j < m; ++j) s[j].add(k[t * in.k.token + j], values.added);
    if constexpr (rule == Rule::read) {
      const P were = P::load(reads + t * reads_.token, at);
#pragma unroll
      for (int j = 0; j < m; ++j) s[j].add(write[t * in.write.token + j], were);
    }
    C of_q[m];
    dot_all(of_q, s, P::load(dy + t * dy_.token, at), at);
    at.store(dq, t, of_q);
  }
  if (!last) return;
#pragma unroll
  for (int j = 0; j < m; ++j) {
    const C sum = dstate ? P::load(dstate + (row + j) * sizes.values, at).dot(s[j], at) : C(0);
    if (at.is_first()) last[row + j] = sum;
  }
}

/// dk, dwrite and dlog_decay, of each key; of the delta rule with of_read added to dk.
template <class C, int n, int m, bool is_whole, Rule rule>
__global__ void __launch_bounds__(threads)
    recurrence_key_gradients(Sizes sizes, int lanes, Operands<C> in, Tokens<const C> dy_, const C* dstate, Tokens<const C> reads_,
                             Tokens<const C> of_reads_, Tokens<const C> dq_, Tokens<const C> of_read_, const C* last, Tokens<C> dk,
                             Tokens<C> dwrite, Tokens<C> dlog_decay) {
  using P = Part<C, n, is_whole>;
  const Place at(sizes, sizes.keys, m, sizes.values, lanes);
  const std::int64_t row = at.sequence * sizes.keys + at.own;
  const Tokens<const C>& read_ = rule == Rule::delta ? in.k : in.read;
  const C *q = at.rows(in.q) + at.own, *k = at.rows(in.k) + at.own, *v = at.rows(in.v), *dy = at.rows(dy_), *decay = at.rows(in.decay),
          *beta = at.rows(in.beta), *read = at.rows(read_) + at.own, *write = at.rows(in.write) + at.own, *reads = at.rows(reads_),
          *of_reads = at.rows(of_reads_), *dq = at.rows(dq_) + at.own, *of_read = at.rows(of_read_) + at.own;
  P d[m];
  C of_sum[m];
#pragma unroll
  for (int j = 0; j < m; ++j) {
    d[j] = dstate ? P::load(dstate + (row + j) * sizes.values, at) : P::all(0);
    of_sum[j] = last ? last[row + j] : C(0);
  }
  for (int t = sizes.tokens - 1; t >= 0; --t) {
    const P grad = P::load(dy + t * dy_.token, at);
#pragma unroll
    for (int j = 0; j < m; ++j) d[j].add(q[t * in.q.token + j], grad);
    const Values<P, rule, C> values(v + t * in.v.token, reads + t * reads_.token, of_reads + t * of_reads_.token,
                                    rule == Rule::delta ? beta[t * in.beta.token] : C(0), at);
    C of_k[m], of_w[m] = {};
    dot_all(of_k, d, values.added, at);
    if constexpr (rule == Rule::read) dot_all(of_w, d, P::load(reads + t * reads_.token, at), at);
#pragma unroll
    for (int j = 0; j < m; ++j) {
      const C of_r = rule == Rule::value ? C(0) : of_read[t * of_read_.token + j],
              kept = decay_of(decay + t * in.decay.token, sizes, at.own + j);
      if (dlog_decay.data) {
        of_sum[j] += q[t * in.q.token + j] * dq[t * dq_.token + j] - k[t * in.k.token + j] * of_k[j];
        if constexpr (rule != Rule::value) of_sum[j] += read[t * read_.token + j] * of_r;
        if constexpr (rule == Rule::read) of_sum[j] -= write[t * in.write.token + j] * of_w[j];
        if (kept == 0) of_sum[j] = 0;  // nothing before it reaches what follows
      }
      if constexpr (rule == Rule::delta) of_k[j] += of_r;
      if constexpr (rule != Rule::value) d[j].add(read[t * read_.token + j], values.of_reads);
      d[j].scale(kept);
    }
    if (dlog_decay.data) at.store(dlog_decay, t, of_sum);
    at.store(dk, t, of_k);
    if constexpr (rule == Rule::read) at.store(dwrite, t, of_w);
  }
}

/// Arguments that the launches of a call share.
template <class C>
struct Call {
  Sizes sizes;
  Operands<C> in;
  Rule rule;
  bool is_aligned;
  Stream stream;

  template <class Kernel>
  Call(const Kernel& x, std::initializer_list<const View*> more)
      : sizes{x.q.shape[0],
              static_cast<int>(x.q.shape[1]),
              static_cast<int>(x.q.shape[2]),
              static_cast<int>(x.q.shape[3]),
              static_cast<int>(x.v.shape[3]),
              x.decay.data ? static_cast<int>(x.decay.shape[3]) : 0},
        in{x.q, x.k, x.v, x.decay, x.beta, x.keys.read, x.keys.write},
        rule(x.beta.data        ? Rule::delta
             : x.keys.read.data ? Rule::read
                                : Rule::value),
        is_aligned(true),
        stream(x.q.stream) {
    std::vector<const View*> all{&x.q, &x.k, &x.v, &x.decay, &x.keys.read, &x.keys.write, &x.initial};
    all.insert(all.end(), more);
    for (const View* view : all) {
      if (!view->data) continue;
      is_aligned = is_aligned && reinterpret_cast<std::uintptr_t>(view->data) % 16 == 0;
      for (int d = 0; d + 1 < view->dims(); ++d) is_aligned = is_aligned && (view->shape[d] == 1 || view->strides[d] % 4 == 0);
    }
  }

  /// f<n, m, is_whole, rule>(grid, lanes) for vectors of `size` elements, `owners` of each head, m for each thread: two share what they
  /// load.
  template <class F>
  void over(std::int64_t owners, std::int64_t size, F f) const {
    const auto by_rule = [&]<int n, int m, bool is_whole>() {
      const int lanes = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(ceil_div(size, n))));
      const unsigned grid = blocks_for(sizes.batch * sizes.heads * (owners / m) * lanes, threads);
      if (rule == Rule::value) f.template operator()<n, m, is_whole, Rule::value>(grid, lanes);
      else if (rule == Rule::delta) f.template operator()<n, m, is_whole, Rule::delta>(grid, lanes);
      else f.template operator()<n, m, is_whole, Rule::read>(grid, lanes);
    };
    if constexpr (std::is_same_v<C, float>) {
      if (size <= 2) return by_rule.template operator()<2, 1, false>();
      const bool has_many = sizes.batch * sizes.heads * owners * size > std::int64_t{1} << 21;
      if (is_aligned && size % 4 == 0 && owners % 2 == 0 && has_many) return by_rule.template operator()<16, 2, true>();
      if (is_aligned && size % 4 == 0) return by_rule.template operator()<16, 1, true>();
    }
    by_rule.template operator()<16, 1, false>();
  }
  void forward(const View& initial, const Tokens<C>& y, const Tokens<C>& reads, const View& state) const {
    over(sizes.values, sizes.keys, [&]<int n, int m, bool is_whole, Rule r>(unsigned grid, int lanes) {
      launch(recurrence_forward<C, n, m, is_whole, r>, grid, threads, 0, stream, sizes, lanes, in, initial.as<const C>(), y, reads,
             state.as<C>());
    });
  }
};

/// Memory for numbers of all tokens, (B, T, H, D).
template <class C>
struct Scratch {
  Workspace memory;
  Tokens<C> tokens;

  Scratch(const Sizes& sizes, std::int64_t width, bool is_there, Stream stream)
      : memory(is_there ? static_cast<std::size_t>(sizes.batch * sizes.tokens * sizes.heads * width) * sizeof(C) : 0, stream) {
    if (!is_there) return;
    tokens.data = memory.template as<C>();
    tokens.head = width, tokens.token = width * sizes.heads, tokens.batch = tokens.token * sizes.tokens;
  }
};

template <class C>
Tokens<const C> constant(const Tokens<C>& x) {
  Tokens<const C> result;
  result.data = x.data, result.batch = x.batch, result.token = x.token, result.head = x.head;
  return result;
}

template <class C>
void backward(const kernels::LinearRecurrenceGrad& x) {
  const Call<C> call(x, {&x.dy, &x.dstate});
  const Sizes& sizes = call.sizes;
  const Stream stream = call.stream;
  const bool has_reads = call.rule != Rule::value;
  const Scratch<C> reads(sizes, sizes.values, has_reads, stream), of_reads(sizes, sizes.values, has_reads, stream),
      of_key(sizes, sizes.keys, call.rule == Rule::delta, stream);
  const Workspace sums(static_cast<std::size_t>(sizes.batch * sizes.heads * sizes.keys) * sizeof(C), stream);
  if (has_reads) call.forward(x.initial, {}, reads.tokens, View());
  const Tokens<const C> dy(x.dy), kept = constant(reads.tokens), of_kept = constant(of_reads.tokens);
  const Tokens<C> of_read = call.rule == Rule::delta ? of_key.tokens : Tokens<C>(x.dkeys.read);
  C* const last = x.dlog_decay.data ? sums.as<C>() : nullptr;
  call.over(sizes.values, sizes.keys, [&]<int n, int m, bool is_whole, Rule r>(unsigned grid, int lanes) {
    launch(recurrence_value_gradients<C, n, m, is_whole, r>, grid, threads, 0, stream, sizes, lanes, call.in, dy, x.dstate.as<const C>(),
           Tokens<C>(x.dv), of_reads.tokens, x.dinitial.as<C>());
  });
  call.over(sizes.keys, sizes.values, [&]<int n, int m, bool is_whole, Rule r>(unsigned grid, int lanes) {
    launch(recurrence_query_gradients<C, n, m, is_whole, r>, grid, threads, 0, stream, sizes, lanes, call.in, x.initial.as<const C>(), dy,
           x.dstate.as<const C>(), kept, of_kept, Tokens<C>(x.dq), of_read, Tokens<C>(x.dbeta), last);
    launch(recurrence_key_gradients<C, n, m, is_whole, r>, grid, threads, 0, stream, sizes, lanes, call.in, dy, x.dstate.as<const C>(),
           kept, of_kept, constant(Tokens<C>(x.dq)), constant(of_read), last, Tokens<C>(x.dk), Tokens<C>(x.dkeys.write),
           Tokens<C>(x.dlog_decay));
  });
}

}  // namespace

}  // namespace tern::gpu::by_token

namespace tern::kernels {

bool has_linear_recurrence(Cuda, const View& q, const View& v) {
  return q.numel() > 0 && v.numel() > 0 && std::max(q.shape[3], v.shape[3]) <= gpu::by_token::widest;
}

void LinearRecurrence::run(Cuda) const {
  dispatch_f32_f64(y.dtype, "linear_recurrence", [&]<class C>() { gpu::by_token::Call<C>(*this, {}).forward(initial, Out(y), {}, state); });
}

void LinearRecurrenceGrad::run(Cuda) const {
  dispatch_f32_f64(dq.dtype, "linear_recurrence", [&]<class C>() { gpu::by_token::backward<C>(*this); });
}

}  // namespace tern::kernels
