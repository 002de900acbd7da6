// A program's text for a compiler. Both languages have the same statements: what differs stands in the lines before them, and in how a loop
// begins.
#include "code.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "proof.h"

namespace study::loops {

namespace {

/// It includes nothing: headers would take most of a compilation.
constexpr const char* cpp_prelude = R"(template <int N>
struct VecOf { typedef float type __attribute__((vector_size(4 * N))); typedef int bits __attribute__((vector_size(4 * N))); };
template <>
struct VecOf<1> { typedef float type; typedef int bits; };
template <int N>
using Vec = typename VecOf<N>::type;
template <int N>
static inline Vec<N> load(const float* p) { Vec<N> x; __builtin_memcpy(&x, p, sizeof x); return x; }
template <int N>
static inline Vec<N> load(const float* p, long step) { Vec<N> x; for (int i = 0; i < N; ++i) x[i] = p[i * step]; return x; }
template <int N>
static inline void store(float* p, Vec<N> x) { __builtin_memcpy(p, &x, sizeof x); }
template <int N>
static inline void store(float* p, long step, Vec<N> x) { for (int i = 0; i < N; ++i) p[i * step] = x[i]; }
template <int N>
static inline Vec<N> vec(float x) { return Vec<N>{} + x; }
template <int N>
static inline Vec<N> vec(Vec<N> x) requires (N > 1) { return x; }
template <class V>
static inline V max_of(V x, V y) { return x > y ? x : y; }
template <class A, class B, class C>
static inline C fma_of(A a, B b, C c) { return c + a * b; }

/// e^x = 2^n e^r for |r| <= ln(2) / 2, the latter by its series.
template <class V>
static inline V exp_of(V x) {
  constexpr int N = sizeof(V) / 4;
  using Bits = typename VecOf<N>::bits;
  const V low = V{} - 87.0f, high = V{} + 88.0f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const V shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  const V r = x - n * 0.693359375f + n * 2.12194440e-4f;
  V p = V{} + 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return __builtin_bit_cast(V, __builtin_bit_cast(Bits, p) + (__builtin_bit_cast(Bits, shifted) << 23));
}
template <class V>
static inline V tanh_of(V x) { return 1.0f - 2.0f / (exp_of(x + x) + 1.0f); }
static inline float rsqrt_of(float x) { return 1 / __builtin_sqrtf(x); }
template <class V>
static inline V rsqrt_of(V x) { for (unsigned i = 0; i < sizeof(V) / 4; ++i) x[i] = rsqrt_of(x[i]); return x; }
)";

constexpr const char* cuda_prelude = R"(template <int N>
struct alignas(N < 4 ? 4 * N : 16) Vec { float e[N]; };
template <int N>
__device__ Vec<N> load(const float* p) { return *reinterpret_cast<const Vec<N>*>(p); }
template <int N>
__device__ Vec<N> load(const float* p, unsigned step) { Vec<N> x; for (int i = 0; i < N; ++i) x.e[i] = p[i * step]; return x; }
template <int N>
__device__ void store(float* p, const Vec<N>& x) { *reinterpret_cast<Vec<N>*>(p) = x; }
template <int N>
__device__ void store(float* p, unsigned step, const Vec<N>& x) { for (int i = 0; i < N; ++i) p[i * step] = x.e[i]; }
__device__ float at(float x, int) { return x; }
template <int N>
__device__ float at(const Vec<N>& x, int i) { return x.e[i]; }
template <int N, class X>
__device__ Vec<N> vec(const X& x) { Vec<N> y; for (int i = 0; i < N; ++i) y.e[i] = at(x, i); return y; }
template <int N, class F>
__device__ Vec<N> map(F f) { Vec<N> y; for (int i = 0; i < N; ++i) y.e[i] = f(i); return y; }
#define BINARY(op) \
  template <int N> __device__ Vec<N> operator op(const Vec<N>& a, const Vec<N>& b) { return map<N>([&](int i) { return a.e[i] op b.e[i]; }); } \
  template <int N> __device__ Vec<N> operator op(const Vec<N>& a, float b) { return map<N>([&](int i) { return a.e[i] op b; }); } \
  template <int N> __device__ Vec<N> operator op(float a, const Vec<N>& b) { return map<N>([&](int i) { return a op b.e[i]; }); }
BINARY(+) BINARY(-) BINARY(*) BINARY(/)
#define UNARY(name, f) \
  __device__ float name(float x) { return f(x); } \
  template <int N> __device__ Vec<N> name(const Vec<N>& x) { return map<N>([&](int i) { return f(x.e[i]); }); }
UNARY(exp_of, expf) UNARY(tanh_of, tanhf) UNARY(rsqrt_of, rsqrtf)
__device__ float max_of(float x, float y) { return fmaxf(x, y); }
template <int N>
__device__ Vec<N> max_of(const Vec<N>& x, const Vec<N>& y) { return map<N>([&](int i) { return fmaxf(x.e[i], y.e[i]); }); }
template <class A, class B>
__device__ float fma_of(A a, B b, float c) { return fmaf(a, b, c); }
template <class A, class B, int N>
__device__ Vec<N> fma_of(const A& a, const B& b, const Vec<N>& c) { return map<N>([&](int i) { return fmaf(at(a, i), at(b, i), c.e[i]); }); }
)";

