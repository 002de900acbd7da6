#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <unordered_map>

#include "backend/observer.h"
#include "backend/threads.h"
#include "nn/generate.h"
#include "ops/captured_step.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "tensor/sizes.h"

namespace tern::nn {

namespace {

/// Note [Two rows]: on the CPU a product of a single row sums in another order than one of several (src/ops/cpu/matmul.cpp). A batch of one
/// row is read as two equal rows, so that its logits are bitwise those of a larger batch, unless oneDNN computes the larger product
/// (src/ops/cpu/gemm.h). A product of a quantised weight has one order (Note [Integer products]): a model that has no other products reads
/// one row, which takes half the time of all else.
struct FloatingMatrices final : Visitor {
  explicit FloatingMatrices(const Module& model) { walk(const_cast<Module&>(model)); }  // visit is not const, but this only reads
  void on_parameter(const std::string&, Tensor& parameter) override { count += parameter.dims() > 1; }
  void on_module(const std::string&, Module& module) override {
    if (const auto* const table = dynamic_cast<const Embedding*>(&module)) count -= table->weight.defined();  // a look-up sums nothing
  }
  std::int64_t count = 0;
};

Tensor with_a_second_row(const Tensor& x, bool is_needed) { return is_needed && x.size(0) == 1 ? cat({x, x}) : x; }

struct Padded {
  Tensor ids;      ///< (N, T), filled up with id 0
  Tensor lengths;  ///< (N)
  std::int64_t longest = 0;
  bool needs_two = false;  ///< Note [Two rows]
};

Padded padded(const char* op, const std::vector<TokenIds>& rows, std::int64_t most, std::int64_t vocab, const Module& model,
              Device device) {
  Padded result;
  result.needs_two = device == cpu && FloatingMatrices(model).count > 0;
  std::vector<std::int64_t> lengths;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    lengths.push_back(static_cast<std::int64_t>(rows[i].size()));
    if (lengths[i] < 1 || lengths[i] > most)
      fail(op, fmt::format("expected rows of 1 to {} tokens but row {} has {}", most, i, lengths[i]));
    for (std::int64_t id : rows[i])
      if (id < 0 || id >= vocab) fail(op, fmt::format("expected ids in [0, {}) but got {} in row {}", vocab, id, i));
    result.longest = std::max(result.longest, lengths[i]);
  }
  // On a GPU each shape of a product is planned at its first use, so use few widths.
  if (device != cpu) result.longest = std::min(round_up(result.longest, 8), most);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<std::int64_t> ids(static_cast<std::size_t>(count * result.longest));
  for (std::size_t i = 0; i < rows.size(); ++i)
    std::copy(rows[i].begin(), rows[i].end(), ids.begin() + static_cast<std::ptrdiff_t>(i) * result.longest);
  result.ids = with_a_second_row(Tensor::from(ids, {count, result.longest}, device), result.needs_two);
  result.lengths = with_a_second_row(Tensor::from(lengths, {count}, device), result.needs_two);
  return result;
}

}  // namespace

/// A model, and the cache of the rows that it reads. All its device work is in two functions of tensors, so that a CapturedStep can capture
/// them: what the host knows of the rows is kept outside of them.
class DecodingGraphs::Reader {
 public:
  explicit Reader(KvCache cache) : cache_(std::move(cache)) {}
  virtual ~Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  /// From now on runs as graphs. A shape is captured once it has run as written so often that its capture would have paid off: a capture
  /// takes as long as a graph saves in about five steps of a small model.
  void capture(Device device) {
    constexpr std::int64_t runs_as_written = 5;
    step_.emplace([this](const Tensors& inputs) { return run(inputs); }, device, runs_as_written);
  }

