// decode shows a model its input as the training did: what config.json says of the prefix and of positions, beside a decoder written out
// here. And what its options, score-pairs and chat say and print.
#include <cmath>
#include <set>

#include "bytes.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "support.h"
#include "text/bpe.h"
#include "text/unicode.h"

using namespace tern;
using namespace tern::programs::test;

namespace {

constexpr std::int64_t length = 40;  // of train() in support.h

/// The most probable token after all those before it, until the target's end, without a batch.
std::string translated(const nn::DecoderLM& model, const text::Tokenizer& tokenizer, const std::string& line, bool prefix_lm,
                       bool restart_positions) {
  const NoGrad unrecorded;
  std::vector<std::int64_t> ids, positions;
  for (std::int32_t id : tokenizer.encode(line)) ids.push_back(id);
  ids.push_back(tokenizer.token_to_id("<eos_de>").value());
  const auto prefix = static_cast<std::int64_t>(ids.size());
  for (std::int64_t column = 0; column < length; ++column)
    positions.push_back(!restart_positions || column < prefix ? column : std::min(length / 2 + column - prefix, length - 1));
  AttentionMask mask{.causal = true};
  if (prefix_lm) mask.prefix = Tensor::from(std::vector<std::int64_t>{prefix}, {1});
  std::vector<std::int32_t> target;
  for (auto count = prefix; count < length; ++count) {
    const Tensor at = Tensor::from(std::vector<std::int64_t>(positions.begin(), positions.begin() + count), {1, count});
    const std::vector<float> logits = contiguous(model.forward(Tensor::from(ids, {1, count}), mask, at)).to_vector<float>();
    const auto last = logits.end() - static_cast<std::int64_t>(tokenizer.vocab_size());
    ids.push_back(std::max_element(last, logits.end()) - last);
    if (ids.back() == tokenizer.token_to_id("<eos_en>")) break;
    target.push_back(static_cast<std::int32_t>(ids.back()));
  }
  const std::string text = text::without_controls(tokenizer.decode(target));
  return text.substr(std::min(text.find_first_not_of(' '), text.size()));
}

}  // namespace

TEST_CASE("decode takes the prefix and the positions that config.json has") {
  const TempDirectory directory;
  const fs::path data = directory / "data", path = directory / "run";
  write_corpus(data);
  // With one layer nothing that a target sees depends on what the source tokens saw.
  const Arguments more{"--layers", "2",    "--updates",    "60", "--epochs", "60",  "--batch-size",       "16",
                       "--lr",     "0.02", "--bleu-every", "0",  "--device", "cpu", "--use-fused-kernel", "False"};
  REQUIRE(run(translate, train(data, path, more)).code == 0);
  without_digests(path);
  const text::Tokenizer tokenizer = text::Tokenizer::load(path / "tokenizer.json");
  nn::DecoderLM model(
      {.vocab = static_cast<std::int64_t>(tokenizer.vocab_size()), .length = length, .width = 16, .layers = 2, .heads = 2, .ff = 16});
  {
    const NoGrad unrecorded;
    io::load_safetensors_into(path / "model.safetensors", nn::named_parameters(model));
  }
  model.eval();
  const std::vector<std::string> lines = split_lines(slurp(data / "test.de"));
  REQUIRE(lines.size() == 12);

  std::set<std::string> outputs;
  Json config = json_of(path / "config.json");
  for (const bool prefix_lm : {true, false})
    for (const bool restart_positions : {true, false}) {
      INFO("prefix_lm " << prefix_lm << ", restart_positions " << restart_positions);
      config["prefix_lm"] = prefix_lm;
      config["restart_positions"] = restart_positions;
      spill(path / "config.json", config.dump());
      std::string wanted;
      for (const std::string& line : lines) wanted += translated(model, tokenizer, line, prefix_lm, restart_positions) + "\n";
      const Result decoded = run(translate, {"decode", "--model", path.string(), "--device", "cpu"}, slurp(data / "test.de"));
      CHECK(decoded.code == 0);
      CHECK(decoded.out == wanted);
      outputs.insert(wanted);
    }
  CHECK(outputs.size() == 4);  // each shows in the text
}

namespace {

/// Two decoder-only LMs and an encoder-decoder, that have learnt a little, of one corpus.
struct Models {
  TempDirectory directory;
  fs::path data = directory / "data", one = directory / "one", other = directory / "other", both = directory / "both";
  std::string input;