class Printer {
 public:
  Printer(const Program& p, bool is_cuda)
      : p_(p), is_cuda_(is_cuda), sites_(sites_of(p)), below_(threads_below(p)), threads_(thread_count(p)) {
    for (std::size_t t = 0; t < p.tensors.size(); ++t)
      scopes_.push_back(p.tensors[t].is_local() ? scope_of(sites_, static_cast<int>(t)) : 0);
  }

  std::string run() {
    text_ = is_cuda_ ? cuda_prelude : cpp_prelude;
    std::vector<std::string> names;
    for (const Tensor& t : p_.tensors)
      if (!t.is_local()) names.push_back(t.name);
    if (is_cuda_) text_ += fmt::format("\nstruct Tensors {{ float* {}; }};\n", fmt::join(names, "; float* "));
    for (std::size_t nest = 0; nest < p_.body.size(); ++nest) {
      if (is_cuda_) {
        text_ +=
            fmt::format("\nextern \"C\" __global__ void __launch_bounds__({}) {}(Tensors tensors) {{\n", threads_, function_name(nest));
        line("const unsigned thread = threadIdx.x;");
        line("unsigned block = blockIdx.x;");
      } else text_ += fmt::format("\nextern \"C\" void {}(float* const* tensors, long first, long last) {{\n", function_name(nest));
      for (std::size_t t = 0, i = 0; t < p_.tensors.size(); ++t) {
        const Tensor& x = p_.tensors[t];
        if (!is_used(static_cast<int>(t), nest)) {
          i += !x.is_local();
          continue;
        }
        const char* constness = x.kind == Tensor::Kind::input ? "const " : "";
        if (!x.is_local())
          line(fmt::format("{}float* __restrict__ const {} = tensors{};", constness, name_of(static_cast<int>(t)),
                           is_cuda_ ? "." + x.name : fmt::format("[{}]", i++)));
        else if (is_cuda_ && x.kind == Tensor::Kind::shared)
          line(fmt::format("__shared__ alignas(16) float {}[{}];", name_of(static_cast<int>(t)),
                           x.size() * thread_copies(p_, sites_, static_cast<int>(t))));
      }
      declare(nest, {});
      print({p_.body[nest]}, nest, {}, threads_);
      text_ += "}\n";
    }
    return text_;
  }

