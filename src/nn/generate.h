#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "nn/decoder_lm.h"
#include "nn/encoder_decoder.h"

namespace tern::nn {

/// Tokens of one row, without filling.
using TokenIds = std::vector<std::int64_t>;

/// Next-token logits for some rows of tokens, by any model: all that `generate` asks of one. read_prompts, read_sources and ensemble make
/// it; a model of the user's own needs two functions, and keeps what it knows of the rows where they find it. N rows at first, R later.
struct Continuation {
  Tensor logits;                     ///< (N, V), floating: of the first new token of each row
  std::vector<std::int64_t> limits;  ///< (N): the most new tokens of each row, 1 or more
  /// Reads a token a row, ids (R) of i64, and gives the logits (R, V) of the token that follows.
  std::function<Tensor(const Tensor& ids)> next;
  /// Row i becomes what row rows[i] was, for rows (R') of i64. With `keeps_sources` row i and row rows[i] have one prompt or source, and
  /// there are as many rows as before: what belongs to the source can stay where it is.
  std::function<void(const Tensor& rows, bool keeps_sources)> select;
  /// (N): what a row draws as a sample depends on its number, not on its place; empty: 0 .. N - 1.
  std::vector<std::int64_t> numbers = {};
};

/// Search strategies of generate().
enum class Search : std::uint8_t {
  greedy,  ///< the most probable token each time
  beam,    ///< beam search: the best of `beam` hypotheses, by score
  sample,  ///< tokens drawn by their probabilities
};

/// Options of generate().
struct GenerateOptions {
  Search search = Search::greedy;   ///< see Search
  std::int64_t eos = 1;             ///< ends a row; a hypothesis has its probability and not the token. -1: none
  std::int64_t max_new_tokens = 0;  ///< fewer than Continuation::limits allow; 0: as they say
  /// A stop rule beside eos: of new tokens (R, t), t >= 1, the rows (R), bool, that end with their last one, which stays. On the device.
  std::function<Tensor(const Tensor& tokens)> stop = {};
  bool has_scores = true;  ///< greedy can leave log_probability and score 0, which saves a pass over the logits
  /// score = log_probability / length^length_penalty, as in fairseq and Marian: 0 for the sum over the tokens, 1 for their mean.
  double length_penalty = 1;
  std::int64_t n_best = 1;        ///< hypotheses of a row: at most `beam` of a beam search, any number of samples
  std::int64_t beam = 5;          ///< of Search::beam
  double temperature = 1;         ///< of Search::sample: logits are divided by it; 0 is greedy
  std::int64_t top_k = 0;         ///< draw from the k most probable tokens; 0: from all
  double top_p = 1;               ///< draw from the fewest tokens that have this probability together (Holtzman et al., 2020)
  std::uint64_t seed = 0;         ///< of Search::sample
  std::int64_t first_number = 0;  ///< is added to Continuation::numbers: a stream that comes in parts draws as if it came at once
  /// Called before each token is read, by each thread that decodes: what it throws ends the decoding, and is thrown.
  std::function<void()> on_token = {};
};

/// New tokens of a row, without eos.
struct Hypothesis {
  TokenIds tokens;             ///< as chosen, up to eos or the limit
  double log_probability = 0;  ///< by the model, eos included, temperature and limits of the choice left out
  double score = 0;            ///< the length counts eos
};

/// Continues each row until eos, a stop rule or its limit: its hypotheses, the best first, samples as drawn.
/// Beam search (Note [Beam search]) stops for a row when it has `beam` complete hypotheses and the best incomplete one scores no more than
/// the worst of them; a row may have fewer than n_best where the model knows no more.
/// One number a token is read by the host; the logits never leave the device, and rows that have ended make place. On the CPU the result
/// is the same, bit for bit, in whatever company and order the rows come, if that is so of `next`: of read_prompts and read_sources it is
/// with fused kernels, while the plain softmax of a prompt sums in an order that the longest prompt decides.
/// Throws Error for options out of range, and for logits with a NaN, or all -inf.
std::vector<std::vector<Hypothesis>> generate(Continuation text, const GenerateOptions& options = {});

/// Several models as one: the mean of their probabilities. They have one vocabulary and the same rows; the lowest limit counts.
Continuation ensemble(std::vector<Continuation> parts);

/// generate() for many rows in batches of at most batch_size, each of rows of like lengths[i], which are the cost of reading them, for a
/// shorter row waits for a longer one. read(picks) reads the rows picks[0], picks[1], ...; results are in the order of `lengths`.
/// With `is_thread_safe` num_threads() threads take a batch each, where there are 16 rows or more for each of them: every batch then has
/// one thread from its first token to its last, which is faster than many for each kernel. They call `read`, the functions that it returns
/// and options.stop at the same time, with gradients, precision and default device as this thread has them, and without its random numbers.
/// Under an observer, autocast or anomaly mode this thread decodes one batch after the other as ever.
std::vector<std::vector<Hypothesis>> generate_in_batches(const std::vector<std::int64_t>& lengths,
                                                         const std::function<Continuation(const std::vector<std::size_t>& picks)>& read,
                                                         const GenerateOptions& options = {}, std::size_t batch_size = 64,
                                                         bool is_thread_safe = false);

/// Decoding on a GPU by CUDA graphs: a model's steps, and the cache that they work in, kept from one read to the next (of read_prompts or
/// read_sources). A shape that comes often is recorded, so that the host launches a graph a token instead of a hundred kernels: a line
/// alone is faster by it, and batches where the host is what they wait for. Results are those of the steps as written, bit for bit. A read
/// ends the Continuation of the read before it by the same thread: each has a cache and graphs of its own. Another model, other options or
/// another MatmulPrecision begin anew; under autocast and in anomaly mode nothing is kept, and on the CPU steps run as written.
class DecodingGraphs {
 public:
  DecodingGraphs();
  ~DecodingGraphs();
  DecodingGraphs(const DecodingGraphs&) = delete;
  DecodingGraphs& operator=(const DecodingGraphs&) = delete;

