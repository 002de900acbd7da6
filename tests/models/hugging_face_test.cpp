// Models of tests/fixtures/make_hugging_face_fixtures.py, which has transformers' own answers.
#include "models/hugging_face.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.h"
#include "files.h"
#include "io/files.h"
#include "io/safetensors.h"
#include "nn/generate.h"
#include "nn/layers.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/random.h"
#include "ops/reduce.h"
#include "ops/view.h"
#include "paths.h"

using namespace tern;
using namespace tern::test;
using models::load_hugging_face;
using models::save_hugging_face;

namespace {

/// With the dtype in which each is stored.
struct Fixture {
  std::string name;
  DType dtype;
};
const std::vector<Fixture> fixtures = {
    {"gpt2", DType::f32}, {"llama", DType::f32}, {"llama_tied", DType::f16}, {"llama_sharded", DType::bf16}};

fs::path directory_of(const std::string& name) { return fs::path(source_directory) / "tests/fixtures/hugging_face" / name; }
std::map<std::string, Tensor> expected_of(const std::string& name) {
  return io::load_safetensors(directory_of(name + ".expected.safetensors")).tensors;
}

double largest(const Tensor& x) { return max(abs(to(x, cpu))).item<double>(); }

void check_logits(Device device, double tolerance) {
  for (const Fixture& fixture : fixtures)
    for (const bool fused : {false, true}) {
      CAPTURE(fixture.name, fused);
      const NoGrad unrecorded;
      nn::DecoderLM model = load_hugging_face(directory_of(fixture.name), {.device = device});
      const FusedKernels kernels(fused);
      const auto expected = expected_of(fixture.name);
      const Tensor logits = to(model.forward(to(expected.at("ids"), device)), cpu);
      CHECK(largest(logits) > 1);
      CHECK(largest(logits - expected.at("logits")) < tolerance);
    }
}

/// Greedy continuations of all tokens at once, the whole text read again for each.
nn::TokenIds without_cache(const nn::DecoderLM& model, nn::TokenIds ids, std::size_t count) {
  nn::TokenIds result;
  while (result.size() < count) {
    const auto length = static_cast<std::int64_t>(ids.size());
    const Tensor logits = model.forward(Tensor::from(ids, {1, length}));
    ids.push_back(argmax(slice(logits, 1, length - 1, length), -1).item<std::int64_t>());
    result.push_back(ids.back());
  }
  return result;
}

std::vector<nn::TokenIds> tokens_of(const std::vector<std::vector<nn::Hypothesis>>& hypotheses) {
  std::vector<nn::TokenIds> result;
  for (const auto& each : hypotheses) result.push_back(each.at(0).tokens);
  return result;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    const std::string message = error.what();
    CHECK(message.find('\n') == message.npos);
    return message;
  }
  return "(no error)";
}

void check_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    CAPTURE(message, part);
    CHECK(message.find(part) != message.npos);
  }
}

bool are_equal(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && largest(cast(a, DType::f64) - cast(b, DType::f64)) == 0;
}

void check_equal_parameters(const nn::DecoderLM& a, const nn::DecoderLM& b) {
  const auto left = nn::named_parameters(a), right = nn::named_parameters(b);
  REQUIRE(left.size() == right.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    INFO(left[i].name);
    CHECK(left[i].name == right[i].name);
    CHECK(are_equal(left[i].tensor, right[i].tensor));
  }
}

/// A fixture's files in a directory of the test's own, with its config.json and its tensors changed.
void copy_fixture(const std::string& name, const fs::path& to, const std::function<void(nlohmann::json&)>& edit_config,
                  const std::function<void(std::map<std::string, Tensor>&)>& edit_tensors = {}) {
  fs::create_directories(to);
  auto config = nlohmann::json::parse(slurp(directory_of(name) / "config.json"));
  edit_config(config);
  spill(to / "config.json", config.dump());
  const io::SafetensorsFiles files(directory_of(name));
  std::map<std::string, Tensor> tensors;
  for (const auto& [key, info] : files.tensors()) tensors.emplace(key, files.read(key));
  if (edit_tensors) edit_tensors(tensors);
  std::vector<NamedTensor> named;
  for (const auto& [key, tensor] : tensors) named.push_back({key, tensor});
  io::save_safetensors(to / "model.safetensors", named);
}

const auto unchanged = [](nlohmann::json&) {};

}  // namespace