  Models() {
    write_corpus(data);
    const auto train_one = [&](const fs::path& out, const Arguments& more) {
      const std::string words =
          "--preset quick --layers 2 --updates 40 --epochs 40 --batch-size 16 --lr 0.02 --bleu-every 0 --device cpu --seed 3";
      done(run(translate, train(data, out, with(words_of(words), more))));
    };
    train_one(one, {});
    train_one(other, {"--seed", "9", "--updates", "30"});
    train_one(both, {"--architecture", "encoder-decoder"});
    input = slurp(data / "test.de") + "\nDer\nDer Hund sieht den König und den Mann und den Baum.\n" + slurp(data / "valid.de");
  }
  static const Models& get() {
    static const Models models;
    return models;
  }
  Result decode(const fs::path& model, const Arguments& more, const std::string& text) const {
    return run(translate, with({"decode", "--model", model.string(), "--device", "cpu"}, more), text);
  }
  std::string out(const fs::path& model, const Arguments& more = {}) const { return done(decode(model, more, input)).out; }
  std::vector<double> score_pairs(const fs::path& model, const std::string& sources, const std::string& targets,
                                  const Arguments& more = {}) const {
    spill(directory / "src", sources);
    spill(directory / "tgt", targets);
    const Arguments files{"--src-file", directory / "src", "--tgt-file", directory / "tgt"};
    std::vector<double> scores;
    const Result result = done(run(translate, with(with({"score-pairs", "--model", model, "--device", "cpu"}, files), more)));
    for (const std::string& line : split_lines(result.out)) scores.push_back(std::stod(line));
    return scores;
  }
};

struct NBest {
  std::string text;
  double score = 0;
};

/// "number ||| text ||| score", by number.
std::map<int, std::vector<NBest>> n_best(const std::string& out) {
  std::map<int, std::vector<NBest>> result;
  for (const std::string& line : split_lines(out)) {
    const std::size_t first = line.find(" ||| "), last = line.rfind(" ||| ");
    REQUIRE(first != std::string::npos);
    REQUIRE(last > first);
    result[std::stoi(line)].push_back({line.substr(first + 5, last - first - 5), std::stod(line.substr(last + 5))});
  }
  return result;
}

}  // namespace

TEST_CASE("tern-translate decode --beam --length-penalty --n-best (the search, and what is printed of it)") {
  const Models& models = Models::get();
  const std::vector<std::string> sources = split_lines(models.input);
  for (const fs::path& model : {models.one, models.both}) {
    const std::string greedy = models.out(model);
    CHECK(greedy == models.out(model, {"--beam", "1"}));
    const auto first = n_best(models.out(model, {"--n-best", "1", "--length-penalty", "0"}));
    const auto found = n_best(models.out(model, {"--beam", "4", "--n-best", "3", "--length-penalty", "0"}));
    const auto squared = n_best(models.out(model, {"--beam", "4", "--n-best", "3", "--length-penalty", "2"}));
    REQUIRE(found.size() == sources.size());
    const std::vector<std::string> plain = split_lines(models.out(model, {"--beam", "4", "--length-penalty", "0"}));
    std::string texts, asked;
    std::vector<double> scores;
    int better = 0;
    for (const auto& [number, hypotheses] : found) {
      const std::string& source = sources.at(static_cast<std::size_t>(number));
      CHECK(hypotheses.front().text == plain.at(static_cast<std::size_t>(number)));
      CHECK(first.at(number).front().text == split_lines(greedy).at(static_cast<std::size_t>(number)));
      if (source.empty()) {
        CHECK(hypotheses.size() == 1);
        continue;
      }
      CHECK(hypotheses.size() == 3);
      for (std::size_t n = 1; n < hypotheses.size(); ++n) CHECK(hypotheses[n].score <= hypotheses[n - 1].score);
      CHECK(hypotheses.front().score >= first.at(number).front().score - 1e-5);
      better += hypotheses.front().score > first.at(number).front().score + 1e-3;
      for (const NBest& hypothesis : hypotheses) {
        asked += source + "\n";
        texts += hypothesis.text + "\n";
        scores.push_back(hypothesis.score);
      }
    }
    CHECK(better > 0);
    CHECK(models.out(model, {"--beam", "4", "--length-penalty", "2"}) != models.out(model, {"--beam", "4", "--length-penalty", "-2"}));
    CHECK(squared.at(0).front().score > found.at(0).front().score);
    // The probabilities are those of forced decoding, wherever the text has the tokens that were found.
    const std::vector<double> forced = models.score_pairs(model, asked, texts);
    REQUIRE(forced.size() == scores.size());
    std::size_t equal = 0;
    for (std::size_t i = 0; i < scores.size(); ++i) equal += std::abs(forced[i] - scores[i]) < 1e-3;
    CHECK(2 * equal > scores.size());
  }
  check_refused(models.decode(models.one, {"--beam", "2", "--n-best", "3"}, ""), "--n-best 3: expected at most the beam, 2");
}