 private:
  const Loop& loop(int l) const { return p_.loops[static_cast<std::size_t>(l)]; }
  const Tensor& tensor(int t) const { return p_.tensors[static_cast<std::size_t>(t)]; }
  bool is_used(int t, std::size_t nest) const {
    return std::any_of(sites_.begin(), sites_.end(),
                       [&](const Site& s) { return s.children[0] == nest && (s.statement->to.tensor == t || reads(*s.statement, t)); });
  }
  /// Names of loops end in a number, those of tensors do not: they are never the same.
  std::string name_of_loop(int l) const { return fmt::format("{}_{}", loop(l).name, l); }
  std::string name_of(int t) const {
    const std::string& name = tensor(t).name;
    return name.back() >= '0' && name.back() <= '9' ? name + "_" : name;
  }
  void line(const std::string& text) { text_ += std::string(2 * depth_, ' ') + text + "\n"; }

  std::string text_of(const Digit& d) const {
    if (d.loop == zero_ || d.extent == 1) return "0";
    std::string text = name_of_loop(d.loop);
    if (d.divisor > 1) text += fmt::format(" / {}", d.divisor);
    if (d.divisor * d.extent < loop(d.loop).extent) text += fmt::format(" % {}", d.extent);
    if (d.scale == 1) return text;
    return text == name_of_loop(d.loop) ? fmt::format("{} * {}", d.scale, text) : fmt::format("{} * ({})", d.scale, text);
  }
  std::string text_of(const Index& index) const {
    std::vector<std::string> parts;
    for (const Digit& d : index.digits)
      if (std::string part = text_of(d); part != "0") parts.push_back(part);
    if (index.constant != 0 || parts.empty()) parts.push_back(std::to_string(index.constant));
    return fmt::format("{}", fmt::join(parts, " + "));
  }
  std::string text_of(const std::vector<Bound>& bounds) const {
    std::vector<std::string> parts;
    for (const Bound& b : bounds) parts.push_back(fmt::format("{} < {}", text_of(b.value), b.limit));
    return fmt::format("{}", fmt::join(parts, " && "));
  }

  /// The element of an access, as one index. Of a register's tensor a thread has its own elements alone: the digits of thread loops are
  /// gone from its index, and those above them move down.
  Index place(const Access& access, const std::vector<int>& around) const {
    const Tensor& t = tensor(access.tensor);
    const std::size_t scope = scopes_[static_cast<std::size_t>(access.tensor)];
    Index sum;
    const std::vector<std::int64_t> strides = own_strides(access.tensor);
    for (std::size_t d = 0; d < access.at.size(); ++d) {
      sum.constant += access.at[d].constant * strides[d];
      for (Digit x : own_digits(access, d, around)) {
        x.scale *= strides[d];
        sum.digits.push_back(x);
      }
    }
    if (is_cuda_ && t.kind == Tensor::Kind::shared) {  // a copy for each thread of the loops around it
      std::int64_t copy = t.size();
      for (std::size_t i = scope; i-- > 0;)
        if (const Loop& l = loop(around[i]); l.bind == Bind::thread) {
          sum.digits.push_back({copy, around[i], 1, l.extent});
          copy *= l.extent;
        }
    }
    return sum;
  }
  bool is_thread_digit(int t, const Digit& d, const std::vector<int>& around, std::size_t scope) const {
    return is_cuda_ && tensor(t).kind == Tensor::Kind::registers && loop(d.loop).bind == Bind::thread &&
           std::find(around.begin() + static_cast<std::ptrdiff_t>(scope), around.end(), d.loop) != around.end();
  }
  /// The digits that a thread counts in one dimension of its own elements: those above a thread's loop move down.
  std::vector<Digit> own_digits(const Access& access, std::size_t d, const std::vector<int>& around) const {
    const std::size_t scope = scopes_[static_cast<std::size_t>(access.tensor)];
    std::vector<Digit> own;
    for (Digit x : access.at[d].digits) {
      if (is_thread_digit(access.tensor, x, around, scope)) continue;
      for (const Digit& other : access.at[d].digits)
        if (is_thread_digit(access.tensor, other, around, scope) && other.scale < x.scale) x.scale /= other.extent;
      own.push_back(x);
    }
    return own;
  }
  /// Guards leave out elements of all threads together: a thread has a place for each.
  std::vector<std::int64_t> own_shape(int t) const {
    std::vector<std::int64_t> shape = tensor(t).shape, own(shape.size());
    for (const Site& site : sites_)
      if (const Access& to = site.statement->to; to.tensor == t && site.statement->write == Write::assign)
        for (std::size_t d = 0; d < shape.size(); ++d) {
          const std::vector<Digit> digits = own_digits(to, d, site.loops);
          if (digits.size() == to.at[d].digits.size()) continue;
          std::int64_t last = to.at[d].constant;
          for (const Digit& x : digits) last += (x.extent - 1) * x.scale;
          own[d] = std::max(own[d], last + 1);
        }
    for (std::size_t d = 0; d < shape.size(); ++d)
      if (own[d] > 0) shape[d] = own[d];
    return shape;
  }
  std::vector<std::int64_t> own_strides(int t) const {
    return is_cuda_ && tensor(t).kind == Tensor::Kind::registers ? row_major(own_shape(t)) : tensor(t).strides;
  }

