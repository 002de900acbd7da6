// Lines, curves and events that a training writes, each in every place.
#include "trainer/run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "catch.h"
#include "event_records.h"
#include "files.h"
#include "json_lines.h"
#include "message.h"
#include "ops/factory.h"

using namespace tern;
using io::JsonObject, train::Run, train::Sample;
using tern::test::json_lines, tern::test::slurp, tern::test::spill, tern::test::TempDirectory;
using Json = nlohmann::json;
namespace fs = std::filesystem;
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

/// While it lives, stderr goes into a file.
class Captured {
 public:
  explicit Captured(const fs::path& file) : before_(::dup(2)) {
    const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    ::dup2(descriptor, 2);
    ::close(descriptor);
  }
  ~Captured() {
    ::dup2(before_, 2);
    ::close(before_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;

 private:
  int before_;
};

std::ptrdiff_t count(const std::string& text, const std::string& part) {
  std::ptrdiff_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// A run that goes on from a checkpoint of update 2, to which `log` belongs.
struct GoingOn {
  TempDirectory directory;
  std::optional<Run> run;
  explicit GoingOn(const std::function<void(Run&)>& log, const std::string& more = "") {
    const std::vector<NamedTensor> model{{"weight", Tensor::from(std::vector<float>{1}, {1})}};
    {
      Run before("test", directory / "run", JsonObject());
      log(before);
      before.save_checkpoint(2, model, {}, 2);
      before.save(model, 1, 2);
      if (!more.empty()) spill(before.directory().log(), slurp(before.directory().log()) + more);
    }
    run.emplace("test", directory / "run", JsonObject(), train::CheckpointOptions{.resume = true});
    run->restart(model, 1, 2);
  }
};

}  // namespace

TEST_CASE("A run writes each line into the log, the events and the curves") {
  const TempDirectory directory;
  Run run("test", directory / "my-run", JsonObject());
  run.log(update_line(1, 2.5));
  run.log(update_line(2, 1.5));
  CHECK_FALSE(fs::exists(run.directory().curves()));
  run.log(valid_line(2, 12.5));
  run.draw(2, {{"Ein *Hund* | so", "A dog.", "A dog"}, {"Ja", "Yes", "Yes"}});
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

TEST_CASE("A run that goes on draws what was before, up to the update from which it goes on") {
  GoingOn going(
      [](Run& run) {
        run.log(update_line(1, 4));
        run.log(update_line(2, 3));
        run.log(valid_line(2, 10));
        run.draw(2, {});
      },
      "{\"update\":3,\"loss\":9}\n{\"upda");
  Run& run = *going.run;
  run.log(update_line(3, 2));
  run.log(valid_line(3, 20));
  run.draw(3, {});
  CHECK(count(slurp(run.directory().curves()), "<circle") == 4);  // two validations with two numbers each
  const std::vector<std::string> all = events(run.directory().events());
  CHECK(std::count(all.begin(), all.end(), "session 3") == 1);
  CHECK(std::count(all.begin(), all.end(), "train/loss 1 = 4") == 1);
}

TEST_CASE("A run says a file that cannot be written once, and the rest goes on") {
  const TempDirectory directory;
  Run run("test", directory / "run", JsonObject());
  fs::create_directory(run.directory().events());
  fs::create_directory(run.directory().curves());
  {
    const Captured captured(directory / "output");
    for (int update = 1; update <= 3; ++update) {
      run.log(update_line(update, 1));
      run.log(valid_line(update, 1));
      run.draw(update, {});
    }
  }
  CHECK(json_lines(run.directory().log()).size() == 6);
  const std::string output = slurp(directory / "output");
  CHECK(count(output, "\n") == 2);
  CHECK(contains(output, "events.out.tfevents: "));
  CHECK(contains(output, "curves.svg: could not be written: it is a directory: training goes on\n"));
}

TEST_CASE("Curves hold what a run has logged, many values as means of neighbours") {
  const TempDirectory directory;
  Run run("test", directory / "run", JsonObject());
  for (int update = 1; update <= 1000; ++update) run.log(JsonObject().set("update", update).set("loss", 5.0 - update / 250.0).set("lr", 1));
  run.log(JsonObject().set("epoch", 1).set("update", 500).set("train_loss", 3).set("valid_loss", 3.5).set("valid_bleu", 12.5));
  run.log(JsonObject().set("epoch", 2).set("update", 1000).set("valid_loss", 2.5).set("valid_bleu", std::nan("")));
  run.draw(1000, {});
  const std::string svg = slurp(run.directory().curves());
  for (const char* name : {">training loss, means of 3 values<", ">validation loss<", ">validation BLEU<", ">BLEU<"})
    CHECK(contains(svg, name));
  const std::size_t line = svg.find("stroke-width=\"1.5\" stroke-linejoin"), begin = svg.rfind("<path d=\"", line);
  CHECK(count(svg.substr(begin, line - begin), "L") == 333);  // 334 points
  CHECK(count(svg, "<circle") == 3);                          // a validation has no score
  CHECK_FALSE(contains(svg, "accuracy"));
}

TEST_CASE("Curves name the training's loss, the smoothed one of a validation, and an accuracy in percent") {
  const TempDirectory directory;
  Run run("test", directory / "run", JsonObject());
  run.name_loss("training loss (label smoothing 0.1)");
  run.log(JsonObject().set("update", 1).set("loss", 5));
  run.log(JsonObject().set("update", 1).set("valid_loss", 3).set("valid_smoothed_loss", 4).set("valid_accuracy", 0.25));
  run.draw(1, {});
  const std::string svg = slurp(run.directory().curves());
  for (const char* name : {">training loss (label smoothing 0.1)<", ">validation loss<", ">validation loss (label smoothing)<",
                           ">validation accuracy<", ">100%<"})
    CHECK(contains(svg, name));
}

TEST_CASE("A model is written while the training goes on, and a fault is said when the run ends") {
  const TempDirectory directory;
  Run run("test", directory / "run", JsonObject());
  const auto model = [](std::int64_t size) { return std::vector<NamedTensor>{{"w", ones({size})}}; };
  run.save(model(4), 1, 10);
  CHECK(fs::exists(run.directory().model()));
  bool goes_on = false;
  for (std::int64_t epoch = 2; epoch < 12 && !goes_on; ++epoch) {  // this thread may lose the processor for longer than writing takes
    const std::vector<NamedTensor> larger = model(epoch << 21);
    const auto is_written = [&] { return fs::file_size(run.directory().model()) > static_cast<std::uintmax_t>(epoch << 23); };
    run.save(larger, epoch, 10 * epoch);
    goes_on = !is_written();
    for (int wait = 0; wait < 2000 && !is_written(); ++wait) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(is_written());
    CHECK(contains(run.remains(), fmt::format("keeps the model of epoch {}", epoch)));
  }
  CHECK(goes_on);
  fs::remove(run.directory().model());
  fs::create_directory(run.directory().model());
  const Captured captured(directory / "output");
  run.save(model(4), 20, 200);
  CHECK(contains(message_of<std::runtime_error>([&] { run.finish(JsonObject()); }), "the last model was not written: "));
  CHECK_FALSE(contains(run.remains(), "keeps the model of epoch 20"));
}
