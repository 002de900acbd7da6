// tern-lm sample, chat and eval beside the library: the text that a small random model writes, and what it makes of texts and choices.
#include <sys/stat.h>

#include <cmath>

#include "models/hugging_face.h"
#include "nn/nn.h"
#include "ops/factory.h"
#include "support.h"
#include "text/bpe.h"
#include "text/chat_template.h"

using namespace tern;
using namespace tern::programs::test;
using Role = text::ChatMessage::Role;

namespace {

constexpr std::int64_t length = 96;
const std::string chatml = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}";

/// A model in Hugging Face's form, with a tokenizer of fewer ids than the model has.
struct Files {
  TempDirectory directory;
  text::Tokenizer tokenizer;
  nn::DecoderLM model;

  explicit Files(std::int64_t positions = length)
      : tokenizer(text::Tokenizer::train(std::vector<std::string>{"the dog sees the man and the man sees the dog", "hello you there hello"},
                                         {.vocab_size = 300, .special_tokens = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}})) {
    manual_seed(5);
    nn::DecoderLMOptions options;
    options.vocab = static_cast<std::int64_t>(tokenizer.vocab_size()) + 5, options.length = positions, options.width = 32;
    options.layers = 2, options.heads = 2, options.ff = 64, options.dropout = 0, options.activation = nn::Activation::gelu_tanh;
    options.head_bias = false, options.tied_head = true;
    model = nn::DecoderLM(options);
    for (const NamedTensor& entry : nn::named_parameters(model))
      if (entry.name == "tokens.weight") nn::init::normal(entry.tensor, 0, 0.4);  // so that some tokens are more probable than others
    model.eval();
    models::save_hugging_face(model, path());
    spill(directory / "tokenizer.json", tokenizer.to_json());
    set_ends("0");
  }
  std::string path() const { return directory.path().string(); }
  void set_ends(const std::string& ids) const {
    Json config = Json::parse(slurp(directory / "config.json"));
    config["bos_token_id"] = 0;
    config["eos_token_id"] = Json::parse(ids);
    spill(directory / "config.json", config.dump());
  }
  void set_template(const std::string& jinja) const { spill(directory / "tokenizer_config.json", Json{{"chat_template", jinja}}.dump()); }

  nn::TokenIds ids(const std::string& text) const {
    nn::TokenIds result = {0};
    for (const std::int32_t id : tokenizer.encode(text)) result.push_back(id);
    return result;
  }
  /// The text of new tokens, without those that the tokenizer lacks, up to an end.
  std::string text(const nn::TokenIds& tokens, const std::vector<std::int64_t>& ends = {0}) const {
    std::vector<std::int32_t> known;
    for (const std::int64_t id : tokens) {
      if (std::find(ends.begin(), ends.end(), id) != ends.end()) break;
      if (id < static_cast<std::int64_t>(tokenizer.vocab_size())) known.push_back(static_cast<std::int32_t>(id));
    }
    return tokenizer.decode(known);
  }
  nn::TokenIds generated(const nn::TokenIds& prompt, nn::GenerateOptions options) const {
    options.eos = -1;
    return nn::generate(model, {prompt}, {}, options)[0].back().tokens;
  }
  /// Log-probability of the token at `at`, given those from `begin` on.
  double log_p(const nn::TokenIds& tokens, std::size_t begin, std::size_t at) const {
    const NoGrad unrecorded;
    const nn::TokenIds read(tokens.begin() + std::ptrdiff_t(begin), tokens.begin() + std::ptrdiff_t(at));
    const std::vector<float> logits = model.forward(Tensor::from(read, {1, std::int64_t(read.size())})).to_vector<float>();
    const auto last = logits.end() - model.options.vocab;
    double total = 0;
    for (auto x = last; x != logits.end(); ++x) total += std::exp(double(*x));
    return last[tokens[at]] - std::log(total);
  }
};

void check_needs_gpu(const std::string& command, const Files& files, const Arguments& more = {}) {
  const Arguments all = with({command, files.path(), "--device", "cuda"}, more);
  check_refused(shell("CUDA_VISIBLE_DEVICES= exec \"$0\" \"$@\"", lm_program, all), "--device cuda: ", "tern-lm");
}

Result sample(const Files& files, const Arguments& more, const std::string& input = "") {
  return run(lm_program, with({"sample", files.path(), "--device", "cpu"}, more), input);
}

}  // namespace

