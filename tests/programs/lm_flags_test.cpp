// The flags of tern-lm: a row each for train, whose losses and weights are held against a plain loop.
#include "data/token_file.h"
#include "ops/factory.h"
#include "ops/loss.h"
#include "ops/view.h"
#include "reference.h"
#include "text/batching.h"

using namespace tern;
using namespace tern::programs::test;

namespace {

/// Words of a training that takes a moment.
const std::string small =
    "--device cpu --threads 1 --precision fp32 --use-fused-kernel False --preset small --layers 1 --width 16 --heads 2 --length 8 "
    "--batch-size 4 --updates 4 --seed 2 --lr 0.01 --weight-decay 0 --schedule constant --warmup 0 --clip 0 ";
const Command training{lm, "train --data TOKENS --out OUT/run " + small};

/// The setting of `training`; a row changes what its flag is to change.
struct Setting {
  ReferenceOptimizer optimizer{{.lr = 0.01, .beta2 = 0.95, .weight_decay = 0}};
  nn::DecoderLMOptions model{.length = 8,
                             .width = 16,
                             .layers = 1,
                             .heads = 2,
                             .ff = 64,
                             .dropout = 0,
                             .activation = nn::Activation::gelu_tanh,
                             .head_bias = false,
                             .tied_head = true,
                             .initialization = nn::Initialization::gpt2};
  std::uint64_t seed = 2;
  std::int64_t batch = 4, accumulate = 1, updates = 4, valid_tokens = 1'000'000;

  void make_llama() {
    model.norm = nn::NormKind::rms;
    model.positions = nn::Positions::rotary;
    model.rope_pairs = RopePairs::halves;
    model.activation = nn::Activation::silu;
    model.gated = true;
    model.ff = 64;  // 8/3 of 16, as a multiple of 64
  }
};

std::vector<std::int64_t> tokens_in(const char* file) {
  const data::TokenFile tokens((lm_tokens() / file).string());
  std::vector<std::int64_t> result(static_cast<std::size_t>(tokens.size()));
  tokens.read(0, result);
  return result;
}

class Reference {
 public:
  explicit Reference(const Setting& setting)
      : setting_(setting), train_(tokens_in("train-00000.bin")), valid_(tokens_in("valid-00000.bin")) {
    if (setting_.model.vocab == nn::DecoderLMOptions().vocab) setting_.model.vocab = json_of(lm_tokens() / "data.json")["vocab"];
    manual_seed(setting.seed);
    model = nn::DecoderLM(setting_.model);
  }

  /// The loss of each update; the model is trained.
  std::vector<double> train() {
    PlainLoop loop(model, setting_.optimizer);
    std::vector<double> losses;
    const std::int64_t T = setting_.model.length, rows = setting_.batch * setting_.accumulate;
    const std::int64_t windows = (std::int64_t(train_.size()) - 1) / T - 1, per_epoch = windows / rows;
    for (std::int64_t update = 0; update < setting_.updates; ++update) {
      const auto epoch = static_cast<std::uint64_t>(update / per_epoch);
      const auto order = text::epoch_order(std::size_t(windows), setting_.seed, epoch);
      const auto first = text::epoch_order(std::size_t(std::min(std::int64_t(train_.size()) - windows * T, T)), setting_.seed, epoch, 1)[0];
      std::vector<std::int64_t> at;
      for (std::int64_t i = update % per_epoch * rows; std::int64_t(at.size()) < rows; ++i)
        at.push_back(std::int64_t(first) + T * std::int64_t(order[std::size_t(i)]));
      losses.push_back(loop.update(loss(train_, at)));
    }
    return losses;
  }
  double valid_loss() const {
    const NoGrad unrecorded;
    std::vector<std::int64_t> at;
    for (std::int64_t i = 0; (i + 1) * setting_.model.length <= std::min(setting_.valid_tokens, std::int64_t(valid_.size()) - 1); ++i)
      at.push_back(i * setting_.model.length);
    return loss(valid_, at).item<double>();
  }