TEST_CASE("A line that shows nothing stays empty, whatever white space it has") {
  const Models& models = Models::get();
  const std::vector<std::string> blanks = {"", "   ", "\t", "\xC2\xA0", "\xE3\x80\x80", "\xE2\x80\x8B", "\xEF\xBB\xBF \xEF\xBB\xBF"};
  const std::string sentence = "Der Hund sieht den Mann.\n";
  std::string lines = sentence, empty = sentence, targets = "The dog sees the man.\n";
  for (const std::string& blank : blanks) {
    lines += blank + "\n";
    empty += "\n";
    targets += "The\n";
  }
  for (const fs::path& model : {models.one, models.both}) {
    const std::vector<std::string> out = split_lines(models.decode(model, {}, lines).out);
    REQUIRE(out.size() == 1 + blanks.size());
    CHECK_FALSE(out[0].empty());
    CHECK(std::all_of(out.begin() + 1, out.end(), [](const std::string& line) { return line.empty(); }));
    for (const Arguments& search : {Arguments{"--beam", "3", "--n-best", "2"}, {"--sample"}, {"--model", models.other.string()}})
      CHECK(models.decode(models.one, search, lines).out == models.decode(models.one, search, empty).out);
    CHECK(models.score_pairs(model, lines, targets) == models.score_pairs(model, empty, targets));
    CHECK(models.score_pairs(model, targets, lines) == models.score_pairs(model, targets, empty));
  }
  const Result said = run(translate, {"chat", "--model", models.one.string(), "--device", "cpu"}, lines);
  CHECK(said.out == models.decode(models.one, {}, sentence).out);
}

TEST_CASE("What a user writes has no special tokens") {
  const Models& models = Models::get();
  const std::string word = "Der Mann.\n";
  for (const std::string token : {"<pad>", "<eos_de>", "<eos_en>"}) {
    const std::string line = "Der " + token + " Mann.\n";
    // A token that ends the source or stands for nothing would leave the translation, and its probability, of the text around it.
    const auto tokenizer = text::Tokenizer::load(models.one / "tokenizer.json");
    CHECK(tokenizer.decode(tokenizer.encode(line)) == line);
    for (const fs::path& model : {models.one, models.both}) {
      CHECK_FALSE(split_lines(models.decode(model, {}, token + "\n").out).at(0).empty());
      const auto apart = [&](const std::string& from, const std::string& to) { return models.score_pairs(model, from, to)[0]; };
      CHECK(apart(line, word) != apart("Der Mann.\n", word));
      CHECK(apart(word, token + "\n") < apart(word, "The\n"));
    }
  }
}

TEST_CASE("tern-translate decode --src-file (a file in place of the standard input)") {
  const Models& models = Models::get();
  const std::string file = models.directory / "input", out = models.out(models.one);
  spill(file, models.input);
  CHECK(models.decode(models.one, {"--src-file", file}, "not this\n").out == out);
  spill(file + ".gz", tern::test::gzip(models.input));
  CHECK(models.decode(models.one, {"--src-file", file + ".gz", "--beam", "1"}, "").out == out);
  check_refused(models.decode(models.one, {"--src-file", file + ".missing"}, ""), ".missing: could not be read: No such file");
  spill(file, "Der Hund.\n\xFF\n");
  const Result faulty = models.decode(models.one, {"--src-file", file}, "");
  check_refused(faulty, "input:2: expected UTF-8 but got byte 0xFF at byte 1");
  CHECK(faulty.out == models.decode(models.one, {}, "Der Hund.\n").out);
}

TEST_CASE("tern-translate decode --sample --temperature --top-k --top-p --seed (how tokens are drawn)") {
  const Models& models = Models::get();
  const std::string greedy = models.out(models.one), drawn = models.out(models.one, {"--sample", "--temperature", "1.5"});
  CHECK(drawn != greedy);
  CHECK(drawn == models.out(models.one, {"--sample", "--temperature", "1.5", "--seed", "1"}));
  CHECK(drawn != models.out(models.one, {"--sample", "--temperature", "1.5", "--seed", "2"}));
  CHECK(drawn != models.out(models.one, {"--sample", "--temperature", "3"}));
  CHECK(greedy == models.out(models.one, {"--sample", "--temperature", "0"}));
  CHECK(greedy == models.out(models.one, {"--sample", "--temperature", "1.5", "--top-k", "1"}));
  CHECK(greedy == models.out(models.one, {"--sample", "--temperature", "1.5", "--top-p", "1e-6"}));
  const auto several = n_best(models.out(models.one, {"--sample", "--temperature", "1.5", "--n-best", "4"}));
  CHECK(several.at(0).size() == 4);
  CHECK(several.at(0)[0].text == split_lines(drawn).at(0));
  check_refused(models.decode(models.one, {"--sample", "--beam", "2"}, ""), "--sample: draws each translation for itself");
}

