// A GPT-2 or a Llama of Hugging Face's: what it is made of, and how it continues a few tokens.
//     load_hugging_face [DIRECTORY [TOKEN ...]]
// Without a directory it writes a tiny Llama with random weights in Hugging Face's form, and reads that: expected.txt is what it prints
// then.
#include <tern/tern.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

using namespace tern;

namespace {

void print_summary(const nn::DecoderLM& model) {
  const nn::DecoderLMOptions& o = model.options;
  const bool is_llama = o.norm == nn::NormKind::rms;
  std::printf(
      "%s: vocabulary %lld, %lld positions, width %lld, %lld layers, %lld heads, %lld of keys and values, %s head, %lld parameters\n",
      is_llama ? "llama" : "gpt2", static_cast<long long>(o.vocab), static_cast<long long>(o.length), static_cast<long long>(o.width),
      static_cast<long long>(o.layers), static_cast<long long>(o.heads), static_cast<long long>(o.kv_heads > 0 ? o.kv_heads : o.heads),
      o.tied_head ? "tied" : "untied", static_cast<long long>(nn::count_parameters(model)));
  for (const NamedTensor& parameter : nn::named_parameters(model)) {
    std::printf("  %-28s", parameter.name.c_str());
    for (const std::int64_t size : parameter.tensor.shape()) std::printf(" %lld", static_cast<long long>(size));
    std::printf("\n");
  }
}

/// The tiny Llama, by way of files.
nn::DecoderLM written_and_read() {
  manual_seed(1);
  const nn::DecoderLM model({.vocab = 96,
                             .length = 64,
                             .width = 32,
                             .layers = 2,
                             .heads = 4,
                             .ff = 48,
                             .kv_heads = 2,
                             .dropout = 0,
                             .activation = nn::Activation::silu,
                             .gated = true,
                             .bias = false,
                             .norm = nn::NormKind::rms,
                             .positions = nn::Positions::rotary,
                             .rope_pairs = RopePairs::halves,
                             .head_bias = false});
  const auto directory = std::filesystem::temp_directory_path() / ("llama-" + std::to_string(::getpid()));
  models::save_hugging_face(model, directory);
  nn::DecoderLM read = models::load_hugging_face(directory);
  std::filesystem::remove_all(directory);
  return read;
}

}  // namespace

int main(int argc, char** argv) try {
  nn::DecoderLM model = argc > 1 ? models::load_hugging_face(argv[1]) : written_and_read();
  print_summary(model);
  nn::TokenIds prompt;
  for (int i = 2; i < argc; ++i) prompt.push_back(std::atoll(argv[i]));
  if (prompt.empty()) prompt = {1, 2, 3};
  // The cache of keys and values is as long as the texts may become, and by default that is the model's length.
  const std::int64_t new_tokens = 8, length = static_cast<std::int64_t>(prompt.size()) + new_tokens;
  const auto hypotheses = nn::generate(model, {prompt}, {.max_length = length}, {.eos = -1, .max_new_tokens = new_tokens});
  for (const std::int64_t token : prompt) std::printf("%lld ", static_cast<long long>(token));
  std::printf("->");
  for (const std::int64_t token : hypotheses[0][0].tokens) std::printf(" %lld", static_cast<long long>(token));
  std::printf("\n");
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
}