  nn::DecoderLM model;

 private:
  Tensor loss(const std::vector<std::int64_t>& tokens, const std::vector<std::int64_t>& first) const {
    const std::int64_t T = setting_.model.length, rows = std::int64_t(first.size());
    std::vector<std::int64_t> ids, labels;
    for (const std::int64_t at : first)
      for (std::int64_t t = 0; t < T; ++t) {
        ids.push_back(tokens[std::size_t(at + t)]);
        labels.push_back(tokens[std::size_t(at + t + 1)]);
      }
    const Tensor logits = flatten(model.forward(Tensor::from(ids, {rows, T})), 0, 1);
    return cross_entropy(logits, Tensor::from(labels, {rows * T}));
  }

  PlainKernels plain_;  ///< as the program's
  Setting setting_;
  std::vector<std::int64_t> train_, valid_;
};

/// The losses and weights of the setting's training. Those of the plain one are others.
Seen trains(const std::function<void(Setting&)>& change) {
  return [=](const Ran& changed, const Ran& plain) {
    Setting setting;
    change(setting);
    Reference reference(setting);
    check_equal(changed.log("loss"), reference.train(), 2e-5);
    check_equal({changed.log("valid_loss").back()}, {reference.valid_loss()}, 1e-5);
    CHECK(distance(changed.weights(), weights_of(reference.model)) < 5e-5);
    if (&changed != &plain) CHECK((changed.log("loss") != plain.log("loss") || changed.log("valid_loss") != plain.log("valid_loss")));
  };
}
Seen model(const std::function<void(nn::DecoderLMOptions&)>& change) {
  return trains([=](Setting& s) { change(s.model); });
}
Seen llama(const std::function<void(nn::DecoderLMOptions&)>& change) {
  return trains([=](Setting& s) {
    s.make_llama();
    change(s.model);
  });
}

/// w - lr decay w of the first weights, in one step more than without decay, for matrices alone.
void decays_matrices(const Ran& changed, const Ran& plain) {
  Reference reference({});
  const Weights first = weights_of(reference.model), with = changed.weights(), without = plain.weights();
  for (const NamedTensor& entry : nn::named_parameters(reference.model)) {
    INFO(entry.name);
    const double factor = entry.tensor.dims() >= 2 ? 0.01 * 5 : 0;
    for (std::size_t i = 0; i < first.at(entry.name).size(); ++i)
      CHECK(with.at(entry.name)[i] - without.at(entry.name)[i] == Approx(-factor * first.at(entry.name)[i]).margin(1e-6));
  }
}
/// The mean of the first weights and those after one update, by the first factor of a warm-up.
void averages(const Ran& changed, const Ran& plain) {
  Reference reference({});
  const Weights first = weights_of(reference.model), last = plain.weights(), mean = changed.weights();
  const double decay = 0.1;
  for (const auto& [name, values] : mean)
    for (std::size_t i = 0; i < values.size(); ++i)
      CHECK(values[i] == Approx(decay * first.at(name)[i] + (1 - decay) * last.at(name)[i]).margin(1e-6));
}
/// Muon moves the matrices of the blocks, and AdamW the rest as ever.
void orthogonalizes(const Ran& changed, const Ran& plain) {
  const Weights with = changed.weights(), without = plain.weights();
  for (const auto& [name, values] : with) {
    INFO(name);
    const bool is_matrix = name.starts_with("blocks.") && name.ends_with("weight") && !contains(name, "norm");
    CHECK((values != without.at(name)) == is_matrix);
  }
}
void keeps_blocks(const Ran& changed, const Ran&) {
  Reference reference({});
  const Weights first = weights_of(reference.model), last = changed.weights();
  for (const auto& [name, values] : last) {
    INFO(name);
    const bool is_matrix = name.starts_with("blocks.") && name.ends_with("weight") && !contains(name, "norm");
    double moved = 0;
    for (std::size_t i = 0; i < values.size(); ++i) moved = std::max(moved, std::abs(double(values[i]) - first.at(name)[i]));
    CHECK((moved < 1e-6) == is_matrix);
  }
}
/// Two validations after the best one.
void ends_without_progress(const Ran& changed, const Ran& plain) {
  CHECK(plain.log("valid_loss").size() == 30);
  const std::vector<double> losses = changed.log("valid_loss");
  const auto best = std::min_element(losses.begin(), losses.end()) - losses.begin();
  CHECK(std::int64_t(losses.size()) == best + 3);
}

const std::string still = "--lr 1e-12";  // the weights stay where they begin

}  // namespace