TEST_CASE("Batches do not change what decode and score-pairs print") {
  const Models& models = Models::get();
  for (const fs::path& model : {models.one, models.both}) {
    for (const Arguments& search : {Arguments{"--n-best", "1"}, {"--beam", "5", "--n-best", "5"}, {"--sample", "--n-best", "2"}}) {
      std::set<std::string> outputs;
      for (const char* size : {"1", "3", "256", "1000000"}) outputs.insert(models.out(model, with(search, {"--batch-size", size})));
      CHECK(outputs.size() == 1);
    }
    const std::string sources = slurp(models.data / "valid.de"), targets = slurp(models.data / "valid.en");
    const auto alone = models.score_pairs(model, sources, targets, {"--batch-size", "1"}),
               together = models.score_pairs(model, sources, targets);
    // oneDNN's float32 products of a large batch have other last bits (docs/precision.md).
    const double bound = __builtin_cpu_is("intel") ? 2e-6 : 0;
    REQUIRE(alone.size() == together.size());
    for (std::size_t i = 0; i < alone.size(); ++i) CHECK(std::abs(alone[i] - together[i]) <= bound);
  }
}

TEST_CASE("Several models of decode translate as one") {
  const Models& models = Models::get();
  const auto together = [&](const fs::path& more) { return models.out(models.one, {"--model", more.string(), "--n-best", "1"}); };
  const auto alone = n_best(models.out(models.one, {"--n-best", "1"}));
  const auto twice = n_best(together(models.one));
  for (const auto& [number, hypotheses] : alone) {
    CHECK(hypotheses[0].text == twice.at(number)[0].text);
    CHECK(hypotheses[0].score == Approx(twice.at(number)[0].score).margin(1e-4));
  }
  for (const fs::path& more : {models.other, models.both}) {
    const std::string joined = together(more);
    CHECK(joined != models.out(models.one, {"--n-best", "1"}));
    CHECK(joined != models.out(more, {"--n-best", "1"}));
  }
  const fs::path odd = models.directory / "odd";
  REQUIRE(run(translate, train(models.data, odd, {"--preset", "quick", "--vocab", "300", "--device", "cpu"})).code == 0);
  check_refused(models.decode(models.one, {"--model", odd.string()}, ""), "has another tokenizer.json than");
}

TEST_CASE("tern-translate decode --precision --statistics (arithmetic, and a line at the end)") {
  const Models& models = Models::get();
  const std::string exact = models.out(models.one, {"--n-best", "1"});
  CHECK(exact == models.out(models.one, {"--n-best", "1", "--precision", "fp32"}));
  CHECK(exact != models.out(models.one, {"--n-best", "1", "--precision", "bf16"}));
  // What a training in 16 bits translated, decode translates in these.
  for (const std::string precision : {"bf16", "fp16"}) {
    INFO(precision);
    const fs::path path = models.directory / precision;
    const Result trained =
        run(translate, train(models.data, path, {"--updates", "20", "--batch-size", "16", "--device", "cpu", "--precision", precision}));
    CHECK(contains(trained.out, ", " + precision + ", fused kernels"));
    CHECK(json_of(path / "config.json")["precision"] == precision);
    const std::string decoded = models.decode(path, {"--precision", precision}, slurp(models.data / "test.de")).out;
    CHECK(contains(trained.out, decoded.substr(0, decoded.find('\n'))));  // the first of the samples
  }
  check_refused(models.decode(models.one, {"--precision", "tf32"}, ""), "--precision tf32: a GPU's tensor cores have it");
  const Result measured = models.decode(models.one, {"--statistics"}, models.input);
  CHECK(measured.out == models.out(models.one));
  CHECK(measured.err.rfind("tern-translate: 23 lines with ", 0) == 0);
  CHECK(contains(measured.err, " tokens/s; a line took "));
  CHECK(models.decode(models.one, {}, models.input).err.empty());
}