TEST_CASE(
    "tern-lm sample --prompt --tokens --temperature --top-k --top-p --repetition --seed --samples --precision --device (the library's "
    "text)") {
  const Files files;
  const std::string prompt = "hello the dog";
  const auto out = [&](const Arguments& more) { return done(sample(files, with({"--prompt", prompt, "--tokens", "20"}, more))).out; };
  const auto expected = [&](nn::GenerateOptions options) {
    options.search = nn::Search::sample;
    if (options.max_new_tokens == 0) options.max_new_tokens = 20;
    return prompt + files.text(files.generated(files.ids(prompt), options)) + "\n";
  };
  CHECK(out({}) == expected({.temperature = 0.8, .top_p = 0.95, .seed = 1}));
  CHECK(out({"--temperature", "0"}) == expected({.temperature = 0}));
  CHECK(out({"--temperature", "3", "--top-p", "1"}) == expected({.temperature = 3, .seed = 1}));
  CHECK(out({"--temperature", "3", "--top-p", "0.3"}) == expected({.temperature = 3, .top_p = 0.3, .seed = 1}));
  CHECK(out({"--temperature", "3", "--top-p", "1", "--top-k", "4"}) == expected({.temperature = 3, .top_k = 4, .seed = 1}));
  CHECK(out({"--temperature", "3", "--seed", "9"}) == expected({.temperature = 3, .top_p = 0.95, .seed = 9}));
  CHECK(out({"--temperature", "0", "--repetition", "3"}) == expected({.temperature = 0, .repetition_penalty = 3}));
  CHECK(out({"--temperature", "0", "--repetition", "3"}) != out({"--temperature", "0"}));
  CHECK(out({"--temperature", "0", "--tokens", "7"}) == expected({.max_new_tokens = 7, .temperature = 0}));
  const std::string several = out({"--temperature", "3", "--samples", "3"});
  std::string joined;
  for (std::int64_t i = 0; i < 3; ++i)
    joined += (i > 0 ? "---\n" : "") + expected({.temperature = 3, .top_p = 0.95, .seed = 1, .first_number = i});
  CHECK(several == joined);
  CHECK(done(sample(files, {"--tokens", "20"}, prompt + "\n")).out == out({}));
  CHECK(done(sample(files, {"--tokens", "5", "--prompt", ""})).out.size() > 1);
  CHECK(out({"--precision", "bf16"}).starts_with(prompt));
  check_refused(sample(files, {"--precision", "tf32"}), "--precision tf32", "tern-lm");
  check_needs_gpu("sample", files);
  check_refused(run(lm_program, {"sample", files.path() + "/none"}), "none: expected a run", "tern-lm");
}

TEST_CASE("tern-lm sample ends at any of a model's ends, and goes on past its length") {
  const Files files;
  const nn::TokenIds greedy = files.generated(files.ids("the man"), {.max_new_tokens = 30, .temperature = 0});
  const std::int64_t end = greedy.at(6);
  const Arguments more{"--prompt", "the man", "--temperature", "0", "--tokens", "30"};
  files.set_ends("[0, " + std::to_string(end) + "]");
  CHECK(done(sample(files, more)).out == "the man" + files.text(greedy, {0, end}) + "\n");
  files.set_ends("null");

  // Past its length the model goes on from the last half of it, with other random numbers.
  for (const double temperature : {0.0, 3.0}) {
    nn::TokenIds tokens = files.ids("the man"), all;
    for (std::int64_t round = 0; all.size() < 200; ++round) {
      const nn::GenerateOptions options{
          .search = nn::Search::sample, .temperature = temperature, .top_p = 0.95, .seed = 1, .first_number = round << 32};
      const nn::TokenIds fresh = files.generated(tokens, options);
      all.insert(all.end(), fresh.begin(), fresh.end());
      tokens.insert(tokens.end(), fresh.begin(), fresh.end());
      tokens.erase(tokens.begin(), tokens.end() - length / 2);
    }
    all.resize(200);
    const Arguments long_text{"--prompt", "the man", "--temperature", fmt::format("{}", temperature), "--tokens", "200"};
    CHECK(done(sample(files, long_text)).out == "the man" + files.text(all, {}) + "\n");
  }
}