const FlagTable& tern::programs::test::lm_train() {
  static const FlagTable table{
      training,
      {
          {"", trains([](Setting&) {})},
          {"--seed 5", trains([](Setting& s) { s.seed = 5; })},
          {"--layers 2", model([](auto& m) { m.layers = 2; })},
          {"--width 24", model([](auto& m) { m.width = 24, m.ff = 96; })},
          {"--heads 4", model([](auto& m) { m.heads = 4; })},
          {"--kv-heads 1", llama([](auto& m) { m.kv_heads = 1; }), "--architecture llama --bias True"},
          {"--head-dim 12", llama([](auto& m) { m.head_dim = 12; }), "--architecture llama --bias True"},
          {"--ff 24", model([](auto& m) { m.ff = 24; })},
          {"--length 12", model([](auto& m) { m.length = 12; })},
          {"--vocab 400", model([](auto& m) { m.vocab = 400; })},
          {"--activation relu", model([](auto& m) { m.activation = nn::Activation::relu; })},
          {"--tied-head False", model([](auto& m) { m.tied_head = false; })},
          {"--norm-eps 0.1", model([](auto& m) { m.layer_norm_eps = 0.1; })},
          {"--architecture llama", llama([](auto&) {}), "--bias True"},
          {"--bias False", llama([](auto& m) { m.bias = false; }), "--architecture llama"},
          {"--rope-base 7", llama([](auto& m) { m.rope_base = 7; }), "--architecture llama --bias True"},
          {"--rope-scaling linear,3", llama([](auto& m) { m.rope_scaling.factor = 3; }), "--architecture llama --bias True"},
          {"--rope-scaling llama3,8,4,1,2",
           llama([](auto& m) { m.rope_scaling = {.factor = 8, .original_length = 4, .low_turns = 1, .high_turns = 2}; }),
           "--architecture llama --bias True"},
          {"--batch-size 3", trains([](Setting& s) { s.batch = 3; })},
          {"--accumulate 2", trains([](Setting& s) { s.accumulate = 2; })},
          {"--updates 5", trains([](Setting& s) { s.updates = 5; })},
          {"--epochs 2",
           [](const Ran& changed, const Ran& plain) { CHECK(changed.summary()["updates"] == 2 * plain.summary()["updates"].get<int>()); },
           "--updates 0 --batch-size 64"},
          {"--lr 0.02", trains([](Setting& s) { s.optimizer.lr = 0.02; })},
          {"--beta2 0.5", trains([](Setting& s) { s.optimizer.beta2 = 0.5; })},
          {"--weight-decay 5", decays_matrices, "--updates 1"},
          {"--clip 0.01", trains([](Setting& s) { s.optimizer.clip = 0.01; })},
          {"--schedule linear", rates(0.01, {0.75, 0.5, 0.25, 0})},
          {"--schedule wsd", rates(0.01, {0.5, 1, 1, 0}), "--warmup 2"},
          {"--warmup 5", rates(0.01, {0.2, 0.4, 0.6, 0.8})},
          {"--ema 0.5", averages, "--updates 1"},
          {"--optimizer muon", orthogonalizes, "--updates 1"},
          {"--muon-lr 1e-9", keeps_blocks, "--updates 1 --optimizer muon"},
          {"--valid-every 2",
           [](const Ran& changed, const Ran& plain) {
             CHECK(plain.log("valid_loss").size() == 1);
             CHECK(changed.log("valid_loss").size() == 2);
             CHECK(changed.log("valid_loss").back() == plain.log("valid_loss").back());
           }},
          {"--valid-tokens 17", trains([](Setting& s) { s.valid_tokens = 17; })},
          {"--patience 2", ends_without_progress, "--updates 30 --valid-every 1 --lr 0.3"},
          {"--dropout 0.5", acts_in_training_alone, still + " --width 64"},
          {"--precision bf16", rounds_by(8e-3)},
          {"--precision fp16", rounds_by(1e-3)},
          {"--use-fused-kernel True", fuses},
          {"--activation-checkpointing selective", saves_memory, "--layers 4"},
          {"--activation-checkpointing full", saves_memory, "--layers 4 --activation-checkpointing selective"},
          {"--compile", runs_programs, "--dropout 0.1 --updates 24 --schedule cosine --clip 1"},
          {"--threads 3", says("on 3 CPU threads")},
      },
      {
          {"--layer 3", "there is no option --layer; did you mean --layers?"},
          {"--layers 0", "--layers: expected a whole number from 1 to 1024 but got 0"},
          {"--heads 3", "--heads: expected a divisor of the width 16, or a --head-dim, but got 3"},
          {"--kv-heads 3", "--kv-heads: expected a divisor of the heads 2 but got 3"},
          {"--architecture llama --heads 16 --bias False",
           "--heads: rotary positions turn pairs, expected heads of an even size but got 1"},
          {"--architecture mamba", "--architecture: expected gpt2, llama but got mamba"},
          {"--bias False", "--architecture: gpt2: "},
          {"--activation gelu2", "--activation: expected default, gelu, gelu_tanh, relu, silu but got gelu2"},
          {"--rope-scaling linear", "--rope-scaling: expected none, linear,FACTOR or llama3,FACTOR,LENGTH,LOW,HIGH but got linear"},
          {"--rope-scaling llama3,8,4,1", "--rope-scaling: expected none"},
          {"--optimizer lion", "--optimizer: expected adamw, muon but got lion"},
          {"--lora 4", "--lora: adapters change a model: name it by --init"},
          {"--init /nonexistent", "/nonexistent: expected a run of tern-lm"},
          {"--preset fast", "--preset: expected tiny, small, medium, large, xl, cs336, llama-1b, llama-3b, llama-8b but got fast"},
          {"--precision tf32", "--precision tf32: "},
          {"--out \"\"", "--out: "},
          {"--device cuda", "--device cuda: "},
          {"--gradient-sync none", "--gradient-sync: expected"},
          {"--bucket-size-mb 0", "--bucket-size-mb: expected"},
          {"--rank-timeout 0", "--rank-timeout: expected"},
          {"--profile 0", "--profile: "},
          {"", "/nonexistent: expected data that tern-lm prepare wrote but there is no data.json"},
      }};
  return table;
}

