#include "nn/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>

#include "backend/observer.h"
#include "backend/threads.h"
#include "nn/detail/search.h"
#include "ops/copy.h"
#include "ops/join.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"

namespace tern::nn {

namespace detail {

void collect(const Rows& rows, const GenerateOptions& options, std::vector<std::vector<Hypothesis>>& result) {
  const std::int64_t width = rows.tokens.size(1);
  const auto tokens = rows.tokens.to_vector<std::int64_t>(), counts = rows.counts.to_vector<std::int64_t>();
  const std::vector<float> log_p = rows.log_p.to_vector<float>();
  const auto has_eos = cast(rows.has_eos, DType::i64).to_vector<std::int64_t>();
  for (std::size_t i = 0; i < rows.origins.size(); ++i) {
    if (options.search == Search::beam && log_p[i] == -std::numeric_limits<float>::infinity()) continue;
    const auto first = tokens.begin() + static_cast<std::int64_t>(i) * width;
    const double score = log_p[i] / std::pow(static_cast<double>(counts[i]), options.length_penalty);
    result[rows.origins[i]].push_back({{first, first + counts[i] - has_eos[i]}, log_p[i], score});
  }
}

std::int64_t rows_to_keep(std::int64_t active, std::int64_t rows, Device device) {
  if (device == cpu) return 4 * active <= 3 * rows ? active : rows;
  std::int64_t kept = rows;
  while (kept > 1 && active <= kept / 2) kept /= 2;
  return kept;
}

Places places_of(const Tensor& is_kept, std::int64_t least) {
  Places places;
  const auto flags = cast(is_kept, DType::i64).to_vector<std::int64_t>();
  for (std::size_t i = 0; i < flags.size(); ++i) (flags[i] ? places.kept : places.dropped).push_back(static_cast<std::int64_t>(i));
  for (; static_cast<std::int64_t>(places.kept.size()) < least && !places.dropped.empty(); places.dropped.pop_back())
    places.kept.push_back(places.dropped.back());
  return places;
}

Tensor indices(const std::vector<std::int64_t>& places, Device device) {
  return Tensor::from(places, {static_cast<std::int64_t>(places.size())}, device);
}

std::vector<std::size_t> picked(const std::vector<std::size_t>& values, const std::vector<std::int64_t>& places) {
  std::vector<std::size_t> result;
  for (std::int64_t place : places) result.push_back(values[static_cast<std::size_t>(place)]);
  return result;
}

void fail_without_number(const Tensor& is_number, const Tensor& logits, const std::vector<std::size_t>& origins, std::int64_t step) {
  const Places places = places_of(is_number);
  const std::int64_t row = places.dropped.empty() ? 0 : places.dropped.front(), rows = logits.size(0) / is_number.size(0);
  const auto values = cast(slice(logits, 0, row * rows, (row + 1) * rows), DType::f32).to_vector<float>();
  std::string found = "no token of a probability above 0";
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!(values[i] < std::numeric_limits<float>::infinity())) {
      found = fmt::format("{} at token {}", std::isnan(values[i]) ? "NaN" : "+inf", i % static_cast<std::size_t>(logits.size(1)));
      break;
    }
  fail("generate",
       fmt::format("expected logits below +inf, none of them NaN and not all -inf, but row {} has {} in those for its new token "
                   "{}: AnomalyMode names the module",
                   origins[static_cast<std::size_t>(row)], found, step));
}

}  // namespace detail

static void check(const GenerateOptions& o) {
  if (o.max_new_tokens < 0) fail("generate", fmt::format("expected max_new_tokens >= 0 but got {}", o.max_new_tokens));
  if (!std::isfinite(o.length_penalty)) fail("generate", fmt::format("expected a finite length_penalty but got {}", o.length_penalty));
  if (o.n_best < 1) fail("generate", fmt::format("expected n_best >= 1 but got {}", o.n_best));
  if (o.search == Search::greedy && o.n_best != 1) fail("generate", fmt::format("expected n_best = 1 of greedy but got {}", o.n_best));
  if (o.search == Search::beam && o.beam < o.n_best)
    fail("generate", fmt::format("expected a beam >= n_best but got {} and {}", o.beam, o.n_best));
  if (o.search != Search::sample) return;
  if (!(o.temperature >= 0) || !std::isfinite(o.temperature))
    fail("generate", fmt::format("expected a finite temperature >= 0 but got {}", o.temperature));
  if (o.top_k < 0) fail("generate", fmt::format("expected top_k >= 0 but got {}", o.top_k));
  if (!(o.top_p > 0 && o.top_p <= 1)) fail("generate", fmt::format("expected top_p in (0, 1] but got {}", o.top_p));
}

