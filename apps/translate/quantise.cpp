#include <fmt/format.h>

#include <filesystem>

#include "common/program.h"
#include "io/run_directory.h"
#include "nn/layers.h"
#include "text/unicode.h"
#include "trainer/terminal.h"
#include "translate/commands.h"
#include "translate/translator.h"

namespace tern::translate {

namespace fs = std::filesystem;

void quantise(const QuantiseOptions& options) {
  const QuantFormat format = quant_format_of(options.format).value();  // the option has been checked
  fs::path run = options.run;
  if (!run.has_filename()) run = run.parent_path();  // RUN/
  const fs::path out = options.out.empty() ? fs::path(fmt::format("{}-{}", run.string(), options.format)) : fs::path(options.out);
  std::error_code ignored;
  if (fs::equivalent(run, out, ignored))
    throw apps::UsageError(
        fmt::format("--out {}: is the run itself, which is kept: name another directory", text::printable(out.string())));
  io::RunDirectory::check(out);
  Translator translator = Translator::load(run, cpu, "fp32");
  if (translator.options.quantization)
    throw apps::UsageError(fmt::format("{}: is quantised already, to {}: name the float32 run that it was made from",
                                       text::printable(options.run), name(*translator.options.quantization)));
  const io::RunDirectory before = io::RunDirectory::open(run);
  io::JsonObject config = before.read_config();
  const std::int64_t parameters = nn::count_parameters(translator.model);
  nn::quantize(translator.model, format);

  io::RunDirectory after = io::RunDirectory::create(out, config.set(quantization_key, name(format)));
  after.write_tokenizer(translator.tokenizer.to_json());
  std::vector<NamedTensor> tensors = nn::named_parameters(translator.model);
  for (NamedTensor& buffer : nn::named_buffers(translator.model)) tensors.push_back(std::move(buffer));
  after.save_model(tensors, {{"format", "pt"}, {quantization_key, name(format)}});
  const auto old_bytes = static_cast<std::int64_t>(fs::file_size(before.model())),
             new_bytes = static_cast<std::int64_t>(fs::file_size(after.model()));
  const double ratio = static_cast<double>(new_bytes) / static_cast<double>(old_bytes);
  io::JsonObject summary;
  summary.set("quantised", options.run).set("format", name(format)).set("params", parameters);
  after.write_summary(summary.set("bytes_before", old_bytes).set("bytes_after", new_bytes));
  apps::say("{}: {:.2f} M parameters, {} bytes before, {} after: {:.3f} of it; the run is in {}\n", name(format),
            static_cast<double>(parameters) / 1e6, old_bytes, new_bytes, ratio, text::printable(out.string()));
}

}  // namespace tern::translate