TEST_CASE("tern-lm train: each flag shows as its row says") { check_flags(lm_train()); }
TEST_CASE("tern-lm train: a wrong value is refused before anything is written") { check_refusals(training, lm_train().refusals); }

TEST_CASE("tern-lm train --preset (where values come from that are not given)") {
  const Command command{
      lm, "train --data TOKENS --out OUT/run --device cpu --threads 1 --layers 1 --width 16 --heads 2 --ff 16 --length 8 --updates 3"};
  for (const auto& [preset, lr, architecture] :
       {std::tuple("tiny", 3e-3 / 50, "llama"), std::tuple("xl", 2e-4 / 200, "gpt2"), std::tuple("cs336", 1e-3 / 200, "llama")}) {
    INFO(preset);
    const Ran& trained = ran(command, std::string("--batch-size 2 --kv-heads 0 --preset ") + preset);
    check_equal(trained.log("lr"), {lr, 2 * lr, 3 * lr});
    CHECK(json_of(trained.path() / "config.json")["architecture"] == architecture);
  }
}

TEST_CASE("tern-lm train --data --out (what is read, and where to)") {
  const Ran& plain = ran(training);
  CHECK(slurp(plain.path() / "tokenizer.json") == slurp(lm_tokens() / "tokenizer.json"));
  CHECK(contains(plain.result.out, fmt::format("the run is in {}", plain.path().string())));
  const Json data = json_of(lm_tokens() / "data.json");
  const double bits =
      plain.log("valid_loss").back() / std::log(2.0) * data["valid_tokens"].get<double>() / data["valid_bytes"].get<double>();
  check_equal(plain.log("valid_bits_per_byte"), {bits});
}