  /// Replaces the rows by others and reads them: the logits (B, V) of the first new tokens.
  Tensor read(const Padded& rows, std::int64_t count) {
    needs_two_ = rows.needs_two;
    const std::int64_t reserved = cache_.reserved();
    cache_.restart(rows.ids.size(0), memory_used(rows.longest));
    // Graphs of ever more shapes would fill the device's memory: beyond a limit all are dropped.
    constexpr std::size_t max_recordings = 128;
    if (step_ && (cache_.reserved() != reserved || step_->recordings() > max_recordings)) step_->forget();
    const Tensor logits = step({rows.ids, rows.lengths});
    cache_.mark_read();
    longest_ = first_tokens(rows.longest);
    return slice(logits, 0, 0, count);
  }
  Tensor next(const Tensor& ids) {
    const Tensor logits = step({with_a_second_row(ids, needs_two_)});
    longest_ = std::min(longest_ + 1, cache_.capacity());
    return slice(logits, 0, 0, ids.size(0));
  }
  void select(const Tensor& rows, bool keeps_memory) {
    const std::int64_t reserved = cache_.reserved();
    cache_.select(with_a_second_row(rows, needs_two_), keeps_memory && rows.size(0) > 1, longest_);
    if (step_ && cache_.reserved() != reserved) step_->forget();
  }
  std::size_t nodes() const { return step_ ? step_->nodes() : 0; }

 protected:
  virtual Tensor first(const Tensor& ids, const Tensor& lengths) = 0;
  virtual Tensor following(const Tensor& ids) = 0;
  /// Number of tokens of the longest row, in the cache and in its memory, after `first` has read prompts or sources of up to `longest`
  /// tokens.
  virtual std::int64_t first_tokens(std::int64_t longest) const = 0;
  virtual std::int64_t memory_used(std::int64_t longest) const = 0;

  KvCache cache_;
  std::int64_t longest_ = 0;  // the longest row in the cache
  bool needs_two_ = false;    // Padded::needs_two

 private:
  Tensor step(const Tensors& inputs) { return step_ ? (*step_)(inputs) : run(inputs); }
  Tensor run(const Tensors& inputs) {
    const NoGrad unrecorded;
    if (inputs.size() == 2) return first(inputs[0], inputs[1]);
    return following(unsqueeze(inputs[0], 1));
  }

  std::optional<CapturedStep> step_;
};

namespace {

class PromptReader final : public DecodingGraphs::Reader {
 public:
  PromptReader(const DecoderLM& model, const PromptOptions& options, std::int64_t batch, std::int64_t limit)
      : Reader(model.cache(batch, limit)), model_(model), options_(options) {
    model_.eval();
    if (options.reset_position >= 0) position_ = zeros({1, 1}, DType::i64, model.tokens.device());
  }

 private:
  Tensor first(const Tensor& ids, const Tensor& lengths) override {
    const std::int64_t batch = ids.size(0), width = ids.size(1), last_position = model_.options.length - 1;
    Tensor position_ids;
    if (position_.defined()) {
      position_ids = reset_position_ids(lengths, width, options_.reset_position, last_position);
      fill_(position_, static_cast<double>(options_.reset_position));
    }
    const AttentionMask mask{.causal = true,
                             .prefix = options_.is_prefix_visible ? lengths : Tensor(),
                             .key_lengths = model_.options.mixers.empty() ? Tensor() : lengths};
    const Tensor states = model_.hidden(ids, mask, position_ids, &cache_);
    copy_(cache_.lengths, lengths);
    // The head only reads the last position of each row.
    const Tensor starts = arange(batch, DType::i64, ids.device()) * static_cast<double>(width);
    return model_.head.forward(embedding(reshape(states, {batch * width, states.size(2)}), starts + lengths - 1));
  }
  Tensor following(const Tensor& ids) override {
    // A row that has ended but has not been dropped reads its last token again and again. A graph does not know whether there is one.
    if (longest_ >= cache_.capacity() || ids.device() != cpu)
      copy_(cache_.lengths, minimum(cache_.lengths, static_cast<double>(cache_.capacity() - 1)));
    Tensor position_ids;
    if (position_.defined()) {
      position_ids = contiguous(broadcast_to(minimum(position_, static_cast<double>(model_.options.length - 1)), ids.shape()));
      copy_(position_, position_ + 1.0);
    }
    return model_.head.forward(squeeze(model_.hidden(ids, {.causal = true}, position_ids, &cache_), 1));
  }
  std::int64_t first_tokens(std::int64_t longest) const override { return longest; }
  std::int64_t memory_used(std::int64_t) const override { return 0; }

