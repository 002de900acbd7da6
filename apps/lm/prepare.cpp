// tern-lm prepare: text of any size to shards of tokens (data/prepare.h).
#include "data/prepare.h"

#include <utility>

#include "common/program.h"
#include "lm/commands.h"

namespace tern::lm {
namespace {

using data::PrepareOptions;

void run(PrepareOptions options) {
  apps::require_named("--out", options.out);
  const train::StopSignals signals;
  const double begin = train::seconds_now();
  train::ProgressLine line;
  bool is_first = true;
  options.on_progress = [&](const data::PrepareProgress& progress) {
    if (std::exchange(is_first, false) && progress.tokens > 0)
      line.print(fmt::format("goes on behind {} tokens", train::grouped(static_cast<double>(progress.tokens))));
    train::require_no_stop("while it prepared data; the same command goes on");
    if (!line.is_due()) return;
    const double done = static_cast<double>(progress.bytes), all = static_cast<double>(progress.all_bytes),
                 seconds = train::seconds_now() - begin;
    line.update(fmt::format("{} {:3.0f}%", progress.trains_tokenizer ? "tokenizer" : "tokens", 100 * done / all), done / all,
                fmt::format(" {:.0f}/{:.0f} MB [{}] {} tokens", done / 1e6, all / 1e6, train::clock_time(seconds),
                            train::grouped(static_cast<double>(progress.tokens))));
  };
  data::prepare(options);
  line.finish();
  const data::PreparedData data = data::PreparedData::open(options.out);
  apps::say("{} tokens to train on, {} to validate on, {:.2f} bytes a token, in {}\n",
            train::grouped(static_cast<double>(data.train.size())), train::grouped(static_cast<double>(data.valid.size())),
            static_cast<double>(data.train_bytes + data.valid_bytes) / static_cast<double>(data.train.size() + data.valid.size()),
            apps::duration(train::seconds_now() - begin));
}

}  // namespace

void add_prepare(CLI::App& app) {
  auto* command = app.add_subcommand("prepare", "encode text into the tokens that train reads");
  const auto options = std::make_shared<PrepareOptions>();
  options->threads = num_threads();
  command
      ->add_option("text", options->text, "text files, plain or compressed by gzip or zstd, each one document; *.jsonl: a document a line")
      ->required()
      ->type_name("FILE");
  command->add_option("--out", options->out, "directory to write; a preparation that was cut short there goes on")
      ->required()
      ->type_name("DIR");
  auto* vocab = apps::add_value(*command, "--vocab", options->vocab, "tokens of a new tokenizer, which is trained on a sample of the text",
                                apps::whole_number(257, 500'000), "N");
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json to take instead")->type_name("FILE")->excludes(vocab);
  command->add_option("--field", options->field, "all files are JSON lines, whose objects have the text here (of *.jsonl: text)")
      ->type_name("NAME");
  command->add_option("--separator", options->separator, "text between the documents of plain files, such as <|endoftext|>")
      ->type_name("TEXT")
      ->check([](const std::string& text) {
        return text.empty() || text.find('\n') != std::string::npos ? "expected some text without a line break" : std::string();
      });
  auto* share = apps::add_value(*command, "--valid-share", options->valid_share,
                                "share of the text to validate on, in parts from all over it", apps::real_number(0, 0.5), "X");
  command->add_option("--valid", options->valid, "files of text to validate on instead")->type_name("FILE")->excludes(share);
  apps::add_value(*command, "--shard-tokens", options->shard_tokens, "least tokens of a file of the output but the last",
                  apps::whole_number(1, 1'000'000'000), "N");
  apps::add_option(*command, "--threads", options->threads, "CPU threads (default: one for each processor)", apps::whole_number(1, 1024),
                   "N");
  command->callback([options] { run(*options); });
}

}  // namespace tern::lm