TEST_CASE("tern-lm train --init (goes on from a model, whose shape it has)") {
  const Ran& plain = ran(training);
  const std::string init = "--init " + plain.path().string() + " ";
  const std::string words =
      "train --data TOKENS --out OUT/run --device cpu --threads 1 --preset tiny --updates 1 --length 8 --use-fused-kernel False --dropout "
      "0 ";
  const Ran more(Command{lm, words + init + still}, "");
  REQUIRE(more.result.code == 0);
  CHECK(distance(more.weights(), plain.weights()) < 1e-7);
  CHECK(json_of(more.path() / "config.json")["architecture"] == "gpt2");
  check_refused(Ran(Command{lm, words + init + "--layers 2"}, "").result, "--layers 2: " + plain.path().string() + " has its own",
                "tern-lm");
}

TEST_CASE("tern-lm train --lora --lora-alpha --lora-layers (adapters alone are trained, and kept)") {
  const Ran& plain = ran(training);
  const Command command{lm,
                        "train --data TOKENS --out OUT/run --device cpu --threads 1 --preset small --updates 2 --length 8 --batch-size 4 "
                        "--warmup 0 --lr 0.1 --init " +
                            plain.path().string()};
  const Ran &four = ran(command, "--lora 4"), &eight = ran(command, "--lora 8"), &strong = ran(command, "--lora 4 --lora-alpha 64"),
            &few = ran(command, "--lora 4 --lora-layers qkv");
  const auto sizes = [](const Ran& of) {
    std::map<std::string, std::size_t> result;
    for (const auto& [name, values] : of.weights()) result[name] = values.size();
    return result;
  };
  CHECK(sizes(few) == std::map<std::string, std::size_t>{{"blocks.0.attn.qkv.lora_a", 4 * 16}, {"blocks.0.attn.qkv.lora_b", 48 * 4}});
  CHECK(sizes(four).size() == 8);
  CHECK(sizes(eight).at("blocks.0.attn.qkv.lora_a") == 8 * 16);
  CHECK(strong.log("valid_loss") != four.log("valid_loss"));
  for (const auto& [name, tensor] : io::load_safetensors(four.path() / "checkpoints/update-00000002.safetensors").tensors)
    CHECK((contains(name, "lora") || name.starts_with("loop.") || name == "optimizer.step" || name.starts_with("optimizer.lr.")));

  // The merged model is the one that was measured.
  const Ran next(
      Command{lm, "train --data TOKENS --out OUT/run --device cpu --threads 1 --preset small --updates 1 --length 8 --warmup 0 --init " +
                      four.path().string()},
      still);
  REQUIRE(next.result.code == 0);
  check_equal(next.log("valid_loss"), four.log("valid_loss"), 1e-5);
}

TEST_CASE("tern-lm replay --update --data --device --threads (an update once more, bit for bit)") {
  const Ran& plain = ran(training, "--checkpoint-every 2 --keep 9 --dropout 0.1");
  const auto replay = [&](const std::string& more) {
    return run(lm, with({"replay", plain.path()}, words_of(more + " --device cpu --threads 1")));
  };
  const Result four = done(replay("--update 4"));
  CHECK(contains(four.out, "resumed  from update 2 of 4"));
  CHECK(contains(four.out, fmt::format("update   4 of 4: loss {}, on 1 CPU thread\n", plain.log("loss").back())));
  CHECK(contains(four.out, ", those of update-00000004.safetensors\n"));
  CHECK(contains(four.out, "rows     0 of 4 have a loss that is not finite"));
  CHECK(contains(done(replay("--update 1")).out, fmt::format("update   1 of 4: loss {}, on 1 CPU thread\n", plain.log("loss").front())));
  check_refused(replay("--update 5"), "--update 5: the training has 4 updates", "tern-lm");
  check_refused(replay("--update 1 --data /nonexistent"), "/nonexistent: expected data that tern-lm prepare wrote", "tern-lm");
}

