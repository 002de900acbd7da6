#include "lm/language_model.h"

#include <fmt/format.h>

#include <filesystem>

#include "io/files.h"
#include "io/json_object.h"
#include "io/run_directory.h"
#include "io/safetensors.h"
#include "lm/options.h"
#include "models/gguf.h"
#include "models/hugging_face.h"
#include "nn/init.h"
#include "nn/low_rank.h"

namespace tern::lm {

namespace fs = std::filesystem;

namespace {

/// A run, checked as far as possible without its weights.
struct RunFiles {
  io::RunDirectory run;
  Options options;
  text::Tokenizer tokenizer;
  nn::DecoderLMOptions shape;
};

RunFiles open_run(const std::string& path) {
  io::RunDirectory run = io::RunDirectory::open(path);
  run.require_whole();
  const Options options = apps::from_json(entries(), run.read_config(), run.config());
  require_valid(options);
  text::Tokenizer tokenizer = text::Tokenizer::load(run.tokenizer());
  const auto vocab = static_cast<std::int64_t>(tokenizer.vocab_size());
  const nn::DecoderLMOptions shape = model_options(options, vocab, cpu);
  if (shape.vocab < vocab || options.end_of_text >= shape.vocab)
    throw io::FileError(
        fmt::format("{}: vocab: expected at least the {} tokens of the tokenizer but got {}", run.config(), vocab, shape.vocab));
  if (options.lora == 0) apps::require_weights(run, apps::count_parameters(shape), 4);
  return {std::move(run), options, std::move(tokenizer), shape};
}

LanguageModel load_run(const std::string& path, models::LoadOptions load_options) {
  RunFiles files = open_run(path);
  files.shape.device = load_options.device;
  if (load_options.length > 0 && files.shape.positions == nn::Positions::rotary) files.shape.length = load_options.length;
  load_options.dequantizes = true;
  const NoGrad unrecorded;
  const nn::init::Unset unset;
  const bool has_adapters = files.options.lora > 0;
  nn::DecoderLM model = has_adapters ? load(files.options.base, load_options).model : nn::DecoderLM(files.shape);
  add_adapters(files.options, model);
  io::load_safetensors_into(files.run.model(), nn::named_masters(model, false));
  if (has_adapters) nn::merge_low_rank(model);
  LanguageModel result{.model = std::move(model), .tokenizer = std::move(files.tokenizer)};
  if (files.options.end_of_text >= 0) result.begin = result.ends = {files.options.end_of_text};  // a text follows the end of another
  return result;
}

enum class Kind : std::uint8_t { run, directory, gguf };

/// The kind of a model's files. Throws UsageError for any other path.
Kind kind_of(const std::string& path) {
  std::error_code ignored;
  if (fs::path(path).extension() == ".gguf" && fs::is_regular_file(path, ignored)) return Kind::gguf;
  if (!fs::is_directory(path, ignored))
    throw apps::UsageError(fmt::format("{}: expected a run of tern-lm, a directory in Hugging Face's format or a file .gguf but got {}",
                                       path, fs::exists(path, ignored) ? "another file" : "no such path"));
  const fs::path file = fs::path(path) / "config.json";
  return fs::exists(file, ignored) && io::read_json(file).contains("model_type") ? Kind::directory : Kind::run;
}

}  // namespace

LanguageModel load(const std::string& path, const models::LoadOptions& options) {
  const Kind kind = kind_of(path);
  LanguageModel result = kind == Kind::gguf        ? models::load_gguf(path, options)
                         : kind == Kind::directory ? models::load_language_model(path, options)
                                                   : load_run(path, options);
  nn::set_requires_grad(result.model, false);
  result.model.eval();
  return result;
}

std::string tokenizer_of(const std::string& path) {
  const Kind kind = kind_of(path);
  if (kind == Kind::gguf) return fmt::format("the tokenizer.json that tern-lm export makes of {}", path);
  return kind == Kind::run ? io::RunDirectory::open(path).tokenizer() : (fs::path(path) / "tokenizer.json").string();
}

nn::DecoderLMOptions shape_of(const std::string& path) {
  const Kind kind = kind_of(path);
  if (kind == Kind::run) return open_run(path).shape;
  return kind == Kind::gguf ? models::gguf_shape(path) : models::hugging_face_shape(path);
}

}  // namespace tern::lm
