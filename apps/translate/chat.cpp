#include <fmt/format.h>

#include <cmath>

#include "common/conversation.h"
#include "io/files.h"
#include "io/svg.h"
#include "ops/attention.h"
#include "ops/factory.h"
#include "ops/index.h"
#include "ops/matmul.h"
#include "ops/normalize.h"
#include "ops/pointwise.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "text/unicode.h"
#include "translate/commands.h"

namespace tern::translate {

namespace {

/// Attention probabilities (T, S) of queries q (1, T, heads, D) and keys k (1, S, kv_heads, D), averaged over the heads.
Tensor mean_probabilities(const Tensor& q, const Tensor& k, const AttentionMask& mask) {
  const std::int64_t groups = q.size(2) / k.size(2);
  Tensor keys = transpose(k, 1, 2);  // (1, kv_heads, S, D), each for `groups` heads
  keys = reshape(contiguous(broadcast_to(unsqueeze(keys, 2), {1, k.size(2), groups, k.size(1), k.size(3)})),
                 {1, q.size(2), k.size(1), k.size(3)});
  const Tensor scores = matmul(transpose(q, 1, 2), transpose(keys, 2, 3), 1 / std::sqrt(static_cast<double>(q.size(3))));
  return mean(select(attention_softmax(scores, mask), 0, 0), {0});
}

/// Reshapes x (1, T, heads * D) to (1, T, heads, D).
Tensor in_heads(const Tensor& x, std::int64_t heads) { return reshape(x, {1, x.size(1), heads, x.size(2) / heads}); }

/// A model of the layers before `layer`, with shared parameters: its output is the layer's input.
nn::TransformerModel below(nn::TransformerModel body, std::int64_t layer) {
  body.blocks.resize(static_cast<std::size_t>(layer));
  body.norm.reset();
  return body;
}

Tensor self_attention(const nn::TransformerLayer& layer, const Tensor& x, const AttentionMask& mask) {
  const nn::AttentionOptions& o = layer.attn.options;
  Tensor joined = in_heads(layer.attn.qkv->forward(layer.norm1.forward(x)), o.heads + 2 * o.kv_heads);
  if (o.rope.defined()) joined = transpose(rope(transpose(joined, 1, 2), o.rope, o.heads + o.kv_heads, o.rope_pairs), 1, 2);
  const Tensors parts = split(joined, {o.heads, o.kv_heads, o.kv_heads}, 2);
  return mean_probabilities(parts[0], parts[1], mask);
}

Tensor cross_attention(const nn::TransformerLayer& layer, const Tensor& x, const Tensor& memory) {
  const Tensor seen = x + layer.attn.forward(layer.norm1.forward(x), {.causal = true});
  const nn::AttentionOptions& o = layer.cross_attn->options;
  const Tensor q = in_heads(layer.cross_attn->query->forward(layer.norm_cross->forward(seen)), o.heads);
  const Tensor k = split(in_heads(layer.cross_attn->key_value->forward(memory), 2 * o.kv_heads), o.kv_heads, 2)[0];
  return mean_probabilities(q, k, {});
}

std::vector<std::string> names(const Translator& translator, const nn::TokenIds& tokens) {
  std::vector<std::string> result;
  for (std::int64_t id : tokens) {
    const std::int32_t token[] = {static_cast<std::int32_t>(id)};
    result.push_back(text::printable(translator.tokenizer.decode(token, false)));
  }
  return result;
}

/// A heat map, as SVG, of the attention (target tokens, source tokens) with which a model predicts each token of a sentence's translation:
/// the mean over the heads of layer `layer`, from 1; 0 is the last. It is the cross attention of an encoder-decoder, or the source's part
/// of the self attention of a decoder-only LM, and is computed by composed ops. Throws UsageError for a layer that the model lacks.
std::string attention_picture(const Translator& translator, const std::string& line, std::int64_t layer) {
  const NoGrad unrecorded;
  const TranslationModel& model = translator.model;
  const std::int64_t layers = translator.options.layers;
  if (layer > layers)
    throw apps::UsageError(fmt::format("--layer {}: expected at most the model's {}", layer, apps::counted(layers, "layer")));
  const auto index = (layer == 0 ? layers : layer) - 1;
  const auto at = static_cast<std::size_t>(index);
  bool is_cut = false;
  nn::TokenIds source = translator.source_tokens(line, translator.source_room(), is_cut);
  if (source.empty()) source = {translator.eos_src()};
  const train::PrecisionScope scope(precision(translator.options));
  const nn::TokenIds target = nn::generate(translator.read({source}), {.eos = translator.eos_tgt(), .has_scores = false})[0][0].tokens;

  const PlainKernels composed;
  const auto sources = static_cast<std::int64_t>(source.size()), targets = static_cast<std::int64_t>(target.size());
  const auto row = [&](const nn::TokenIds& ids) {
    return Tensor::from(ids, {1, static_cast<std::int64_t>(ids.size())}, translator.device);
  };
  // A token is predicted at the position of the previous one; the first token at the source's end token.
  nn::TokenIds read = model.lm ? source : nn::TokenIds{translator.eos_src()};
  if (!target.empty()) read.insert(read.end(), target.begin(), target.end() - 1);
  Tensor probabilities;
  if (model.lm) {
    const Tensor prefix = Tensor::from(nn::TokenIds{sources}, {1}, translator.device);
    const AttentionMask mask = model.mask(prefix);
    const auto length = static_cast<std::int64_t>(read.size());
    const Tensor x = below(*model.lm, index).hidden(row(read), mask, model.position_ids(prefix, length));
    const Tensor all = self_attention(model.lm->blocks[at], x, mask);
    probabilities = slice(slice(all, 0, sources - 1, sources - 1 + targets), 1, 0, sources);
  } else {
    const nn::Memory memory = model.encoder_decoder->encode(row(source));
    const Tensor x = below(model.encoder_decoder->decoder, index).hidden(row(read), {.causal = true}, {}, nullptr, memory);
    probabilities = slice(cross_attention(model.encoder_decoder->decoder.blocks[at], x, memory.states), 0, 0, targets);
  }
  const Tensor host = to(contiguous(cast(probabilities, DType::f32)), cpu);
  const std::string title = fmt::format("{} -> {}", text::printable(line), translator.text_of(target));
  return io::svg::to_svg(title, {{fmt::format("{} of layer {} of {}", model.lm ? "attention" : "cross attention", index + 1, layers),
                                  targets,
                                  sources,
                                  host.to_vector<float>(),
                                  names(translator, target),
                                  names(translator, source),
                                  {}}});
}

const std::string help =
    "a sentence to translate, or\n"
    "  :attention [FILE]  draws which words of the last sentence its translation looked at, into attention.svg unless you say\n"
    "  :quit              ends this\n";

}  // namespace

void chat(const ChatOptions& options) {
  const std::vector<Translator> models = load_models(options);
  const Translator& first = models.front();
  if (options.layer > first.options.layers)
    throw apps::UsageError(
        fmt::format("--layer {}: expected at most the model's {}", options.layer, apps::counted(first.options.layers, "layer")));
  nn::GenerateOptions search = beam_search(options.beam, options.length_penalty);
  search.has_scores = false;

  std::string last;
  const auto draw = [&](const std::string& file) {
    io::write_file_atomically(file, attention_picture(first, last, options.layer));
    apps::say("{}: the attention of \"{}\"\n", text::printable(file), text::printable(last));
  };
  apps::converse({.greeting = fmt::format("{} to {}. Write ", first.options.src, first.options.tgt),
                  .help = help,
                  .prompt = first.options.src + "> ",
                  .on_line =
                      [&](const std::string& line) {
                        last = line;
                        const std::string lines[] = {line};
                        apps::say("{}\n", translate(models, lines, search, 1).front().front().text);
                        if (!options.attention.empty()) draw(options.attention);
                      },
                  .on_command =
                      [&](const std::string& command, const std::string& argument) {
                        if (command != ":attention") return false;
                        if (last.empty()) {
                          apps::say("There is no sentence yet.\n");
                        } else {
                          try {
                            draw(argument.empty() ? "attention.svg" : argument);
                          } catch (const std::exception& fault) {  // such as a file that cannot be written, which does not end the chat
                            apps::say("{}\n", text::printable(fault.what()));
                          }
                        }
                        return true;
                      }});
}

}  // namespace tern::translate