  DecoderLM model_;  // shares the parameters; the mode is its own
  PromptOptions options_;
  Tensor position_;  // (1, 1): of the next token, where it is one for all rows
};

class SourceReader final : public DecodingGraphs::Reader {
 public:
  /// With graphs, which only a GPU has, memories do not move when the sources' lengths change.
  SourceReader(const EncoderDecoder& model, const SourceOptions& options, std::int64_t batch, std::int64_t limit, bool has_graphs)
      : Reader(model.cache(batch, limit, has_graphs ? model.options.length : 0)),
        model_(model),
        start_(options.start),
        has_graphs_(has_graphs) {
    model_.eval();
  }

 private:
  Tensor first(const Tensor& ids, const Tensor& lengths) override {
    const Memory memory = model_.encode(ids, lengths);
    return logits(full({ids.size(0), 1}, static_cast<double>(start_), DType::i64, ids.device()), memory);
  }
  Tensor following(const Tensor& ids) override {
    return logits(ids, {.states = ids});  // placeholder for the memory, whose keys and values are in the cache
  }
  Tensor logits(const Tensor& ids, const Memory& memory) { return model_.head.forward(squeeze(model_.hidden(ids, memory, &cache_), 1)); }
  std::int64_t first_tokens(std::int64_t) const override { return 1; }
  std::int64_t memory_used(std::int64_t longest) const override { return has_graphs_ ? longest : 0; }

  EncoderDecoder model_;  // shares the parameters; the mode is its own
  std::int64_t start_;
  bool has_graphs_;
};

/// Address of a table's values, by which graphs recognize their model.
std::int64_t address(const Embedding& table) {
  const Tensor& x = table.quantized.defined() ? table.quantized.rows : table.weight;
  return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(x.view().data));
}

Continuation continuation(const std::shared_ptr<DecodingGraphs::Reader>& reader, const Padded& rows, std::int64_t count) {
  Continuation result;
  result.logits = reader->read(rows, count);
  result.next = [reader](const Tensor& ids) { return reader->next(ids); };
  result.select = [reader](const Tensor& chosen, bool keeps_sources) { reader->select(chosen, keeps_sources); };
  return result;
}

}  // namespace

struct DecodingGraphs::State {
  struct Kept {
    std::shared_ptr<Reader> reader;
    std::vector<std::int64_t> key;
  };
  std::mutex mutex;
  std::unordered_map<std::thread::id, Kept> kept;
};

DecodingGraphs::DecodingGraphs() : state_(std::make_unique<State>()) {}
DecodingGraphs::~DecodingGraphs() = default;

std::shared_ptr<DecodingGraphs::Reader> DecodingGraphs::reader(Device device, std::vector<std::int64_t> key,
                                                               const std::function<std::shared_ptr<Reader>()>& make) {
  key.push_back(static_cast<std::int64_t>(context().kernels.matmul_precision));
  key.push_back(context().kernels.fused);
  const std::lock_guard lock(state_->mutex);
  State::Kept& kept = state_->kept[std::this_thread::get_id()];
  if (!kept.reader || key != kept.key) {
    kept.reader = make();
    kept.reader->capture(device);
    kept.key = std::move(key);
  }
  return kept.reader;
}

bool DecodingGraphs::serve(const DecodingGraphs* graphs) { return graphs && !context().autocast && !context().diagnosis.anomaly; }

std::size_t DecodingGraphs::nodes() const {
  const std::lock_guard lock(state_->mutex);
  const auto kept = state_->kept.find(std::this_thread::get_id());
  return kept != state_->kept.end() && kept->second.reader ? kept->second.reader->nodes() : 0;
}

Continuation read_prompts(const DecoderLM& model, const std::vector<TokenIds>& prompts, const PromptOptions& options) {
  const NoGrad unrecorded;
  const NoAutotune untuned;
  const std::int64_t length = model.options.length, limit = options.max_length == 0 ? length : options.max_length;
  if (limit < 2 || limit > length)
    fail("read_prompts", fmt::format("expected max_length in [2, {}], the model's length, but got {}", length, limit));
  if (prompts.empty()) return {};
  const Device device = model.tokens.device();
  const Padded rows = padded("read_prompts", prompts, limit - 1, model.options.vocab, model, device);
  const auto make = [&] { return std::make_shared<PromptReader>(model, options, rows.ids.size(0), limit); };
  const std::shared_ptr<DecodingGraphs::Reader> reader =
      DecodingGraphs::serve(options.graphs)
          ? options.graphs->reader(device, {address(model.tokens), limit, options.is_prefix_visible, options.reset_position}, make)
          : make();
  Continuation result = continuation(reader, rows, static_cast<std::int64_t>(prompts.size()));
  for (const TokenIds& prompt : prompts) result.limits.push_back(limit - static_cast<std::int64_t>(prompt.size()));
  result.prompts = prompts;
  return result;
}