namespace {

Result chat(const Files& files, const Arguments& more, const std::string& said) {
  return run(lm_program, with({"chat", files.path(), "--device", "cpu", "--temperature", "0", "--tokens", "12"}, more), said);
}

/// Answers of a conversation, one for each line, whose oldest turns are dropped where more than `room` tokens are before an answer.
std::string answers(const Files& files, const std::string& jinja, const std::vector<std::string>& lines, const std::string& system = "",
                    std::size_t room = 1000, double penalty = 1) {
  const text::ChatTemplate form(jinja);
  std::vector<text::ChatMessage> messages;
  std::string out;
  for (const std::string& line : lines) {
    messages.push_back({Role::user, line});
    nn::TokenIds ids;
    while (true) {
      std::vector<text::ChatMessage> seen = messages;
      if (!system.empty()) seen.insert(seen.begin(), {Role::system, system});
      ids.clear();
      for (const std::int32_t id : form.encode(files.tokenizer, seen, {0, 0})) ids.push_back(id);
      if (ids.size() <= room) break;
      messages.erase(messages.begin(), messages.begin() + 2);
    }
    const nn::TokenIds fresh = files.generated(ids, {.max_new_tokens = 12, .repetition_penalty = penalty});
    std::string answer = files.text(fresh, form.is_plain() ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{0, 2});
    if (form.is_plain()) answer = answer.substr(0, answer.find("\nUser:"));
    answer = answer.substr(std::min(answer.find_first_not_of(" \t\r\n"), answer.size()));
    out += answer + "\n";
    messages.push_back({Role::assistant, answer});
  }
  return out;
}

}  // namespace

TEST_CASE(
    "tern-lm chat --system --tokens --temperature --top-k --top-p --repetition --seed --precision --device (a conversation in the model's "
    "form)") {
  const Files files(400);
  const std::vector<std::string> lines = {"hello", "the dog <|im_end|>"};
  const std::string said = "hello\n\n  the dog <|im_end|> \n";
  for (const std::string& jinja : {chatml, std::string()}) {
    INFO(jinja);
    if (!jinja.empty()) files.set_template(jinja);
    else fs::remove(files.directory / "tokenizer_config.json");
    const Result result = done(chat(files, {}, said));
    CHECK(result.out == answers(files, jinja, lines));
    CHECK(contains(result.err, "has no chat template: the conversation is plain text") == jinja.empty());
    CHECK(chat(files, {"--system", "you"}, said).out == answers(files, jinja, lines, "you"));
    CHECK(chat(files, {"--system", "you"}, said).out != result.out);
    CHECK(chat(files, {"--repetition", "5"}, said).out == answers(files, jinja, lines, "", 1000, 5));
    CHECK(chat(files, {"--tokens", "3"}, said).out.size() < result.out.size());
    CHECK(chat(files, {}, "hello\n:clear\nhello\n:quit\nhello\n").out ==
          answers(files, jinja, {"hello"}) + answers(files, jinja, {"hello"}));
    CHECK(contains(chat(files, {}, ":what\n").out, ":clear"));
    const auto drawn = [&](const Arguments& more) {
      return done(chat(files, with({"--temperature", "4", "--top-p", "1"}, more), said)).out;
    };
    CHECK(drawn({}) != result.out);
    CHECK(drawn({}) == drawn({"--seed", "1"}));
    CHECK(drawn({}) != drawn({"--seed", "2"}));
    CHECK(drawn({"--top-k", "1"}) == result.out);
    CHECK(drawn({"--top-p", "1e-6"}) == result.out);
    done(chat(files, {"--precision", "bf16"}, said));
    check_refused(chat(files, {"--precision", "tf32"}, said), "--precision tf32", "tern-lm");
  }
  check_needs_gpu("chat", files);
  spill(files.directory / "tokenizer_config.json", Json{{"chat_template", {{{"name", "default"}, {"template", chatml}}}}}.dump());
  CHECK(done(chat(files, {}, said)).out == answers(files, chatml, lines));
  spill(files.directory / "tokenizer_config.json", "{\"chat_template\": 3}");
  check_refused(chat(files, {}, said), "tokenizer_config.json: \"chat_template\": expected a text", "tern-lm");
  spill(files.directory / "chat_template.jinja", chatml);
  CHECK(done(chat(files, {}, said)).out == answers(files, chatml, lines));
  fs::remove(files.directory / "chat_template.jinja");
  files.set_template("{{ messages }} of a form of its own");
  CHECK(contains(done(chat(files, {}, said)).err, "has a chat template of another form than is known: the conversation is plain text"));
}