TEST_CASE("Logits are those of transformers, with plain kernels and fused") { check_logits(cpu, 1e-5); }
TEST_CASE("Logits on a GPU are those of transformers, with plain kernels and fused", "[cuda]") { check_logits(cuda(), 1e-4); }

TEST_CASE("Greedy continuations are those of transformers, with a cache and without") {
  for (const Fixture& fixture : fixtures)
    for (const bool fused : {false, true}) {
      CAPTURE(fixture.name, fused);
      const NoGrad unrecorded;
      nn::DecoderLM model = load_hugging_face(directory_of(fixture.name));
      const FusedKernels kernels(fused);
      const auto expected = expected_of(fixture.name);
      std::vector<nn::TokenIds> prompts, continuations;
      for (const char* number : {"0", "1", "2"}) {
        prompts.push_back(expected.at(std::string("prompt.") + number).to_vector<std::int64_t>());
        continuations.push_back(expected.at(std::string("continuation.") + number).to_vector<std::int64_t>());
      }
      const std::size_t count = continuations[0].size();
      const nn::GenerateOptions options{.eos = -1, .max_new_tokens = static_cast<std::int64_t>(count)};
      CHECK(tokens_of(nn::generate(model, prompts, {}, options)) == continuations);
      CHECK(tokens_of(nn::generate(model, prompts, {}, options, 1)) == continuations);
      for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(without_cache(model, prompts[i], count) == continuations[i]);
    }
}