  /// Tensors that live in the body of the last of these loops.
  void declare(std::size_t nest, const std::vector<int>& around) {
    for (std::size_t t = 0; t < p_.tensors.size(); ++t) {
      const Tensor& x = p_.tensors[t];
      if (!x.is_local() || (is_cuda_ && x.kind == Tensor::Kind::shared) || scopes_[t] != around.size() ||
          !is_used(static_cast<int>(t), nest))
        continue;
      const auto first =
          std::find_if(sites_.begin(), sites_.end(), [&](const Site& s) { return s.statement->to.tensor == static_cast<int>(t); });
      if (!std::equal(around.begin(), around.end(), first->loops.begin())) continue;
      std::int64_t size = 1;
      if (is_cuda_)
        for (const std::int64_t n : own_shape(static_cast<int>(t))) size *= n;
      else size = x.size();
      line(fmt::format("alignas({}) {}float {}[{}];", is_cuda_ ? 16 : 64, !is_cuda_ && size > 4096 ? "static thread_local " : "",
                       name_of(static_cast<int>(t)), size));
    }
  }

  void print(const std::vector<Node>& body, std::size_t nest, const std::vector<int>& around, std::int64_t group) {
    for (const Node& node : body) {
      std::vector<Bound> guards = common_guards(node, around);
      std::erase_if(guards, [&](const Bound& g) { return done_.count(text_of({g})) != 0; });
      if (node.kind == Node::Kind::statement) guards.clear();  // has its own
      for (const Bound& g : guards) done_.insert(text_of({g}));
      if (!guards.empty()) open(fmt::format("if ({}) {{", text_of(guards)));
      if (node.kind == Node::Kind::barrier && is_cuda_) line("__syncthreads();");
      if (node.kind == Node::Kind::statement) print(node.statement, around, group);
      if (node.kind == Node::Kind::loop) print_loop(node, nest, around, group);
      if (!guards.empty()) close();
      for (const Bound& g : guards) done_.erase(text_of({g}));
    }
  }
  void open(const std::string& text) {
    line(text);
    ++depth_;
  }
  void close() {
    --depth_;
    line("}");
  }