TEST_CASE("tern-lm chat leaves out the oldest turns that do not fit, and questions that never will") {
  const Files files;
  files.set_template(chatml);
  const std::string question = "hello you there";
  const std::vector<std::string> lines(6, question);
  std::string said;
  for (const std::string& line : lines) said += line + "\n";
  const Result result = done(chat(files, {}, said));
  CHECK(contains(result.err, "the oldest 2 messages left out: the model has 96 tokens for a conversation"));
  CHECK(result.out == answers(files, chatml, lines, "", 84));
  // An answer ends where the model's length does.
  files.set_ends("null");
  nn::TokenIds ids;
  for (const std::int32_t id :
       text::ChatTemplate(chatml).encode(files.tokenizer, std::vector<text::ChatMessage>{{Role::user, question}}, {}))
    ids.push_back(id);
  const std::string longest_answer = files.text(files.generated(ids, {}), {2});
  CHECK(done(chat(files, {"--tokens", "1000"}, question)).out == longest_answer.substr(longest_answer.find_first_not_of(" \t\r\n")) + "\n");
  files.set_ends("0");
  const std::string longest(200, 'x');
  const Result dropped = done(chat(files, {"--system", "you"}, "hello\n" + longest + "\nhello\n"));
  CHECK(contains(dropped.err, "expected a conversation of at most 84 tokens but got"));
  CHECK(dropped.out == answers(files, chatml, {"hello"}, "you") + answers(files, chatml, {"hello"}, "you"));
}