TEST_CASE(
    "tern-translate score-pairs --model --src-file --tgt-file --length-penalty --precision --device (log-probabilities of given targets)") {
  const Models& models = Models::get();
  const std::string sources = slurp(models.data / "valid.de"), targets = slurp(models.data / "valid.en");
  for (const fs::path& model : {models.one, models.both}) {
    const std::vector<double> sums = models.score_pairs(model, sources, targets);
    REQUIRE(sums.size() == 8);
    for (double sum : sums) CHECK(sum < 0);
    const std::vector<double> means = models.score_pairs(model, sources, targets, {"--length-penalty", "1"}),
                              halves = models.score_pairs(model, sources, targets, {"--length-penalty", "0.5"});
    for (std::size_t i = 0; i < sums.size(); ++i) CHECK(means[i] * sums[i] == Approx(halves[i] * halves[i]).epsilon(1e-3));
    CHECK(sums != models.score_pairs(model, targets, targets));
    CHECK(sums != models.score_pairs(model, sources, sources));
    CHECK(sums != models.score_pairs(model, sources, targets, {"--precision", "bf16"}));
    CHECK(models.score_pairs(model, "\n", "\n").size() == 1);
  }
  CHECK(models.score_pairs(models.one, sources, targets) != models.score_pairs(models.other, sources, targets));
  const std::string src = models.data / "valid.de", tgt = models.data / "train.en";
  const Arguments uneven{"score-pairs", "--model", models.one.string(), "--src-file", src, "--tgt-file", tgt, "--device", "cpu"};
  check_refused(run(translate, uneven), "expected as many sources as targets but got 8 in");
  Arguments on_gpu = uneven;
  on_gpu[6] = models.data / "valid.en";
  on_gpu[8] = "cuda";
  check_refused(shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", translate, on_gpu), "--device cuda: ");
}

TEST_CASE("tern-translate chat --model --beam --length-penalty --precision --device --attention --layer (a conversation, and a picture)") {
  const Models& models = Models::get();
  const auto chat = [&](const fs::path& model, const Arguments& more, const std::string& said) {
    return run(translate, with({"chat", "--model", model.string(), "--device", "cpu"}, more), said);
  };
  const std::string line = "Der Hund sieht den Mann.\n";
  for (const fs::path& model : {models.one, models.both}) {
    const std::string translation = models.decode(model, {}, line).out, picture = models.directory / "picture.svg";
    const Result result = chat(model, {}, line + ":attention " + picture + "\n:what\n:quit\n" + line);
    CHECK(result.code == 0);
    CHECK(result.out.rfind(translation + picture + ": the attention of \"Der Hund sieht den Mann.\"\n", 0) == 0);
    CHECK(contains(result.out, ":quit"));  // the help, for :what; nothing after :quit
    CHECK(result.out.find(translation) == result.out.rfind(translation));
    const std::string svg = slurp(picture);
    CHECK(contains(svg, "of layer 2 of 2"));
    CHECK(contains(svg, "&lt;eos_de&gt;"));
    CHECK(contains(svg, model == models.both ? "cross attention" : "attention"));
    CHECK(contains(svg, "<rect x="));
    const auto drawn = [&](const Arguments& more) {
      done(chat(model, with({"--attention", picture}, more), line));
      return slurp(picture);
    };
    CHECK(drawn({}) == svg);
    CHECK(drawn({"--layer", "2"}) == svg);
    CHECK(contains(drawn({"--layer", "1"}), "of layer 1 of 2"));
    check_refused(chat(model, {"--layer", "3"}, ""), "--layer 3: expected at most the model's 2 layers");
  }
  std::string lines;
  for (const std::string& source : split_lines(models.input))
    if (!source.empty()) lines += source + "\n";
  const auto same = [&](const Arguments& more) { return chat(models.one, more, lines).out == models.decode(models.one, more, lines).out; };
  CHECK(same({}));
  CHECK(same({"--beam", "4"}));
  CHECK(same({"--beam", "4", "--length-penalty", "-2"}));
  CHECK(chat(models.one, {"--beam", "4", "--length-penalty", "-2"}, lines).out != chat(models.one, {"--beam", "4"}, lines).out);
  check_refused(chat(models.one, {"--precision", "tf32"}, ""), "--precision tf32: a GPU's tensor cores have it");
  CHECK(contains(chat(models.one, {}, ":attention\n").out, "There is no sentence yet."));
  const Arguments on_gpu{"chat", "--model", models.one.string(), "--device", "cuda"};
  check_refused(shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", translate, on_gpu), "--device cuda: ");
}
