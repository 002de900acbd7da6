// A GPT of characters: a token file, a Loader whose thread makes batches ahead, Muon for the matrices with AdamW beside, and a sample.
// expected.txt is what this prints.
#include <tern/tern.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <string>

using namespace tern;

int main() {
  const std::string line = "pack my box with five dozen jugs of old ink, then sit and read. ";
  std::string text;
  for (int i = 0; i < 20; ++i) text += line;

  // A vocabulary of the text's characters, and the text as a file of llm.c's, as large ones come.
  std::map<char, std::int64_t> ids;
  std::string characters;
  for (const char c : text)
    if (ids.emplace(c, ids.size()).second) characters += c;
  nn::TokenIds tokens;
  for (const char c : text) tokens.push_back(ids[c]);
  const auto path = std::filesystem::temp_directory_path() / ("char_gpt-" + std::to_string(::getpid()) + ".bin");
  data::save_tokens(path, tokens);
  const data::TokenFile file(path);
  std::filesystem::remove(path);  // the mapping stays
  std::printf("%lld tokens, %zu characters\n", static_cast<long long>(file.size()), characters.size());

  manual_seed(1);
  const Device device = cuda_device_count() > 0 ? cuda() : cpu;
  constexpr std::int64_t length = 40;
  nn::DecoderLM model({.vocab = static_cast<std::int64_t>(characters.size()),
                       .length = length,
                       .width = 32,
                       .layers = 1,
                       .heads = 2,
                       .ff = 64,
                       .dropout = 0,
                       .device = device});

  // Muon is for the matrices of the layers; the token tables, the head, norms and biases are AdamW's.
  Tensors matrices, others;
  for (const auto& [name, parameter] : nn::named_parameters(model))
    (parameter.dims() == 2 && name.starts_with("blocks.") ? matrices : others).push_back(parameter);
  train::Muon optimizer(matrices, {.lr = 0.02, .dtype = DType::f32}, others, {.lr = 0.01});

  data::Loader loader(data::TokenWindows(file, length, 1), {.batch_size = 16, .seed = 1, .drop_last = true, .device = device});
  constexpr std::int64_t updates = 150;
  double first = 0, last = 0;
  for (std::int64_t update = 1; update <= updates;) {
    while (const auto batch = loader.next()) {
      optimizer.set_lr_factor(train::schedule::linear(update, 10, updates));
      const Tensor loss = model.loss((*batch)[0], (*batch)[1]);
      train::update(loss, optimizer, {.max_norm = 1});
      if (update == 1) first = loss.item();
      if (++update > updates) {
        last = loss.item();
        break;
      }
    }
  }
  std::printf("loss %s log(%zu) at first, %s in the end\n", first > 2 ? "about" : "far from", characters.size(),
              last < 0.5 ? "below 0.5" : "0.5 or more");

  const std::string prompt = "pack my box ";
  nn::TokenIds start;
  for (const char c : prompt) start.push_back(ids[c]);
  const auto continued = nn::generate(model, {start}, {}, {.eos = -1, .max_new_tokens = 27});
  std::string sample;
  for (const std::int64_t id : continued[0][0].tokens) sample += characters[static_cast<std::size_t>(id)];
  std::printf("%s|%s\n", prompt.c_str(), sample.c_str());
}
