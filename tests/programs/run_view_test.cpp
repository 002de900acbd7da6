// Lines, curves and events that a training writes, each in every place.
#include "common/run_view.h"

#include "event_records.h"
#include "support.h"

using namespace tern;
using namespace tern::apps;
using namespace tern::programs::test;
using io::JsonObject;
using tern::test::Field, tern::test::field, tern::test::fields, tern::test::records;

namespace {

JsonObject update_line(std::int64_t update, double loss) {
  JsonObject line;
  return line.set("update", update)
      .set("loss", loss)
      .set("lr", 0.5)
      .set("grad_norm", 2)
      .set("tokens_per_second", 100)
      .set("memory_bytes", 4096);
}

JsonObject valid_line(std::int64_t update, double bleu) {
  JsonObject line;
  return line.set("epoch", 1).set("update", update).set("train_loss", 2).set("valid_loss", 3.5).set("valid_bleu", bleu).set("seconds", 1.5);
}

/// "train/loss 3 = 2.5" for each scalar, "text 3" for each text and "session 3" for each session of an event file.
std::vector<std::string> events(const fs::path& path) {
  std::vector<std::string> result;
  for (const std::string& event : records(slurp(path)))
    for (const Field& part : fields(event)) {
      if (part.number == 7) result.push_back(fmt::format("session {}", field(event, 2).integer));
      if (part.number != 5) continue;
      for (const Field& value : fields(part.bytes)) {
        const std::string tag = field(value.bytes, 1).bytes;
        const bool is_text = fields(value.bytes).size() > 2;
        const std::uint64_t step = field(event, 2).integer;
        result.push_back(is_text ? fmt::format("text {}", step)
                                 : fmt::format("{} {} = {:g}", tag, step, tern::test::number<float>(field(value.bytes, 2).bytes)));
      }
    }
  return result;
}

/// While it lives, stdout and stderr go into a file: the views write to both.
class Captured {
 public:
  explicit Captured(const fs::path& file) {
    std::fflush(stdout);
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    for (int i = 0; i < 2; ++i) {
      before_[i] = ::dup(i + 1);
      ::dup2(descriptor, i + 1);
    }
    ::close(descriptor);
  }
  ~Captured() {
    std::fflush(stdout);
    for (int i = 0; i < 2; ++i) {
      ::dup2(before_[i], i + 1);
      ::close(before_[i]);
    }
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

 private:
  int before_[2];
};

}  // namespace

TEST_CASE("A view writes each line into the log, the events and the curves") {
  const TempDirectory directory;
  TrainingRun run("test", directory / "my-run", JsonObject());
  {
    const Captured captured(directory / "output");
    RunView view("test", &run);
    view.update(update_line(1, 2.5));
    view.update(update_line(2, 1.5));
    CHECK_FALSE(fs::exists(run.directory().curves()));
    view.validated(valid_line(2, 12.5), "epoch 1", {{"Ein *Hund* | so", "A dog.", "A dog"}, {"Ja", "Yes", "Yes"}});
  }
  CHECK(slurp(directory / "output") == "epoch 1\n");
  const std::vector<Json> log = json_lines(run.directory().log());
  REQUIRE(log.size() == 3);
  CHECK(log[1]["grad_norm"] == 2);
  CHECK(log[2]["valid_bleu"] == 12.5);
  CHECK(events(run.directory().events()) ==
        std::vector<std::string>{"train/loss 1 = 2.5", "train/lr 1 = 0.5", "train/grad_norm 1 = 2", "speed/tokens_per_second 1 = 100",
                                 "memory/bytes 1 = 4096", "train/loss 2 = 1.5", "train/lr 2 = 0.5", "train/grad_norm 2 = 2",
                                 "speed/tokens_per_second 2 = 100", "memory/bytes 2 = 4096", "train/epoch_loss 2 = 2", "valid/loss 2 = 3.5",
                                 "valid/bleu 2 = 12.5", "text 2"});
  CHECK(contains(slurp(run.directory().events()), "| Ein \\*Hund\\* \\| so | A dog\\. | A dog |\n| Ja | Yes | Yes |\n"));
  const std::string svg = slurp(run.directory().curves());
  CHECK(contains(svg, "Learning curves of my-run"));
  for (const char* name : {">training loss<", ">validation loss<", ">validation BLEU<"}) CHECK(contains(svg, name));
}

TEST_CASE("A view of a run that goes on draws what was before") {
  const TempDirectory directory;
  TrainingRun run("test", directory / "run", JsonObject());
  const Captured captured(directory / "output");
  {
    RunView view("test", &run);
    view.update(update_line(1, 4));
    view.update(update_line(2, 3));
    view.validated(valid_line(2, 10), "");
  }
  RunView view("test", &run);
  view.update(update_line(3, 2));
  view.validated(valid_line(3, 20), "");
  const std::string svg = slurp(run.directory().curves());
  const auto count = [&](const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = svg.find(part); at != std::string::npos; at = svg.find(part, at + 1)) ++found;
    return found;
  };
  CHECK(count("<circle") == 4);  // two validations with two numbers each
  const std::vector<std::string> all = events(run.directory().events());
  CHECK(std::count(all.begin(), all.end(), "session 3") == 1);
  CHECK(std::count(all.begin(), all.end(), "train/loss 1 = 4") == 1);
}

TEST_CASE("A view says a file that cannot be written once, and the rest goes on") {
  const TempDirectory directory;
  TrainingRun run("test", directory / "run", JsonObject());
  fs::create_directory(run.directory().events());
  fs::create_directory(run.directory().curves());
  {
    const Captured captured(directory / "output");
    RunView view("test", &run);
    for (int update = 1; update <= 3; ++update) {
      view.update(update_line(update, 1));
      view.validated(valid_line(update, 1), "valid");
    }
  }
  CHECK(json_lines(run.directory().log()).size() == 6);
  const std::string output = slurp(directory / "output");
  CHECK(std::count(output.begin(), output.end(), '\n') == 5);
  CHECK(contains(output, "events.out.tfevents: "));
  CHECK(contains(output, "curves.svg: could not be written: it is a directory: training goes on\n"));
}

TEST_CASE("The peak of a device's memory grows with a tensor") {
  const std::int64_t before = peak_memory(cpu);
  const std::vector<float> values((1 << 20) + static_cast<std::size_t>(before) / sizeof(float));
  const Tensor large = Tensor::from(values, {static_cast<std::int64_t>(values.size())}, cpu);
  CHECK(peak_memory(cpu) >= before + (4 << 20));
}
