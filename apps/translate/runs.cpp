// Runs that are made of other runs: the mean of several, and a copy with quantised weights.
#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "common/program.h"
#include "io/run_directory.h"
#include "nn/layers.h"
#include "ops/factory.h"
#include "text/bpe.h"
#include "text/unicode.h"
#include "trainer/terminal.h"
#include "translate/commands.h"
#include "translate/options.h"
#include "translate/translator.h"

namespace tern::translate {

namespace fs = std::filesystem;

namespace {

/// Weights, and the run that they belong to.
struct Input {
  io::RunDirectory run;
  std::map<std::string, Tensor> weights;
};

/// The weights of a checkpoint are among the state of a training.
std::map<std::string, Tensor> weights_of_checkpoint(const fs::path& file) {
  const std::string prefix = "model.";
  std::map<std::string, Tensor> weights;
  for (const auto& [name, tensor] : io::load_safetensors(file).tensors)
    if (name.starts_with(prefix)) weights.emplace(name.substr(prefix.size()), tensor);
  if (weights.empty()) throw io::FileError(fmt::format("{}: expected a checkpoint but got a file without a model", file.string()));
  return weights;
}

Input open(const std::string& path) {
  if (fs::is_regular_file(path))
    return {io::RunDirectory::open(fs::absolute(path).parent_path().parent_path()), weights_of_checkpoint(path)};
  io::RunDirectory run = io::RunDirectory::open(path);
  run.require_whole();
  if (run.read_config().contains(quantization_key))
    throw io::FileError(fmt::format("{}: is quantised, and bytes have no mean: average the float32 runs, and quantise the result", path));
  std::map<std::string, Tensor> weights = io::load_safetensors(run.model()).tensors;
  return {std::move(run), std::move(weights)};
}

/// Throws FileError if the second input has other tensors than the first.
void require_same(const std::string& first, const Input& a, const std::string& second, const Input& b) {
  for (const auto& [name, tensor] : a.weights) {
    const auto other = b.weights.find(name);
    if (other == b.weights.end() || other->second.shape() != tensor.shape())
      throw io::FileError(fmt::format("{}: expected the model of {}, with a tensor \"{}\" {}, but got {}", second, first, name,
                                      to_string(tensor.shape()), other == b.weights.end() ? "none" : to_string(other->second.shape())));
  }
  if (a.weights.size() != b.weights.size())
    throw io::FileError(fmt::format("{}: expected the {} tensors of {} but got {}", second, a.weights.size(), first, b.weights.size()));
  if (text::Tokenizer::load(a.run.tokenizer()).to_json() != text::Tokenizer::load(b.run.tokenizer()).to_json())
    throw io::FileError(fmt::format("{}: expected the tokenizer of {} but got another", second, first));
}

}  // namespace

void average(const AverageOptions& options) {
  io::RunDirectory::check(options.out);
  const Input first = open(options.inputs[0]);
  const Options shape = from_json(first.run.read_config(), first.run.config());
  std::map<std::string, std::vector<double>> sums;
  for (std::size_t i = 0; i < options.inputs.size(); ++i) {
    std::map<std::string, Tensor> weights = first.weights;
    if (i > 0) {
      const Input next = open(options.inputs[i]);
      require_same(options.inputs[0], first, options.inputs[i], next);
      weights = next.weights;
    }
    for (const auto& [name, tensor] : weights) {
      const std::vector<float> values = cast(tensor, DType::f32).to_vector<float>();
      std::vector<double>& sum = sums[name];
      sum.resize(values.size());
      for (std::size_t k = 0; k < values.size(); ++k) sum[k] += double(values[k]);
    }
  }
  std::vector<NamedTensor> means;
  for (const auto& [name, sum] : sums) {
    std::vector<float> mean(sum.size());
    for (std::size_t k = 0; k < mean.size(); ++k) mean[k] = static_cast<float>(sum[k] / static_cast<double>(options.inputs.size()));
    means.push_back({name, Tensor::from(mean, first.weights.at(name).shape())});
  }
  const std::string tokenizer = text::Tokenizer::load(first.run.tokenizer()).to_json();
  io::RunDirectory out = io::RunDirectory::create(options.out, apps::to_json(entries(), shape));
  out.write_tokenizer(tokenizer);
  out.save_model(means, {{"format", "pt"}});
  io::JsonObject summary;
  out.write_summary(summary.set("averaged", options.inputs));
  apps::say("averaged {}; the run is in {}\n", apps::counted(std::ssize(options.inputs), "model"), text::printable(options.out));
}

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