TEST_CASE("What is written is read back bit for bit, and is what was there") {
  const TempDirectory temporary;
  // For the script's --check, with which transformers reads what stands here.
  const char* const given = std::getenv("TERN_HUGGING_FACE_OUT");
  const fs::path out = given ? fs::path(given) : temporary.path();
  for (const Fixture& fixture : fixtures) {
    CAPTURE(fixture.name);
    const fs::path from = directory_of(fixture.name), to = out / fixture.name;
    const nn::DecoderLM model = load_hugging_face(from, {.dtype = fixture.dtype});
    save_hugging_face(model, to, fixture.name == "llama_sharded" ? 16'000u : 1'000'000u);
    CHECK(fs::exists(to / "model.safetensors.index.json") == (fixture.name == "llama_sharded"));
    check_equal_parameters(model, load_hugging_face(to, {.dtype = fixture.dtype}));
    const io::SafetensorsFiles theirs(from), ours(to);
    REQUIRE(ours.tensors().size() == theirs.tensors().size());
    for (const auto& [name, info] : theirs.tensors()) {
      INFO(name);
      CHECK(are_equal(ours.read(name), theirs.read(name)));
    }
    // The options come back as well: a rotation that is another would show.
    const Tensor ids = expected_of(fixture.name).at("ids");
    CHECK(are_equal(load_hugging_face(to).forward(ids), load_hugging_face(from).forward(ids)));
  }
}

TEST_CASE("What text needs is written and read beside a model") {
  const TempDirectory temporary;
  const nn::DecoderLM model = load_hugging_face(directory_of("llama"));
  const std::vector<std::string> lines(3, "the cat sat on the mat");
  const text::Tokenizer tokenizer = text::Tokenizer::train(lines, {.vocab_size = 290, .special_tokens = {"<|end|>"}});
  nn::DecoderLMOptions wide = model.options;
  wide.vocab = 300;
  const nn::DecoderLM larger(wide);
  models::save_language_model({larger, tokenizer, {1}, {0, 2}, "{{ messages }}"}, temporary.path());
  const auto read = [&] { return models::load_language_model(temporary.path()); };
  const models::LanguageModel first = read();
  check_equal_parameters(first.model, larger);
  CHECK(first.tokenizer.to_json() == tokenizer.to_json());
  CHECK(first.begin == std::vector<std::int64_t>{1});
  CHECK(first.ends == std::vector<std::int64_t>{0, 2});
  CHECK(first.chat_template == "{{ messages }}");
  // Ids of both configurations, but for those that the model lacks; a file of the template before the other one.
  spill(temporary / "generation_config.json", R"({"eos_token_id": [2, 3, 300, -1]})");
  spill(temporary / "chat_template.jinja", "{{ bos_token }}");
  CHECK(read().ends == std::vector<std::int64_t>{0, 2, 3});
  CHECK(read().chat_template == "{{ bos_token }}");
  CHECK(models::hugging_face_shape(temporary.path()).vocab == 300);
  // A model alone leaves these files, and has no ids.
  save_hugging_face(larger, temporary.path());
  CHECK(read().begin.empty());
  CHECK(read().ends == std::vector<std::int64_t>{2, 3});
  save_hugging_face(model, temporary.path());
  check_says(message_of(read), {"expected a model of at least the ", " tokens of its tokenizer but got "});
}

TEST_CASE("Files and configurations of older versions are read") {
  const TempDirectory temporary;
  const NoGrad unrecorded;
  const auto is_same = [&](const std::string& name, const fs::path& other) {
    const Tensor ids = expected_of(name).at("ids");
    return are_equal(load_hugging_face(other).forward(ids), load_hugging_face(directory_of(name)).forward(ids));
  };
  // The first GPT-2 has no prefix, masks among its tensors, and the sizes of its feed-forward part by default.
  copy_fixture("gpt2", temporary / "gpt2", unchanged, [](std::map<std::string, Tensor>& tensors) {
    std::map<std::string, Tensor> renamed;
    for (const auto& [name, x] : tensors) renamed.emplace(name.substr(std::string("transformer.").size()), x);
    renamed.emplace("h.0.attn.bias", ones({1, 1, 40, 40}));
    renamed.emplace("h.1.attn.masked_bias", full({}, -1e4));
    renamed.emplace("lm_head.weight", renamed.at("wte.weight"));
    tensors = renamed;
  });
  CHECK(is_same("gpt2", temporary / "gpt2"));
  for (const char* name : {"llama", "llama_tied", "llama_sharded"}) {
    CAPTURE(name);
    copy_fixture(
        name, temporary / name,
        [](nlohmann::json& config) {
          auto rope = config["rope_parameters"];
          config.erase("rope_parameters");
          config["rope_theta"] = rope["rope_theta"];
          rope.erase("rope_theta");
          if (rope["rope_type"] == "linear") rope["type"] = "linear", rope.erase("rope_type");
          config["rope_scaling"] = rope["rope_type"] == "default" ? nlohmann::json() : rope;
        },
        [](std::map<std::string, Tensor>& tensors) { tensors.emplace("model.layers.0.self_attn.rotary_emb.inv_freq", ones({4})); });
    CHECK(is_same(name, temporary / name));
  }
  // Sizes that are left out have transformers' defaults.
  const auto parse = [](const nlohmann::json& config) { return models::detail::parse_config(config.dump(), "config.json").options; };
  const nlohmann::json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 9}, {"n_positions", 8}, {"n_embd", 6}, {"n_layer", 1}, {"n_head", 2}};
  CHECK(parse(gpt2).ff == 24);
  CHECK(parse(gpt2).tied_head);
  CHECK(parse(gpt2).activation == nn::Activation::gelu_tanh);
  const nlohmann::json llama = {{"model_type", "llama"},  {"vocab_size", 9},          {"hidden_size", 12},
                                {"num_hidden_layers", 1}, {"num_attention_heads", 3}, {"intermediate_size", 5}};
  CHECK(parse(llama).kv_heads == 3);
  CHECK(parse(llama).head_dim == 4);
  CHECK(parse(llama).rope_base == 10000);
  CHECK(parse(llama).layer_norm_eps == 1e-6);
  CHECK_FALSE(parse(llama).tied_head);
}

TEST_CASE("A key of config.json is obeyed as transformers obeys it, or refused") {
  const TempDirectory temporary;
  const NoGrad unrecorded;
  std::map<std::string, int> count;
  for (const nlohmann::json& row : nlohmann::json::parse(slurp(directory_of("keys.json")))) {
    CAPTURE(row.dump());
    const std::string name = row["model"];
    copy_fixture(name, temporary / "model", [&](nlohmann::json& config) { config.update(row["change"]); });
    ++count[row["tern"]];
    if (row["tern"] == "refused") {
      check_says(message_of([&] { load_hugging_face(temporary / "model"); }), {temporary / "model", ": "});
      continue;
    }
    const Tensor ids = slice(expected_of(name).at("ids"), 0, 0, 1);
    const Tensor logits = load_hugging_face(temporary / "model").forward(ids);
    const auto wanted = row["transformers"].get<std::vector<float>>();
    const Tensor last = slice(slice(logits, 1, ids.size(1) - 1, ids.size(1)), 2, 0, static_cast<std::int64_t>(wanted.size()));
    CHECK(largest(reshape(last, {-1}) - Tensor::from(wanted, {static_cast<std::int64_t>(wanted.size())})) < 2e-5);
  }
  CHECK(count["obeyed"] == 34);
  CHECK(count["refused"] == 35);
}