  /// Kernels, copies and fills in the graph that this thread launched last; 0: the last step ran as written.
  std::size_t nodes() const;

  class Reader;
  /// For read_prompts and read_sources: this thread's reader, if it was made with this key, or another one.
  std::shared_ptr<Reader> reader(Device device, std::vector<std::int64_t> key, const std::function<std::shared_ptr<Reader>()>& make);
  /// Whether there are graphs to decode by, here and now.
  static bool serve(const DecodingGraphs* graphs);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Options of read_prompts.
struct PromptOptions {
  std::int64_t max_length = 0;       ///< of prompt and continuation together; 0: the model's length
  bool is_prefix_visible = false;    ///< a prefix LM: every token of the prompt sees the whole prompt
  std::int64_t reset_position = -1;  ///< of the first new token (see reset_position_ids); -1: the one after the prompt's
  DecodingGraphs* graphs = nullptr;  ///< that the steps are recorded in; null: all run as written
};

/// The continuation of prompts, each of 1 to max_length - 1 tokens, which are read at once; later tokens one by one, with a KvCache.
/// Dropout is off whatever the model's mode. Throws Error for a prompt of another length, an id outside the vocabulary, or max_length
/// beyond the model's length.
Continuation read_prompts(const DecoderLM& model, const std::vector<TokenIds>& prompts, const PromptOptions& options = {});

/// generate_in_batches of read_prompts; a prompt that has no room for a new token gets a hypothesis without any. On the CPU by several
/// threads, but with options.stop.
std::vector<std::vector<Hypothesis>> generate(const DecoderLM& model, const std::vector<TokenIds>& prompts,
                                              const PromptOptions& prompt_options = {}, const GenerateOptions& options = {},
                                              std::size_t batch_size = 64);

/// Options of read_sources.
struct SourceOptions {
  std::int64_t start = 0;            ///< the token that each target follows on
  std::int64_t max_length = 0;       ///< the most new tokens; 0: the model's length
  DecodingGraphs* graphs = nullptr;  ///< that the steps are recorded in; null: all run as written
};

/// The continuation of sources, each of 1 token to the model's length: encoded once, then decoded token by token. Dropout is off whatever
/// the model's mode. Throws Error for a source of another length, an id outside the vocabulary, or max_length beyond the model's length.
Continuation read_sources(const EncoderDecoder& model, const std::vector<TokenIds>& sources, const SourceOptions& options);

/// generate_in_batches of read_sources. On the CPU by several threads, but with options.stop.
std::vector<std::vector<Hypothesis>> generate(const EncoderDecoder& model, const std::vector<TokenIds>& sources,
                                              const SourceOptions& source_options, const GenerateOptions& options = {},
                                              std::size_t batch_size = 64);

}  // namespace tern::nn