TEST_CASE("Ctrl-C ends an answer of tern-lm chat and not the conversation, SIGTERM ends it") {
  const Files files(20'000);
  files.set_ends("null");
  for (const int signal : {SIGINT, SIGTERM}) {
    const TempDirectory directory;
    const std::string in = directory / "in", out = directory / "out", err = directory / "err";
    REQUIRE(::mkfifo(in.c_str(), 0600) == 0);
    const pid_t child =
        start(lm_program, {"chat", files.path(), "--device", "cpu", "--tokens", "15000", "--temperature", "2"}, in, out, err);
    const int pipe = ::open(in.c_str(), O_WRONLY);
    REQUIRE(::write(pipe, "hello\n", 6) == 6);
    CHECK(wait_until([&] { return slurp(out).size() > 20; }));
    ::kill(child, signal);
    if (signal == SIGINT) {
      CHECK(wait_until([&] { return slurp(out).ends_with("\n"); }));
      const std::size_t before = slurp(out).size();
      REQUIRE(::write(pipe, "you\n", 4) == 4);
      CHECK(wait_until([&] { return slurp(out).size() > before + 20; }));
      ::usleep(600'000);  // a second one within half a second is the same one
      ::kill(child, signal);
    }
    ::close(pipe);
    CHECK(finish(child) == (signal == SIGINT ? 0 : 128 + SIGTERM));
  }
}

TEST_CASE("tern-lm eval --text --overlap --batch-size --precision --device (loss, perplexity and bits per byte)") {
  const Files files;
  std::string text;
  for (int i = 0; i < 40; ++i) text += i % 3 ? "the man sees you and hello " : "there is a dog; ";
  const std::string file = files.directory / "text.txt";
  spill(file, text);
  const nn::TokenIds tokens = files.ids(text);
  REQUIRE(tokens.size() > 3 * length);
  const auto eval = [&](const Arguments& more) {
    return run(lm_program, with({"eval", files.path(), "--text", file, "--device", "cpu"}, more));
  };
  const auto loss = [&](std::int64_t overlap) {
    double sum = 0;
    // Each token is read after those of the first window that scores it.
    for (std::size_t at = 1, begin = 0; at < tokens.size(); ++at) {
      if (at > begin + length) begin += std::size_t(length - overlap);
      sum -= files.log_p(tokens, begin, at);
    }
    return sum;
  };
  for (const std::int64_t overlap : {48, 0, 90}) {
    INFO("overlap " << overlap);
    const double sum = loss(overlap), mean = sum / double(tokens.size() - 1);
    const Result result = done(eval(overlap == 48 ? Arguments{} : Arguments{"--overlap", std::to_string(overlap)}));
    CHECK(contains(result.out, fmt::format("tokens {}, bytes {}, in windows of 96 tokens that overlap by {}\n", tokens.size() - 1,
                                           text.size(), overlap)));
    double found = 0, perplexity = 0, bits = 0;
    REQUIRE(std::sscanf(result.out.c_str() + result.out.find("loss"), "loss %lf, perplexity %lf, bits per byte %lf", &found, &perplexity,
                        &bits) == 3);
    CHECK(found == Approx(mean).epsilon(1e-5));
    CHECK(perplexity == Approx(std::exp(mean)).epsilon(1e-5));
    CHECK(bits == Approx(sum / std::log(2.0) / double(text.size())).epsilon(1e-5));
  }
  CHECK(done(eval({"--batch-size", "1"})).out == done(eval({"--batch-size", "3"})).out);
  CHECK(done(eval({"--precision", "bf16"})).out != done(eval({})).out);
  check_needs_gpu("eval", files, {"--text", file});
  check_refused(eval({"--overlap", "96"}), "--overlap 96: expected less than the model's 96 tokens", "tern-lm");
  check_refused(eval({"--choices", file}), "expected --text FILE or --choices FILE, one of them", "tern-lm");
  check_refused(run(lm_program, {"eval", files.path()}), "expected --text FILE or --choices FILE, one of them", "tern-lm");
  check_refused(run(lm_program, {"eval", files.path(), "--text", files.path() + "/none", "--device", "cpu"}), "none", "tern-lm");
  spill(file, "");
  check_refused(eval({}), "text.txt: expected text but got 1 tokens", "tern-lm");
}

TEST_CASE("tern-lm eval --choices --batch-size (accuracy by likelihood, of a sum and per byte)") {
  const Files files;
  std::string lines;
  std::int64_t by_sum = 0, by_byte = 0;
  constexpr int questions = 24;
  for (int i = 0; i < questions; ++i) {
    const std::string context = std::string(i == 5 ? 300 : 3, 'a' + char(i)) + " the dog ";
    const std::vector<std::string> endings = {"sees you", std::string(std::size_t(1 + i % 4), 'm'), "the man and the man and",
                                              "hello you there hello"};
    std::vector<double> sums;
    for (const std::string& ending : endings) {
      nn::TokenIds row = files.ids(context.substr(0, context.size() - 1));
      const std::size_t first = row.size();
      for (const std::int32_t id : files.tokenizer.encode(" " + ending)) row.push_back(id);
      const std::size_t begin = row.size() > std::size_t(length) + 1 ? row.size() - std::size_t(length) - 1 : 0;
      double sum = 0;
      for (std::size_t at = first; at < row.size(); ++at) sum += files.log_p(row, begin, at);
      sums.push_back(sum);
    }
    const auto likely = [&] { return std::size_t(std::max_element(sums.begin(), sums.end()) - sums.begin()); };
    const std::size_t label = (likely() + (i % 3 ? 0 : 1)) % 4;
    lines += Json{{"ctx", context}, {"endings", endings}, {"label", i % 2 ? Json(label) : Json(std::to_string(label))}}.dump() + "\n";
    by_sum += likely() == label;
    for (std::size_t n = 0; n < 4; ++n) sums[n] /= double(endings[n].size());
    by_byte += likely() == label;
  }
  REQUIRE(by_sum != by_byte);
  const std::string file = files.directory / "choices.jsonl";
  spill(file, lines);
  const auto eval = [&](const Arguments& more) {
    return run(lm_program, with({"eval", files.path(), "--choices", file, "--device", "cpu"}, more));
  };
  const std::string out = done(eval({})).out;
  CHECK(contains(out, "questions 24\n"));
  CHECK(contains(out, fmt::format("likelihood, sum {:.4f} (", double(by_sum) / questions)));
  CHECK(contains(out, fmt::format("likelihood, per byte {:.4f} (", double(by_byte) / questions)));
  CHECK(done(eval({"--batch-size", "1"})).out == out);
  spill(file, lines + "\n{\"ctx\": 3}\n");
  check_refused(eval({}), "choices.jsonl:26: expected an object with the text \"ctx\"", "tern-lm");
  spill(file, "\n");
  check_refused(eval({}), "choices.jsonl: expected a question or more but got none", "tern-lm");
}
