#include "lm/language_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "common/training_settings.h"
#include "io/files.h"
#include "io/json_object.h"
#include "io/run_directory.h"
#include "io/safetensors.h"
#include "lm/options.h"
#include "models/gguf.h"
#include "models/hugging_face.h"
#include "nn/init.h"
#include "nn/low_rank.h"
#include "text/chat_template.h"
#include "train/precision.h"

namespace tern::lm {

namespace fs = std::filesystem;

static LanguageModel read(const std::string& path, const LoadOptions& options);

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
  std::error_code error;
  const auto bytes = static_cast<double>(fs::file_size(run.model(), error)), elements = static_cast<double>(apps::count_parameters(shape));
  if (!error && options.lora == 0 && bytes < 4 * elements)
    throw io::FileError(
        fmt::format("{}: does not fit the model in config.json: {:.3g} elements do not fit in {:.0f} bytes", run.model(), elements, bytes));
  return {std::move(run), options, std::move(tokenizer), shape};
}

void read_weights(const io::RunDirectory& run, const std::vector<NamedTensor>& weights) {
  const NoGrad unrecorded;
  io::load_safetensors_into(run.model(), weights);
}

LanguageModel read_run(const std::string& path, const LoadOptions& load) {
  RunFiles files = open_run(path);
  files.shape.device = load.device;
  if (load.length > 0 && files.shape.positions == nn::Positions::rotary) files.shape.length = load.length;
  const auto make = [&] {
    const nn::init::Unset unset;
    if (files.options.lora == 0) {
      nn::DecoderLM model(files.shape);
      read_weights(files.run, nn::named_parameters(model));
      return model;
    }
    LoadOptions of_base = load;
    of_base.dequantizes = true;
    nn::DecoderLM model = read(files.options.base, of_base).model;
    add_adapters(files.options, model);
    read_weights(files.run, nn::named_masters(model, false));
    nn::merge_low_rank(model);
    return model;
  };
  // A text follows the end of another.
  const std::vector<std::int64_t> ends =
      files.options.end_of_text >= 0 ? std::vector{files.options.end_of_text} : std::vector<std::int64_t>();
  return {.model = make(), .tokenizer = std::move(files.tokenizer), .begin = ends, .ends = ends, .chat_template = ""};
}

/// The ids of a key of config.json, which may hold one, several or null.
std::vector<std::int64_t> ids_of(const io::JsonObject& config, const char* key) {
  if (!config.contains(key)) return {};
  try {
    return {config.get_int(key)};
  } catch (const io::FileError&) {
  }
  try {
    return config.get_ints(key);
  } catch (const io::FileError&) {
    return {};
  }
}

LanguageModel read_directory(const std::string& path, const LoadOptions& load) {
  const fs::path directory = path;
  const io::JsonObject config = io::read_json(directory / "config.json");
  LanguageModel result{.model = models::load_hugging_face(path, {.length = load.length, .device = load.device}),
                       .tokenizer = text::Tokenizer::load((directory / "tokenizer.json").string()),
                       .begin = {},
                       .ends = ids_of(config, "eos_token_id"),
                       .chat_template = ""};
  std::error_code ignored;
  if (const fs::path generation = directory / "generation_config.json"; fs::exists(generation, ignored))
    for (const std::int64_t id : ids_of(io::read_json(generation), "eos_token_id"))
      if (std::find(result.ends.begin(), result.ends.end(), id) == result.ends.end()) result.ends.push_back(id);
  constexpr std::size_t most = std::size_t{1} << 24;
  if (const fs::path file = directory / "chat_template.jinja"; fs::exists(file, ignored))
    result.chat_template = io::read_file(file.string(), most);
  else if (const std::string tokenizer = (directory / "tokenizer_config.json").string(); fs::exists(tokenizer, ignored))
    result.chat_template = text::chat_template_of(io::read_file(tokenizer, most), tokenizer);
  result.begin = ids_of(config, "bos_token_id");
  const std::int64_t vocab = result.model.options.vocab;
  for (std::vector<std::int64_t>* ids : {&result.begin, &result.ends})
    std::erase_if(*ids, [vocab](std::int64_t id) { return id < 0 || id >= vocab; });
  if (vocab < static_cast<std::int64_t>(result.tokenizer.vocab_size()))
    throw io::FileError(fmt::format("{}: expected a model of at least the {} tokens of its tokenizer but got {}", path,
                                    result.tokenizer.vocab_size(), vocab));
  return result;
}

LanguageModel read_gguf(const std::string& path, const LoadOptions& load) {
  models::GgufModel file = models::load_gguf(path, {.length = load.length, .device = load.device, .dequantizes = load.dequantizes});
  LanguageModel result{
      .model = std::move(file.model), .tokenizer = std::move(file.tokenizer), .begin = {}, .ends = {}, .chat_template = file.chat_template};
  if (file.bos >= 0) result.begin = {file.bos};
  if (file.eos >= 0) result.ends = {file.eos};
  return result;
}

}  // namespace

enum class Kind : std::uint8_t { run, directory, gguf };

/// The kind of a model's files. Throws UsageError for any other path.
static Kind kind_of(const std::string& path) {
  std::error_code ignored;
  if (fs::path(path).extension() == ".gguf" && fs::is_regular_file(path, ignored)) return Kind::gguf;
  if (!fs::is_directory(path, ignored))
    throw apps::UsageError(fmt::format("{}: expected a run of tern-lm, a directory in Hugging Face's format or a file .gguf but got {}",
                                       path, fs::exists(path, ignored) ? "another file" : "no such path"));
  const fs::path file = fs::path(path) / "config.json";
  return fs::exists(file, ignored) && io::read_json(file).contains("model_type") ? Kind::directory : Kind::run;
}

static LanguageModel read(const std::string& path, const LoadOptions& options) {
  switch (kind_of(path)) {
    case Kind::gguf: return read_gguf(path, options);
    case Kind::directory: return read_directory(path, options);
    default: return read_run(path, options);
  }
}

LanguageModel load(const std::string& path, const LoadOptions& options) {
  LanguageModel result = read(path, options);
  nn::set_requires_grad(result.model, false);
  train::set_precision(result.model, train::precision_of(options.precision).value());
  result.model.eval();
  return result;
}

std::string tokenizer_of(const std::string& path) {
  switch (kind_of(path)) {
    case Kind::gguf: return fmt::format("the tokenizer.json that tern-lm export makes of {}", path);
    case Kind::directory: return (fs::path(path) / "tokenizer.json").string();
    default: return io::RunDirectory::open(path).tokenizer();
  }
}

nn::DecoderLMOptions shape_of(const std::string& path) {
  const Kind kind = kind_of(path);
  if (kind == Kind::run) return open_run(path).shape;
  if (kind == Kind::gguf) return models::gguf_shape(path);
  const std::string file = (fs::path(path) / "config.json").string();
  return models::detail::parse_config(io::read_file(file, std::size_t{1} << 20), file).options;
}

}  // namespace tern::lm