std::vector<std::vector<Hypothesis>> generate(Continuation text, const GenerateOptions& options) {
  check(options);
  const auto rows = static_cast<std::int64_t>(text.limits.size());
  if (rows == 0) return {};
  if (text.logits.dims() != 2 || text.logits.size(0) != rows || text.logits.size(1) < 1 || !is_floating(text.logits.dtype()))
    fail("generate", fmt::format("expected floating logits ({}, V), a row for each limit, but got {} {}", rows, name(text.logits.dtype()),
                                 to_string(text.logits.shape())));
  for (std::int64_t& limit : text.limits) {
    if (limit < 1) fail("generate", fmt::format("expected limits >= 1 but got {}", limit));
    if (options.max_new_tokens > 0) limit = std::min(limit, options.max_new_tokens);
  }
  const std::int64_t copies = options.search == Search::beam ? options.beam : options.n_best, most = std::int64_t(1) << 30;
  if (copies > most / rows)
    fail("generate", fmt::format("expected at most 2^30 hypotheses at once but got {} of each of {} rows", copies, rows));
  // Scores are f32: beyond its range no hypothesis would be better than another.
  const auto longest = static_cast<double>(*std::max_element(text.limits.begin(), text.limits.end()));
  if (!(std::pow(longest, std::abs(options.length_penalty)) < 1e34))
    fail("generate",
         fmt::format("expected a length_penalty whose power of {} tokens is below 1e34 but got {}", longest, options.length_penalty));
  if (text.numbers.empty()) {
    text.numbers.resize(text.limits.size());
    std::iota(text.numbers.begin(), text.numbers.end(), std::int64_t{0});
  }
  if (text.numbers.size() != text.limits.size())
    fail("generate", fmt::format("expected {} numbers, one for each row, but got {}", rows, text.numbers.size()));
  for (std::int64_t& number : text.numbers) number += options.first_number;
  if (options.on_token)
    text.next = [&options, next = std::move(text.next)](const Tensor& ids) {
      options.on_token();
      return next(ids);
    };
  const NoGrad unrecorded;
  const NoAutotune untuned;
  return options.search == Search::beam ? detail::beam_search(text, options) : detail::pick_tokens(text, options);
}