  void print_loop(const Node& node, std::size_t nest, std::vector<int> around, std::int64_t group) {
    const Loop& l = loop(node.loop);
    const std::string name = name_of_loop(node.loop);
    around.push_back(node.loop);
    if (l.is_vector) {
      vector_ = node.loop;
      for (const Node& child : node.body) print(child.statement, around, group);
      vector_ = -1;
      return;
    }
    if (is_cuda_ && l.bind == Bind::block) {
      const bool is_last = node.body.size() != 1 || node.body[0].kind != Node::Kind::loop || loop(node.body[0].loop).bind != Bind::block;
      std::int64_t inner = 1;
      for (const Node* n = &node; n->body.size() == 1 && n->body[0].kind == Node::Kind::loop && loop(n->body[0].loop).bind == Bind::block;
           n = &n->body[0])
        inner *= loop(n->body[0].loop).extent;
      line(is_last ? fmt::format("const unsigned {} = block;", name) : fmt::format("const unsigned {} = block / {};", name, inner));
      if (!is_last) line(fmt::format("block %= {};", inner));
      open("{");
    } else if (is_cuda_ && l.bind == Bind::thread) {
      const std::int64_t below = below_[static_cast<std::size_t>(node.loop)];
      std::string number = group == threads_ ? "thread" : fmt::format("thread % {}", group);
      if (below > 1) number += fmt::format(" / {}", below);
      open(l.extent * below == group ? "{" : fmt::format("if ({} < {}) {{", number, l.extent));
      line(fmt::format("const unsigned {} = {};", name, number));
      group = below;
    } else {
      if (l.is_unrolled) line(is_cuda_ ? "#pragma unroll" : fmt::format("#pragma GCC unroll {}", l.extent));
      const bool is_shared_out = !is_cuda_ && l.bind == Bind::cores;
      open(fmt::format("for ({} {} = {}; {} < {}; ++{}) {{", is_cuda_ ? "unsigned" : "long", name, is_shared_out ? "first" : "0", name,
                       is_shared_out ? "last" : std::to_string(l.extent), name));
    }
    declare(nest, around);
    print(node.body, nest, around, group);
    close();
  }

  // --- Statements ---

  /// How far apart the steps of the vector are in an index; nothing where they are not evenly apart.
  std::optional<std::int64_t> step_of(const Index& index) const {
    std::int64_t step = 0;
    for (const Digit& d : index.digits)
      if (d.loop == vector_) {
        if (d.divisor != 1 || d.extent != loop(vector_).extent) return {};
        step += d.scale;
      }
    return step;
  }
  bool is_multiple(const Index& index, std::int64_t of) const {
    return index.constant % of == 0 &&
           std::all_of(index.digits.begin(), index.digits.end(), [&](const Digit& d) { return d.loop == vector_ || d.scale % of == 0; });
  }
  /// The statement can be one operation on vectors: its guards hold for all of a vector or none, and its elements are evenly apart.
  bool is_vector(const Statement& s, const std::vector<int>& around) const {
    const std::int64_t width = loop(vector_).extent;
    for (const std::vector<Bound>* bounds : {&s.guards, &s.inside})
      for (const Bound& b : *bounds)
        if (const auto step = step_of(b.value);
            !step || (*step != 0 && (*step != 1 || b.limit % width != 0 || !is_multiple(b.value, width))))
          return false;
    bool is_even = step_of(place(s.to, around)).value_or(0) != 0;
    for_each_read(s.value, [&](const Access& a) { is_even &= step_of(place(a, around)).has_value(); });
    return is_even;
  }
  std::string element(const Access& a, const std::vector<int>& around) const {
    return fmt::format("{}[{}]", name_of(a.tensor), text_of(place(a, around)));
  }
  /// The arguments of load and store: address, and the step where it is not one, or not aligned as the GPU asks for.
  std::string vector_at(const Access& a, const std::vector<int>& around) const {
    const Index index = place(a, around);
    const std::int64_t step = step_of(index).value();
    const bool is_whole = step == 1 && (!is_cuda_ || is_multiple(index, std::min<std::int64_t>(loop(vector_).extent, 4)));
    return fmt::format("&{}[{}]{}", name_of(a.tensor), text_of(index), is_whole ? "" : fmt::format(", {}", step));
  }
  std::string text_of(const Term& t, const std::vector<int>& around, bool as_vector) const {
    const auto of = [&](std::size_t i) { return text_of(t.of[i], around, as_vector); };
    switch (t.op) {
      case Op::number: return std::isinf(t.number) ? "(-1.0f / 0.0f)" : fmt::format("{:#.9g}f", t.number);
      case Op::read:
        if (as_vector && step_of(place(t.read, around)) != 0)
          return fmt::format("load<{}>({})", loop(vector_).extent, vector_at(t.read, around));
        return element(t.read, around);
      case Op::add: return fmt::format("({} + {})", of(0), of(1));
      case Op::subtract: return fmt::format("({} - {})", of(0), of(1));
      case Op::multiply: return fmt::format("({} * {})", of(0), of(1));
      case Op::divide: return fmt::format("({} / {})", of(0), of(1));
      case Op::exp: return fmt::format("exp_of({})", of(0));
      case Op::tanh: return fmt::format("tanh_of({})", of(0));
      case Op::rsqrt: return fmt::format("rsqrt_of({})", of(0));
    }
    return "";
  }