TEST_CASE("A stored head that differs from the token table is the model's, whatever config.json says") {
  const TempDirectory temporary;
  const NoGrad unrecorded;
  for (const std::string name : {"gpt2", "llama", "llama_tied", "llama_sharded"}) {
    CAPTURE(name);
    const std::string table = name == "gpt2" ? "transformer.wte.weight" : "model.embed_tokens.weight";
    const auto load = [&](const std::string& directory, bool tied, const std::function<void(std::map<std::string, Tensor>&)>& edit) {
      copy_fixture(name, temporary / directory, [&](nlohmann::json& config) { config["tie_word_embeddings"] = tied; }, edit);
      return load_hugging_face(temporary / directory);
    };
    const auto own = [&](std::map<std::string, Tensor>& tensors) { tensors["lm_head.weight"] = clone(flip(tensors.at(table), {0})); };
    const nn::DecoderLM kept = load("kept", true, own), untied = load("untied", false, own);
    CHECK_FALSE(kept.options.tied_head);
    const Tensor ids = expected_of(name).at("ids");
    CHECK(are_equal(kept.forward(ids), untied.forward(ids)));
    // A single number of the last row is enough.
    const nn::DecoderLM close = load("close", true, [&](std::map<std::string, Tensor>& tensors) {
      tensors["lm_head.weight"] = clone(tensors.at(table));
      fill_(slice(slice(tensors["lm_head.weight"], 0, 95, 96), 1, 31, 32), 3);
    });
    CHECK_FALSE(close.options.tied_head);
    // Equal ones are one parameter, also if the file has them in two dtypes.
    for (const DType dtype : {DType::f64, DType::f32}) {
      const nn::DecoderLM tied =
          load("tied", true, [&](std::map<std::string, Tensor>& tensors) { tensors["lm_head.weight"] = cast(tensors.at(table), dtype); });
      CHECK(tied.options.tied_head);
      CHECK_FALSE(are_equal(tied.forward(ids), kept.forward(ids)));
    }
    save_hugging_face(kept, temporary / "written", 20'000);
    const nn::DecoderLM again = load_hugging_face(temporary / "written");
    CHECK_FALSE(again.options.tied_head);
    check_equal_parameters(kept, again);
    nn::DecoderLM small = load_hugging_face(temporary / "kept");
    nn::quantize(small, QuantFormat::q8_0);
    CHECK(largest(small.forward(ids) - kept.forward(ids)) < 1);
  }
  copy_fixture("llama_tied", temporary / "odd", unchanged, [](auto& tensors) { tensors["lm_head.weight"] = zeros({96, 31}); });
  check_says(message_of([&] { load_hugging_face(temporary / "odd"); }), {"lm_head.weight", "(96, 32)", "(96, 31)"});
}

TEST_CASE("A loaded model is as the options say, and nothing is drawn") {
  manual_seed(7);
  const Tensor before = randn({3});
  manual_seed(7);
  const nn::DecoderLM model = load_hugging_face(directory_of("llama_sharded"), {.dtype = DType::bf16, .length = 20});
  CHECK(are_equal(randn({3}), before));
  CHECK_FALSE(model.training);
  CHECK_FALSE(model.blocks[1].attn.training);
  CHECK(model.dtype() == DType::bf16);
  CHECK(model.options.length == 20);
  CHECK(model.blocks[0].attn.options.rope.size(0) == 20);
  for (const Tensor& x : nn::parameters(model)) CHECK(x.requires_grad());
  check_says(message_of([] { load_hugging_face(directory_of("gpt2"), {.length = 20}); }), {"length 0 or 40", "20"});
  check_says(message_of([] { load_hugging_face(directory_of("llama"), {.length = -1}); }), {"length >= 0", "-1"});
  check_says(message_of([] { load_hugging_face(directory_of("llama"), {.dtype = DType::i32}); }), {"floating dtype", "i32"});
}

TEST_CASE("An option of config.json that is not tern's is named, with what to do") {
  struct Refusal {
    std::string model, key;
    nlohmann::json value;
    std::vector<std::string> parts;
  };
  const std::vector<Refusal> refusals = {
      {"llama", "model_type", "bert", {"gpt2 or llama", "\"bert\"", "io::SafetensorsFiles"}},
      {"llama", "model_type", nullptr, {"lacks"}},
      {"llama", "sliding_window", 4096, {"expected null", "4096"}},
      {"llama", "mlp_bias", true, {"attention_bias", "true"}},
      {"llama", "attention_bias", true, {"mlp_bias"}},
      {"llama", "attention_bias", 1, {"true or false", "1"}},
      {"llama", "hidden_act", "quick_gelu", {"quick_gelu", "silu"}},
      {"llama", "hidden_act", 3, {"expected a string", "3"}},
      {"llama", "rope_parameters", {{"rope_type", "yarn"}}, {"rope_type", "default, linear or llama3", "yarn"}},
      {"llama", "rope_parameters", {{"rope_type", "linear"}}, {"lacks \"factor\""}},
      {"llama", "rope_parameters", {{"rope_type", "linear"}, {"factor", 0}}, {"factor", "> 0"}},
      {"llama", "rope_parameters", 7, {"expected an object", "7"}},
      {"llama", "partial_rotary_factor", 0.5, {"0.5", "in part"}},
      {"llama", "quantization_config", {{"bits", 4}}, {"expected null", "nn::quantize"}},
      {"llama", "num_key_value_heads", 3, {"divisor", "4", "3"}},
      {"llama", "head_dim", 7, {"even", "7"}},
      {"llama", "hidden_size", 0, {"from 1", "0"}},
      {"llama", "hidden_size", 1e300, {"integer", "1e+300"}},
      {"llama", "vocab_size", nullptr, {"lacks"}},
      {"llama", "rms_norm_eps", -1, {">= 0", "-1"}},
      {"llama", "attention_dropout", 1, {"below 1"}},
      {"llama", "is_causal", false, {"expected true", "causal"}},
      {"llama", "per_layer_config", {{"0", {{"hidden_act", "relu"}}}}, {"expected null", "one configuration"}},
      {"llama", "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4}}, {"default, linear or llama3", "yarn"}},
      {"gpt2", "is_causal", false, {"expected true", "causal"}},
      {"gpt2", "num_attention_heads", 8, {"expected 4", "another name", "8"}},
      {"gpt2", "embd_pdrop", 0.5, {"expected 0.1", "resid_pdrop", "0.5"}},
      {"gpt2", "n_head", 5, {"divisor", "32", "5"}},
      {"gpt2", "scale_attn_weights", false, {"expected true", "false"}},
      {"gpt2", "scale_attn_by_inverse_layer_idx", true, {"expected false", "true"}},
      {"gpt2", "add_cross_attention", true, {"EncoderDecoder"}},
  };
  for (const Refusal& refusal : refusals) {
    CAPTURE(refusal.key, refusal.value.dump());
    auto config = nlohmann::json::parse(slurp(directory_of(refusal.model) / "config.json"));
    config[refusal.key] = refusal.value;
    std::string message;
    try {
      models::detail::parse_config(config.dump(), "DIR/config.json");
    } catch (const io::FileError& error) {
      message = error.what();
    }
    CHECK(message.find('\n') == message.npos);
    check_says(message, {"DIR/config.json: "});
    const bool names_an_inner_key = refusal.key.starts_with("rope_") && refusal.value.is_object();
    const bool names_its_twin = refusal.key == "attention_bias" && refusal.value.is_boolean();
    if (!names_an_inner_key && !names_its_twin) check_says(message, {"\"" + refusal.key + "\""});
    check_says(message, refusal.parts);
  }
  check_says(message_of([] { models::detail::parse_config("[]", "DIR/config.json"); }), {"DIR/config.json", "object", "array"});
  check_says(message_of([] { models::detail::parse_config("{", "DIR/config.json"); }), {"DIR/config.json"});
}

TEST_CASE("Tensors that are not those of config.json are named") {
  const TempDirectory temporary;
  const auto message_with = [&](const std::function<void(nlohmann::json&)>& config,
                                const std::function<void(std::map<std::string, Tensor>&)>& tensors, DType dtype = DType::f32) {
    copy_fixture("llama", temporary / "model", config, tensors);
    return message_of([&] { load_hugging_face(temporary / "model", {.dtype = dtype}); });
  };
  const std::string query = "model.layers.1.self_attn.q_proj.weight";
  check_says(message_with(unchanged, [&](auto& x) { x.erase(query); }), {"model/model.safetensors: lacks tensor", query, "config.json"});
  check_says(message_with(unchanged, [&](auto& x) { x[query] = zeros({32, 31}); }),
             {"model/model.safetensors: ", query, "(32, 32)", "(32, 31)"});
  check_says(message_with(unchanged, [&](auto& x) { x[query] = zeros({32, 32}, DType::i32); }), {query, "floating", "i32"});
  check_says(message_with(unchanged, [](auto& x) { x["model.layers.0.self_attn.q_norm.weight"] = ones({8}); }),
             {"q_norm.weight", "no place"});
  check_says(message_with(unchanged, [&](auto& x) { x[query] = full({32, 32}, 1e6); }, DType::f16), {query, "f16 holds", "f32"});
  // Sizes by far too large are refused by the files, before memory is taken.
  check_says(message_with([](auto& config) { config["intermediate_size"] = 1'000'000'000; }, {}), {"(1000000000, 32)", "(48, 32)"});
  check_says(message_with([](auto& config) { config["num_hidden_layers"] = 3; }, {}), {"lacks tensor", "model.layers.2."});
  check_says(message_with([](auto& config) { config["num_hidden_layers"] = 1'000'000'000; }, {}), {"1000000000 layers", "21 tensors"});
  check_says(message_with([](auto& config) { config["max_position_embeddings"] = 1'000'000'000; }, {}),
             {"config.json", "max_position_embeddings", "1000000000", "LoadOptions::length"});
  check_says(message_of([&] { load_hugging_face(temporary / "nothing"); }), {"nothing/config.json"});
  copy_fixture("llama", temporary / "model", unchanged);
  fs::remove(temporary / "model/model.safetensors");
  check_says(message_of([&] { load_hugging_face(temporary / "model"); }), {"model.safetensors.index.json", "neither"});
}

TEST_CASE("A model that transformers cannot have is not written") {
  const TempDirectory temporary;
  const fs::path out = temporary / "out";
  const nn::DecoderLMOptions gpt2{.vocab = 7, .length = 6, .width = 8, .layers = 1, .heads = 2, .ff = 8, .head_bias = false};
  nn::DecoderLMOptions llama = gpt2;
  llama.norm = nn::NormKind::rms, llama.gated = true, llama.bias = false, llama.positions = nn::Positions::rotary;
  llama.rope_pairs = RopePairs::halves, llama.activation = nn::Activation::silu;
  using Edit = std::function<void(nn::DecoderLMOptions&)>;
  struct Refusal {
    nn::DecoderLMOptions options;
    Edit edit;
    std::string part;
  };
  const std::vector<Refusal> refusals = {
      {gpt2, [](auto& o) { o.head_bias = true; }, "head_bias"},
      {gpt2, [](auto& o) { o.scales_embeddings = true; }, "scales_embeddings"},
      {gpt2, [](auto& o) { o.final_norm = false; }, "final_norm"},
      {gpt2, [](auto& o) { o.ff = 0; }, "ff > 0"},
      {gpt2, [](auto& o) { o.bias = false; }, "bias = true"},
      {gpt2, [](auto& o) { o.kv_heads = 1; }, "kv_heads"},
      {gpt2, [](auto& o) { o.head_dim = 6; }, "head_dim"},
      {gpt2, [](auto& o) { o.positions = nn::Positions::rotary; }, "GPT-2's shape"},
      {llama, [](auto& o) { o.rope_pairs = RopePairs::adjacent; }, "RopePairs::halves"},
      {llama, [](auto& o) { o.gated = false; }, "Llama's"},
  };
  for (const Refusal& refusal : refusals) {
    nn::DecoderLMOptions options = refusal.options;
    refusal.edit(options);
    const nn::DecoderLM model(options);
    check_says(message_of([&] { save_hugging_face(model, out); }), {"[save_hugging_face] ", refusal.part});
  }
  nn::DecoderLM quantized(gpt2);
  nn::quantize(quantized, QuantFormat::q8_0);
  check_says(message_of([&] { save_hugging_face(quantized, out); }), {"quantised"});
  CHECK_FALSE(fs::exists(out));
  // Untied heads, every activation and models in training are written.
  for (nn::DecoderLMOptions options : {gpt2, llama})
    for (const auto activation : {nn::Activation::gelu, nn::Activation::gelu_tanh, nn::Activation::relu, nn::Activation::silu}) {
      options.activation = activation;
      const nn::DecoderLM model(options);
      save_hugging_face(model, out);
      const nn::DecoderLM loaded = load_hugging_face(out);
      check_equal_parameters(loaded, model);
      CHECK(loaded.options.activation == activation);
      CHECK_FALSE(loaded.options.tied_head);
    }
}