TEST_CASE("A loss of tern-lm that is not finite is replayed, and names the op, its module and the rows") {
  const Ran ended(training, "--lr 1e12 --updates 9 --checkpoint-every 1");
  CHECK(ended.result.code == 1);
  CHECK(contains(ended.result.out, "expected finite numbers but the forward of "));
  CHECK(contains(ended.result.out, " in module "));
  CHECK(contains(ended.result.out, " have a loss that is not finite"));
  CHECK(contains(ended.result.err, "the loss stopped being finite at update "));
}

TEST_CASE("tern-lm train --fit (the memory of an update, and nothing is trained)") {
  const Ran fits(Command{lm, "train --fit --data TOKENS " + small}, "--batch-size 64");
  REQUIRE(fits.result.code == 0);
  CHECK(fits.directory.count() == 0);
  CHECK(contains(fits.result.out, "\nfits     --batch-size "));
  // A batch takes the memory that it says.
  const auto bytes_after = [&](const std::string& words) {
    const std::string text = fits.result.out.substr(fits.result.out.find(words) + words.size());
    std::istringstream in(text);
    double number = 0;
    std::string unit;
    in >> number >> unit;
    return number * (unit.starts_with("KiB") ? 0x1p10 : unit.starts_with("MiB") ? 0x1p20 : 0x1p30);
  };
  CHECK(bytes_after("of --batch-size 64: ") == Approx(ran(training, "--batch-size 64").log("memory_bytes").back()).epsilon(0.1));
}

TEST_CASE("tern-lm train --config (values between the preset's and the command line's)") {
  const Ran& plain = ran(training);
  const Command again{lm, "train --data TOKENS --out OUT/run --device cpu --threads 1 --config " + plain.path().string()};
  CHECK(ran(again).weights() == plain.weights());
  CHECK(json_of(ran(again, "--seed 3").path() / "config.json")["seed"] == 3);
  CHECK(ran(again, "--seed 3").weights() != plain.weights());
}

TEST_CASE("tern-lm train --profile (so many updates after the first ones, beside a training that is the same)") {
  const Ran &plain = ran(training, "--updates 6"), &profiled = ran(training, "--updates 6 --profile 2");
  CHECK(contains(profiled.result.out, "profile  2 steps of "));
  CHECK(profiled.log("loss") == plain.log("loss"));
  for (const char* file : {"trace.json", "ops.md", "memory.svg"}) CHECK(fs::exists(profiled.path() / file));
}

TEST_CASE("tern-lm train --gradient-sync --bucket-size-mb --shard --rank-timeout (as tern-recall's)") {
  const TempDirectory directory;
  const auto losses = [&](int count, const std::string& name, const std::string& more) {
    Arguments words = words_of(training.words + "--dropout 0.1 --batch-size 6 --accumulate 2 --rank-timeout 10 " + more);
    for (std::string& word : words) {
      if (word == "TOKENS") word = lm_tokens().string();
      if (word == "OUT/run") word = directory / name;
    }
    done(count == 1 ? run(lm, words) : run(launch, with({"-n", "2", "--grace", "2", lm}, words)));
    return logged(directory / name, "loss");
  };
  const std::vector<double> alone = losses(1, "alone", "");
  int number = 0;
  for (const char* more :
       {"", "--gradient-sync flat", "--bucket-size-mb 0.001", "--shard optimizer", "--shard gradients", "--shard parameters"}) {
    INFO(more);
    check_equal(losses(2, fmt::to_string(number++), more), alone, 2e-4);
  }
}
