#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "nn/transformer.h"

namespace tern::nn {

/// Tokens of one row, without padding.
using TokenIds = std::vector<std::int64_t>;

/// The interface of `generate` to a model: next-token logits for rows of tokens. read_prompts, read_sources and ensemble make one; another
/// model has to provide the two functions, which share the state of the rows, such as a KV cache. There are N rows at first, and R after a
/// `select`.
struct Continuation {
  Tensor logits;                     ///< (N, V), floating: logits of each row's first new token
  std::vector<std::int64_t> limits;  ///< (N): maximum number of new tokens of each row, 1 or more
  /// Appends a token to each row, ids (R) of i64, and returns the logits (R, V) of the next one.
  std::function<Tensor(const Tensor& ids)> next;
  /// Makes the state of row i a copy of row rows[i], for rows (R') of i64. `keeps_sources`: R' equals R, and rows i and rows[i] continue
  /// the same prompt or source, so that state of the source need not move.
  std::function<void(const Tensor& rows, bool keeps_sources)> select;
  /// (N): the number of each row, on which its random numbers in sampling depend; empty: 0 .. N - 1.
  std::vector<std::int64_t> numbers = {};
  /// (N): the tokens before the new ones, to which GenerateOptions::repetition_penalty applies too; empty: none.
  std::vector<TokenIds> prompts = {};
};

/// Search strategies of generate().
enum class Search : std::uint8_t {
  greedy,  ///< the most probable token in each step
  beam,    ///< beam search: the best of `beam` hypotheses, by score
  sample,  ///< tokens sampled from their distribution
};

/// Options of generate().
struct GenerateOptions {
  Search search = Search::greedy;   ///< search strategy
  std::int64_t eos = 1;             ///< token that ends a row: its probability counts, but it is not in the hypothesis. -1: none
  std::int64_t max_new_tokens = 0;  ///< maximum number of new tokens, in addition to Continuation::limits; 0: no other limit
  /// A second stop rule: given new tokens (R, t), t >= 1, on the device, returns (R), bool: true for a row that ends with its last token,
  /// which stays in the hypothesis. It is called for each new token, so that a program may show text as it comes.
  std::function<Tensor(const Tensor& tokens)> stop = {};
  bool has_scores = true;  ///< false: greedy search leaves log_probability and score 0, which saves a pass over the logits
  /// score = log_probability / length^length_penalty, as in fairseq and Marian: 0 is the sum over the tokens, 1 their mean.
  double length_penalty = 1;
  std::int64_t n_best = 1;  ///< hypotheses to return for each row: at most `beam` in beam search, any number of samples
  std::int64_t beam = 5;    ///< beam size of Search::beam
  double temperature = 1;   ///< for Search::sample: divisor of the logits; 0, also as f32, is greedy
  std::int64_t top_k = 0;   ///< sample from the k most probable tokens; 0: from all
  double top_p = 1;         ///< sample from the smallest set of tokens with this total probability (Holtzman et al., 2020)
  /// For Search::greedy and Search::sample: divides the logits above 0 of tokens that the row or its prompt has, and multiplies those
  /// below, before temperature, top_k and top_p; 1 changes none. Keskar et al., 2019, in the form of transformers.
  double repetition_penalty = 1;
  std::uint64_t seed = 0;         ///< seed of Search::sample
  std::int64_t first_number = 0;  ///< added to Continuation::numbers, so that a stream in parts is sampled as in one call
  /// Called before each token by every decoding thread, for a program that wants to stop: its exception ends generate(), which throws it.
  std::function<void()> on_token = {};
};

/// New tokens of a row, without eos.
struct Hypothesis {
  TokenIds tokens;             ///< tokens up to eos or the limit
  double log_probability = 0;  ///< under the model, with eos; without temperature, top_k, top_p and repetition_penalty
  double score = 0;            ///< see GenerateOptions::length_penalty; the length includes eos
};

/// Continues each row until eos, the stop rule or its limit. Returns the hypotheses of each row, the best first; samples in the order
/// drawn. Beam search (Note [Beam search]) ends for a row when it has `beam` complete hypotheses and the best incomplete one scores no more
/// than the worst of them. A row has fewer than n_best hypotheses if fewer have a probability above 0. The host reads one number a step;
/// the logits stay on the device, and rows that have ended are removed from the batch. On the CPU the result of a row does not depend,
/// bitwise, on the other rows and their order if that holds for `next`. It does for read_prompts and read_sources, except in a
/// PlainKernels scope: the composed softmax of prompts sums in an order that depends on the longest prompt. Throws Error for options out of
/// range, and for logits with a NaN or +inf, or all -inf: each row has a hypothesis.
std::vector<std::vector<Hypothesis>> generate(Continuation text, const GenerateOptions& options = {});

/// An ensemble of models, with the mean of their probabilities. They need the same vocabulary and rows; the lowest limit of a row applies.
Continuation ensemble(std::vector<Continuation> parts);

/// generate() for many rows, in batches of at most batch_size rows of similar lengths[i], since shorter rows of a batch wait for the
/// longest. read(picks) reads the rows picks[0], picks[1], ...; results are in the order of `lengths`. With `is_thread_safe`, num_threads()
/// threads decode a batch each if there are at least 16 rows for each of them: one thread a batch is faster than many threads a kernel.
/// They call `read`, the functions that it returns and options.stop concurrently, with this thread's gradient mode, precision and default
/// device, but not its generator. Under an observer, autocast or anomaly mode this thread decodes all batches.
std::vector<std::vector<Hypothesis>> generate_in_batches(const std::vector<std::int64_t>& lengths,
                                                         const std::function<Continuation(const std::vector<std::size_t>& picks)>& read,
                                                         const GenerateOptions& options = {}, std::size_t batch_size = 64,
                                                         bool is_thread_safe = false);

/// CUDA graphs of decoding steps, with the KV cache that they work in, kept from one call of read_prompts or read_sources to the next. A
/// shape that occurs often is captured, so that the host launches one graph a token instead of a hundred kernels. This speeds up single
/// rows, and batches whose time is bound by launches. Results are bitwise those of eager steps. Each thread has a cache and graphs of its
/// own, and a read invalidates the Continuation of the thread's previous read. Another model, options or MatmulPrecision start new graphs;
/// under autocast, in anomaly mode and on the CPU steps run eagerly.
class DecodingGraphs {
 public:
  DecodingGraphs();
  ~DecodingGraphs();
  DecodingGraphs(const DecodingGraphs&) = delete;
  DecodingGraphs& operator=(const DecodingGraphs&) = delete;

