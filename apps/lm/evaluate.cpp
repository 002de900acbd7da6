#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "common/training_settings.h"
#include "lm/commands.h"
#include "lm/writer.h"
#include "nn/likelihood.h"
#include "text/corpus.h"
#include "text/data_error.h"
#include "text/input_file.h"
#include "text/multiple_choice.h"
#include "text/unicode.h"

namespace tern::lm {

namespace {

struct EvaluateOptions : ReadOptions {
  std::string text, choices;
  std::int64_t overlap = -1;  ///< tokens; -1: half of the model's length
  std::int64_t batch_size = 8;
};

void evaluate_text(const LanguageModel& model, const EvaluateOptions& options) {
  const std::int64_t length = model.model.options.length, overlap = options.overlap < 0 ? length / 2 : options.overlap;
  if (overlap >= length) throw apps::UsageError(fmt::format("--overlap {}: expected less than the model's {} tokens", overlap, length));
  const std::string text = text::read_file(options.text, std::size_t{1} << 32);
  const nn::TokenIds tokens = joined(model.begin, model.tokenizer.encode(text));
  const std::size_t first = std::max<std::size_t>(model.begin.size(), 1);  // nothing predicts those before
  if (tokens.size() <= first) throw text::DataError(fmt::format("{}: expected text but got {} tokens", options.text, tokens.size()));
  const double loss =
      -nn::log_likelihood(model.model, tokens, first, static_cast<std::size_t>(overlap), static_cast<std::size_t>(options.batch_size));
  const double mean = loss / static_cast<double>(tokens.size() - first);
  apps::say("tokens {}, bytes {}, in windows of {} tokens that overlap by {}\n", tokens.size() - first, text.size(), length, overlap);
  apps::say("loss {:.6f}, perplexity {:.4f}, bits per byte {:.6f}\n", mean, std::exp(mean),
            loss / std::log(2.0) / static_cast<double>(text.size()));
}

/// An ending is the more likely the larger the log-probability of " " and its text after the beginning, or the same divided by its bytes.
void evaluate_choices(const LanguageModel& model, const EvaluateOptions& options) {
  const auto most = static_cast<std::size_t>(model.model.options.length) + 1;
  text::LineReader reader(options.choices, {});
  text::CorpusReport report;
  std::int64_t count = 0, by_sum = 0, by_byte = 0;
  for (std::string line; reader.next(line, report);) {
    if (text::is_blank(line)) continue;
    const text::MultipleChoice question = text::read_multiple_choice(line, fmt::format("{}:{}", options.choices, report.lines));
    const nn::TokenIds beginning = joined(model.begin, model.tokenizer.encode(text::strip_right(question.context)));
    std::vector<nn::ScoredTokens> rows;
    for (const std::string& ending : question.endings) {
      nn::ScoredTokens row{joined(beginning, model.tokenizer.encode(" " + ending)), std::max<std::size_t>(beginning.size(), 1)};
      if (row.tokens.size() > most) {  // the end of a text that is too long
        const std::size_t cut = row.tokens.size() - most;
        row.tokens.erase(row.tokens.begin(), row.tokens.begin() + std::ptrdiff_t(cut));
        row.first = row.first > cut ? row.first - cut : 1;
      }
      rows.push_back(std::move(row));
    }
    std::vector<double> sums = nn::log_likelihoods(model.model, rows, static_cast<std::size_t>(options.batch_size));
    const auto is_right = [&] {
      return static_cast<std::size_t>(std::max_element(sums.begin(), sums.end()) - sums.begin()) == question.label ? 1 : 0;
    };
    ++count;
    by_sum += is_right();
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] /= static_cast<double>(question.endings[i].size());
    by_byte += is_right();
  }
  if (count == 0) throw text::DataError(fmt::format("{}: expected a question or more but got none", options.choices));
  apps::say("questions {}\n", count);
  for (const auto& [name, correct] : {std::pair("sum", by_sum), std::pair("per byte", by_byte)}) {
    const apps::Interval interval = apps::wilson(correct, count);
    apps::say("accuracy by likelihood, {} {:.4f} ({:.4f} to {:.4f}, 95%)\n", name,
              static_cast<double>(correct) / static_cast<double>(count), interval.low, interval.high);
  }
}

void evaluate(const EvaluateOptions& options) {
  if (options.text.empty() == options.choices.empty()) throw apps::UsageError("expected --text FILE or --choices FILE, one of them");
  const LanguageModel model = load(options);
  const train::PrecisionScope scope(train::precision_of(options.precision).value());
  options.text.empty() ? evaluate_choices(model, options) : evaluate_text(model, options);
}

}  // namespace

void add_evaluate(CLI::App& app) {
  auto* command = app.add_subcommand("eval", "measure a model by the perplexity of a text, or by choices");
  const auto options = std::make_shared<EvaluateOptions>();
  command->add_option("--text", options->text, "text whose perplexity is measured")->type_name("FILE");
  command->add_option("--choices", options->choices, "questions, one a line: {\"ctx\": TEXT, \"endings\": [TEXT, ...], \"label\": N}")
      ->type_name("FILE");
  apps::add_option(*command, "--overlap", options->overlap,
                   "tokens of a window that the one before it has scored (half of the model's length)", apps::count_or_none(), "N");
  apps::add_value(*command, "--batch-size", options->batch_size, "texts read together; does not change the result", apps::positive_count(),
                  "N");
  add_read_options(*command, *options);
  command->callback([options] { evaluate(*options); });
}

}  // namespace tern::lm
