#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>

#include "common/program.h"
#include "io/files.h"
#include "io/json_object.h"
#include "lm/commands.h"
#include "lm/language_model.h"
#include "models/gguf.h"
#include "models/hugging_face.h"
#include "text/input_file.h"

namespace tern::lm {

namespace fs = std::filesystem;

namespace {

struct State {
  std::string model, out, format;
};

constexpr std::array gguf_formats = {io::GgufFormat::f32, io::GgufFormat::f16, io::GgufFormat::bf16, io::GgufFormat::q8_0,
                                     io::GgufFormat::q4_0};

/// Throws UsageError unless a file may be written at `path`: there is none, or a GGUF file.
void require_gguf_place(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  std::string begin(4, '\0');
  if (fs::is_regular_file(path, ignored)) text::InputFile(path).read_at(0, begin.data(), begin.size());
  if (begin != "GGUF") throw apps::UsageError(fmt::format("--out {}: expected a new file or a GGUF file but got another one", path));
}

/// Throws UsageError unless a model may be written into the directory `path`: it is missing or empty, or has such a model.
void require_directory_place(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored) || (fs::is_directory(path, ignored) && fs::is_empty(path, ignored))) return;
  const fs::path config = fs::path(path) / "config.json";
  if (!fs::exists(config, ignored) || !io::read_json(config).contains("model_type"))
    throw apps::UsageError(fmt::format("--out {}: expected a new directory or a model in Hugging Face's format but got another {}", path,
                                       fs::is_directory(path, ignored) ? "directory" : "file"));
}

void export_model(const State& state) {
  const bool is_gguf_path = fs::path(state.out).extension() == ".gguf";
  const std::string format = !state.format.empty() ? state.format : is_gguf_path ? "f16" : "hf";
  if (format == "hf") require_directory_place(state.out);
  else require_gguf_place(state.out);
  // Blocks stay as they are in a file of blocks.
  const LanguageModel model = load(state.model, {.dequantizes = format == "hf"});
  if (format == "hf") models::save_language_model(model, state.out);
  else
    models::save_gguf(model, state.out,
                      *std::find_if(gguf_formats.begin(), gguf_formats.end(), [&](auto f) { return format == io::name(f); }));
  apps::say("{}: {}", state.out, format == "hf" ? "a model in Hugging Face's format" : "GGUF, " + format);
}

}  // namespace

void add_export(CLI::App& app) {
  auto* command = app.add_subcommand("export", "write a model for other programs");
  const auto state = std::make_shared<State>();
  command->add_option("model", state->model, "a run, a directory in Hugging Face's format, or a GGUF file")->required()->type_name("MODEL");
  command->add_option("--out", state->out, "directory or file to write; another model of the same kind there is replaced")
      ->required()
      ->type_name("PATH");
  std::vector<std::string> names = {"hf"};
  for (const io::GgufFormat each : gguf_formats) names.push_back(io::name(each));
  command
      ->add_option("--format", state->format,
                   "hf: a directory in Hugging Face's format; f32, f16, bf16, q8_0, q4_0: a GGUF file for llama.cpp; by default f16 for a "
                   "PATH that ends in .gguf, else hf")
      ->check(apps::one_of(names))
      ->type_name("NAME");
  command->callback([state] { export_model(*state); });
}

}  // namespace tern::lm
