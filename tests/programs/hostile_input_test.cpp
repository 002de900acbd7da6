// Files and flags that are meant to hang a program, to end it in a wrong way, or to speak to the terminal.
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "support.h"

using namespace tern::programs::test;

namespace {

/// No byte of a control character, and no C1 character in UTF-8, but for the ends of lines.
bool is_plain(const std::string& text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if ((c < 0x20 && c != '\n') || c == 0x7F) return false;
    if (c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) return false;
  }
  return true;
}

void check_plain(const Result& result) {
  INFO(result.out << result.err);
  CHECK(is_plain(result.out));
  CHECK(is_plain(result.err));
}

const std::string red =
    "\x1b[31mRED\x1b]0;x\x07\xC2\x9B"
    "1m\xE2\x80\xAE";

}  // namespace

TEST_CASE("A flag's control characters do not reach the terminal, and its length is bounded") {
  const TempDirectory directory;
  for (const std::string& bad : {red, std::string("two\nlines"), "/" + std::string(100'000, 'x'), std::string("\xFF\xFE")}) {
    const std::vector<std::pair<std::string, Arguments>> calls = {
        {translate, {"decode", "--model", bad}},
        {translate, {"score", "--hyp", bad, "--ref", bad}},
        {translate, {bad}},
        {translate, {"--" + bad}},
        {translate, train(directory / "none", directory / "run", {"--data", bad})},
        {translate, train(directory / "none", directory / "run", {"--lr", bad})},
        {translate, train(directory / "none", directory / "run", {"--device", bad})},
        {recall, {"plot", bad}},
        {bench, {"step", "--model", bad}},
    };
    for (const auto& [program, arguments] : calls) {
      const Result result = run(program, arguments);
      INFO(result.err);
      CHECK(result.code == 2);
      CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
      CHECK(result.err.size() < 2000);
      check_plain(result);
    }
  }
}

TEST_CASE("A FIFO where a file is expected is refused, and not waited for") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  REQUIRE(run(translate, train(directory / "data", directory / "run")).code == 0);
  const std::string fifo = directory / "fifo";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  check_refused(run(translate, {"score", "--hyp", fifo, "--ref", fifo}), "fifo: could not be read: it is not a regular file");
  check_refused(run(recall, {"plot", fifo}), "fifo: could not be read: it is not a regular file", "tern-recall");
  check_refused(run(bench, {"count", "--json", fifo}), "fifo: could not be opened: ", "tern-bench");
  check_refused(run(recall, {"plot", "/dev/zero"}), "/dev/zero: could not be read: it is not a regular file", "tern-recall");
  for (const char* file : {"tokenizer.json", "config.json", "model.safetensors"}) {
    fs::rename(directory / "run" / file, directory / "kept");
    fs::rename(fifo, directory / "run" / file);
    check_refused(run(translate, {"decode", "--model", directory / "run"}),
                  std::string(file) + ": could not be read: it is not a regular file");
    fs::rename(directory / "run" / file, fifo);
    fs::rename(directory / "kept", directory / "run" / file);
  }
  fs::remove(directory / "data" / "train.de");
  fs::rename(fifo, directory / "data" / "train.de");
  check_refused(run(translate, train(directory / "data", directory / "other")), "train.de: could not be read: it is not a regular file");
}

TEST_CASE("A corpus' control characters do not reach the terminal") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  std::string sources, references;
  for (int i = 0; i < 12; ++i) {
    sources += "Der Hund " + red + ".\n";
    references += "The dog " + red + ".\n";
  }
  spill(directory / "data" / "test.de", sources);
  spill(directory / "data" / "test.en", references);
  spill(directory / "data" / ("train\x1b[31m.fr"), "x\n");
  const Result result = run(translate, train(directory / "data", directory / "run"));
  CHECK(result.code == 0);
  CHECK(contains(result.out, "\\x1b[31mRED"));
  check_plain(result);
  const Result missing = run(translate, train(directory / "data", directory / "run", {"--src", "nl"}));
  check_refused(missing, "train\\x1b[31m.fr");
  check_plain(missing);

  // A model puts out tokens whose bytes are C1 characters in UTF-8.
  Json tokenizer = json_of(directory / "run" / "tokenizer.json");
  const std::size_t first = tokenizer["added_tokens"].size();
  Json vocab = Json::object();
  for (const auto& [token, id] : tokenizer["model"]["vocab"].items()) {
    // Past the bytes, each token is another number of CSI.
    std::string text = token;
    if (id.get<std::size_t>() >= first + 256) {
      text.clear();
      for (std::size_t n = id.get<std::size_t>() - first - 255; n > 0; --n) text += "\xC3\x82\xC4\xBD";
    }
    vocab[text] = id;
  }
  tokenizer["model"]["vocab"] = vocab;
  tokenizer["model"]["merges"] = Json::array();
  spill(directory / "run" / "tokenizer.json", tokenizer.dump());
  without_digests(directory / "run");
  std::string lines;
  for (char c = 'a'; c <= 'z'; ++c) lines += std::string(1, c) + "\n";
  const Result decoded = run(translate, {"decode", "--model", directory / "run"}, lines);
  CHECK(decoded.code == 0);
  check_plain(decoded);
}

TEST_CASE("decode answers a line before the next one comes") {
  const TempDirectory directory;
  write_corpus(directory / "data");
  REQUIRE(run(translate, train(directory / "data", directory / "run")).code == 0);
  const std::string fifo = directory / "in", out = directory / "out";
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  // Opened for reading too: the open does not wait for the program.
  const int writer = ::open(fifo.c_str(), O_RDWR);
  const pid_t child = start(translate, {"decode", "--model", directory / "run"}, fifo, out, directory / "err");
  for (int line = 1; line <= 2; ++line) {
    REQUIRE(::write(writer, "Der Hund\n", 9) == 9);
    const auto answers = [&] {
      const std::string text = slurp(out);
      return std::count(text.begin(), text.end(), '\n');
    };
    for (int i = 0; i < 6000 && answers() < line; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(answers() == line);
  }
  ::kill(child, SIGKILL);
  finish(child);
  ::close(writer);
}

TEST_CASE("A table with an infinite cell is refused with its line") {
  const TempDirectory directory;
  const std::string csv = directory / "sweep.csv";
  const std::string header =
      "task,layers,width,mlp,length,pairs,seed,params,accuracy,low,high,answers,train_loss,test_loss,epochs,updates,seconds,epoch_90,"
      "seconds_90\n";
  const std::string row = "recall,1,32,0,9,4,1,1000,0.5,0.4,0.6,100,1,1,2,10,1,0,0\n";
  spill(csv, header + row);
  REQUIRE(run(recall, {"plot", csv, "--out", directory.path()}).code == 0);
  for (const char* cell : {"inf", "-inf", "nan", "1e999"}) {
    std::string bad = row;
    bad.replace(bad.find("0.5"), 3, cell);
    spill(csv, header + row + bad);
    check_refused(run(recall, {"plot", csv, "--out", directory.path()}), "sweep.csv:3: expected a value of the column accuracy",
                  "tern-recall");
  }
}