  /// Number of kernels, copies and fills in the graph that this thread launched last; 0 if the last step ran eagerly.
  std::size_t nodes() const;

  class Reader;
  /// For read_prompts and read_sources: this thread's reader if it was made with this key, else a new one.
  std::shared_ptr<Reader> reader(Device device, std::vector<std::int64_t> key, const std::function<std::shared_ptr<Reader>()>& make);
  /// True if `graphs` is not null and steps may be captured in the current mode.
  static bool serve(const DecodingGraphs* graphs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Options of read_prompts.
struct PromptOptions {
  std::int64_t max_length = 0;       ///< maximum length of prompt and continuation together; 0: the model's length
  bool is_prefix_visible = false;    ///< prefix LM: every token of the prompt attends to the whole prompt
  std::int64_t reset_position = -1;  ///< position of the first new token (see reset_position_ids); -1: that after the prompt
  DecodingGraphs* graphs = nullptr;  ///< CUDA graphs of the steps; null: steps run eagerly
};

/// Reads prompts, each of 1 to max_length - 1 tokens, into a KvCache (prefill), and returns their Continuation. Dropout is off in every
/// mode of the model. Throws Error for a prompt of another length, an id outside the vocabulary, or max_length beyond the model's length.
Continuation read_prompts(const DecoderLM& model, const std::vector<TokenIds>& prompts, const PromptOptions& options = {});

/// generate_in_batches() with read_prompts. A prompt without room for a new token gets an empty hypothesis. On the CPU several threads
/// decode, unless options.stop is set.
std::vector<std::vector<Hypothesis>> generate(const DecoderLM& model, const std::vector<TokenIds>& prompts,
                                              const PromptOptions& prompt_options = {}, const GenerateOptions& options = {},
                                              std::size_t batch_size = 64);

/// Options of read_sources.
struct SourceOptions {
  std::int64_t start = 0;            ///< start token of each target
  std::int64_t max_length = 0;       ///< maximum number of new tokens; 0: the model's length
  DecodingGraphs* graphs = nullptr;  ///< CUDA graphs of the steps; null: steps run eagerly
};

/// Encodes sources, each of 1 token to the model's length, and returns the Continuation of their targets. Dropout is off in every mode of
/// the model. Throws Error for a source of another length, an id outside the vocabulary, or max_length beyond the model's length.
Continuation read_sources(const EncoderDecoder& model, const std::vector<TokenIds>& sources, const SourceOptions& options);

/// generate_in_batches() with read_sources. On the CPU several threads decode, unless options.stop is set.
std::vector<std::vector<Hypothesis>> generate(const EncoderDecoder& model, const std::vector<TokenIds>& sources,
                                              const SourceOptions& source_options, const GenerateOptions& options = {},
                                              std::size_t batch_size = 64);

namespace detail {
/// Batch compaction: number of rows to continue with, of `rows` of which `active` are active. Fewer if a copy of the caches costs less than
/// the steps of finished rows; on a GPU, where each shape of a product is planned at its first use, half of `rows`, a quarter, and so on.
std::int64_t rows_to_keep(std::int64_t active, std::int64_t rows, Device device);

/// Indices of the true values of is_kept (R), bool, and of the others; some of the others are kept too if fewer than `least` are true.
struct Places {
  std::vector<std::int64_t> kept, dropped;
};
Places places_of(const Tensor& is_kept, std::int64_t least = 0);
}  // namespace detail

}  // namespace tern::nn