Continuation read_sources(const EncoderDecoder& model, const std::vector<TokenIds>& sources, const SourceOptions& options) {
  const NoGrad unrecorded;
  const NoAutotune untuned;
  const std::int64_t length = model.options.length, limit = options.max_length == 0 ? length : options.max_length;
  if (limit < 1 || limit > length)
    fail("read_sources", fmt::format("expected max_length in [1, {}], the model's length, but got {}", length, limit));
  if (options.start < 0 || options.start >= model.options.vocab)
    fail("read_sources", fmt::format("expected start in [0, {}) but got {}", model.options.vocab, options.start));
  if (sources.empty()) return {};
  const Device device = model.head.device();
  const Padded rows = padded("read_sources", sources, length, model.options.vocab, model, device);
  const bool has_graphs = DecodingGraphs::serve(options.graphs);
  const auto make = [&] { return std::make_shared<SourceReader>(model, options, rows.ids.size(0), limit, has_graphs && device != cpu); };
  const std::shared_ptr<DecodingGraphs::Reader> reader =
      has_graphs ? options.graphs->reader(device, {address(model.encoder.tokens), limit, options.start}, make) : make();
  Continuation result = continuation(reader, rows, static_cast<std::int64_t>(sources.size()));
  result.limits.assign(sources.size(), limit);
  return result;
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

std::vector<std::vector<Hypothesis>> generate(const EncoderDecoder& model, const std::vector<TokenIds>& sources,
                                              const SourceOptions& source_options, const GenerateOptions& options, std::size_t batch_size) {
  std::vector<std::int64_t> lengths;
  for (const TokenIds& source : sources) lengths.push_back(static_cast<std::int64_t>(source.size()));
  const auto read = [&](const std::vector<std::size_t>& picks) {
    std::vector<TokenIds> batch;
    for (std::size_t pick : picks) batch.push_back(sources[pick]);
    return read_sources(model, batch, source_options);
  };
  return generate_in_batches(lengths, read, options, batch_size, model.head.device() == cpu && !options.stop);
}

std::vector<std::vector<Hypothesis>> generate(const DecoderLM& model, const std::vector<TokenIds>& prompts,
                                              const PromptOptions& prompt_options, const GenerateOptions& options, std::size_t batch_size) {
  const auto limit = static_cast<std::size_t>(prompt_options.max_length == 0 ? model.options.length : prompt_options.max_length);
  std::vector<std::size_t> rows;
  std::vector<std::int64_t> lengths;
  std::vector<std::vector<Hypothesis>> result(prompts.size(), {Hypothesis{}});
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].empty()) fail("generate", fmt::format("expected prompts of one token or more but prompt {} is empty", i));
    if (prompts[i].size() >= limit) continue;
    rows.push_back(i);
    lengths.push_back(static_cast<std::int64_t>(prompts[i].size()));
  }
  const auto read = [&](const std::vector<std::size_t>& picks) {
    std::vector<TokenIds> batch;
    for (std::size_t pick : picks) batch.push_back(prompts[rows[pick]]);
    Continuation text = read_prompts(model, batch, prompt_options);
    for (std::size_t pick : picks) text.numbers.push_back(static_cast<std::int64_t>(rows[pick]));
    return text;
  };
  const bool is_thread_safe = model.tokens.device() == cpu && !options.stop;
  std::vector<std::vector<Hypothesis>> hypotheses = generate_in_batches(lengths, read, options, batch_size, is_thread_safe);
  for (std::size_t i = 0; i < rows.size(); ++i) result[rows[i]] = std::move(hypotheses[i]);
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
  Continuation result = {.limits = parts[0].limits, .numbers = parts[0].numbers, .prompts = parts[0].prompts};
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