namespace {

/// Calls work(i) for each i in [0, count) on `threads` threads, each with a single kernel thread and with those parts of this thread's
/// context that decoding reads. After an error no more work begins, and the error of the lowest i is thrown.
template <class F>
void run_concurrently(std::size_t count, std::int64_t threads, const F& work) {
  const Context& outer = context();
  std::atomic<std::size_t> taken = 0;
  std::atomic<bool> has_failed = false;
  std::vector<std::exception_ptr> errors(count);
  const auto take = [&](int) {
    const ScopedValue grad(context().grad, outer.grad);
    const ScopedValue kernels(context().kernels, outer.kernels);
    const ScopedValue device(context().factory_device, outer.factory_device);
    for (std::size_t i; !has_failed && (i = taken.fetch_add(1)) < count;) try {
        work(i);
      } catch (...) {
        errors[i] = std::current_exception();
        has_failed = true;
      }
  };
  backend::run_parts(static_cast<int>(threads), take, true);
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// Number of threads that decode batches concurrently: 1 if there are too few rows to keep them busy, or if the thread's context has
/// thread-bound state: observers, cached casts of autocast, anomaly mode.
std::int64_t decoding_threads(std::size_t rows, bool is_thread_safe) {
  constexpr std::int64_t min_rows = 16;  // per thread: fewer cost more per row, because a step reads all weights
  const bool is_watched = backend::observer || context().autocast;
  const std::int64_t threads = num_threads();
  return !is_thread_safe || is_watched || static_cast<std::int64_t>(rows) < min_rows * threads ? 1 : threads;
}

}  // namespace

std::vector<std::vector<Hypothesis>> generate_in_batches(const std::vector<std::int64_t>& lengths,
                                                         const std::function<Continuation(const std::vector<std::size_t>& picks)>& read,
                                                         const GenerateOptions& options, std::size_t batch_size, bool is_thread_safe) {
  if (batch_size < 1) fail("generate", "expected batch_size >= 1 but got 0");
  std::vector<std::size_t> order(lengths.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return lengths[a] < lengths[b]; });
  const std::int64_t threads = decoding_threads(order.size(), is_thread_safe);
  std::size_t batches = (order.size() + batch_size - 1) / batch_size;
  // Equally many batches per thread, of sizes as equal as possible.
  if (threads > 1) {
    const auto team = static_cast<std::size_t>(threads);
    batches = (batches + team - 1) / team * team;
  }
  const auto edge = [&](std::size_t i) { return threads > 1 ? order.size() * i / batches : std::min(order.size(), i * batch_size); };
  std::vector<std::vector<Hypothesis>> result(lengths.size());
  const auto decode = [&](std::size_t i) {
    const std::vector<std::size_t> picks(order.begin() + static_cast<std::ptrdiff_t>(edge(i)),
                                         order.begin() + static_cast<std::ptrdiff_t>(edge(i + 1)));
    Continuation text = read(picks);
    if (text.numbers.empty()) text.numbers.assign(picks.begin(), picks.end());
    std::vector<std::vector<Hypothesis>> hypotheses = generate(std::move(text), options);
    for (std::size_t k = 0; k < picks.size(); ++k) result[picks[k]] = std::move(hypotheses[k]);
  };
  if (threads > 1) {
    // Longest batches first, so that a thread that is done early waits only for a short one.
    run_concurrently(batches, threads, [&](std::size_t i) { decode(batches - 1 - i); });
  } else {
    for (std::size_t i = 0; i < batches; ++i) decode(i);
  }
  return result;
}

/// Logarithm of the mean of the models' probabilities, which serves as logits too.
static Tensor joined(const Tensors& logits) {
  Tensors log_p;
  for (const Tensor& part : logits) {
    if (part.shape() != logits[0].shape())
      fail("ensemble", fmt::format("expected logits {} of every model but got {}", to_string(logits[0].shape()), to_string(part.shape())));
    const Tensor x = cast(part, DType::f32);
    // A row with +inf or NaN stays as it is, for the error of generate().
    log_p.push_back(where(lt(max(x, {1}, true), std::numeric_limits<double>::infinity()), log_softmax(x), x));
  }
  return logsumexp(stack(log_p), {0}) - std::log(static_cast<double>(logits.size()));
}

Continuation ensemble(std::vector<Continuation> parts) {
  if (parts.empty()) fail("ensemble", "expected one model or more");
  const NoGrad unrecorded;
  Continuation result = {.limits = parts[0].limits, .numbers = parts[0].numbers};
  Tensors logits;
  for (const Continuation& part : parts) {
    logits.push_back(part.logits);
    if (part.limits.size() != result.limits.size())
      fail("ensemble", fmt::format("expected {} rows of every model but got {}", result.limits.size(), part.limits.size()));
    for (std::size_t i = 0; i < part.limits.size(); ++i) result.limits[i] = std::min(result.limits[i], part.limits[i]);
  }
  result.logits = joined(logits);
  const auto shared = std::make_shared<std::vector<Continuation>>(std::move(parts));
  result.next = [shared](const Tensor& ids) {
    Tensors next;
    for (const Continuation& part : *shared) next.push_back(part.next(ids));
    return joined(next);
  };
  result.select = [shared](const Tensor& rows, bool keeps_sources) {
    for (const Continuation& part : *shared) part.select(rows, keeps_sources);
  };
  return result;
}

}  // namespace tern::nn