  void print(const Statement& s, const std::vector<int>& around, std::int64_t group) {
    const bool as_vector = vector_ >= 0 && is_vector(s, around);
    const int vector = vector_;
    zero_ = as_vector ? vector : -1;  // a vector is named by its first step
    std::vector<Bound> guards = s.guards;
    std::erase_if(guards, [&](const Bound& g) { return done_.count(text_of({g})) != 0; });
    std::string condition = text_of(guards);
    // All threads of the group compute alike; memory is written by one.
    const bool is_single = is_cuda_ && group > 1 && tensor(s.to.tensor).kind != Tensor::Kind::registers;
    if (is_single) condition += fmt::format("{}thread % {} == 0", condition.empty() ? "" : " && ", group);
    if (vector >= 0 && !as_vector) {
      if (is_cuda_) line("#pragma unroll");
      open(
          fmt::format("for ({0} {1} = 0; {1} < {2}; ++{1}) {{", is_cuda_ ? "unsigned" : "long", name_of_loop(vector), loop(vector).extent));
      vector_ = -1;
    }
    const std::string width = as_vector ? std::to_string(loop(vector).extent) : "";
    std::string value = text_of(s.value, around, as_vector);
    if (as_vector && s.write != Write::add) value = fmt::format("vec<{}>({})", width, value);
    if (!s.inside.empty())
      value = fmt::format("{} ? {} : {}", text_of(s.inside), value, as_vector ? fmt::format("vec<{}>(0.0f)", width) : "0.0f");
    const std::string old = as_vector ? fmt::format("load<{}>({})", width, vector_at(s.to, around)) : element(s.to, around);
    if (s.write == Write::max) value = fmt::format("max_of({}, {})", value, old);
    if (s.write == Write::add) {
      if (s.value.op == Op::multiply && s.inside.empty())
        value =
            fmt::format("fma_of({}, {}, {})", text_of(s.value.of[0], around, as_vector), text_of(s.value.of[1], around, as_vector), old);
      else value = fmt::format("{} + {}", old, value);
    }
    const std::string text =
        as_vector ? fmt::format("store<{}>({}, {});", width, vector_at(s.to, around), value) : fmt::format("{} = {};", old, value);
    line(condition.empty() ? text : fmt::format("if ({}) {}", condition, text));
    if (vector >= 0 && !as_vector) close();
    vector_ = vector;
    zero_ = -1;
  }

  const Program& p_;
  bool is_cuda_;
  std::vector<Site> sites_;
  std::vector<std::int64_t> below_;
  std::int64_t threads_;
  std::vector<std::size_t> scopes_;
  std::set<std::string> done_;  ///< guards that an `if` around holds
  int vector_ = -1;             ///< the loop that is one operation
  int zero_ = -1;               ///< the loop that is at its first step
  std::string text_;
  std::size_t depth_ = 1;
};

}  // namespace

std::string cpp_text(const Program& p) { return Printer(p, false).run(); }
std::string cuda_text(const Program& p) { return Printer(p, true).run(); }
std::string function_name(std::size_t nest) { return fmt::format("loops_{}", nest); }

std::int64_t steps_of(const Program& p, std::size_t nest, Bind bind) {
  std::int64_t steps = 1;
  for (const Node* node = &p.body[nest]; node->kind == Node::Kind::loop && p.loops[static_cast<std::size_t>(node->loop)].bind == bind;
       node = &node->body[0]) {
    steps *= p.loops[static_cast<std::size_t>(node->loop)].extent;
    if (node->body.empty()) break;
  }
  return steps;
}

}  // namespace study::loops
