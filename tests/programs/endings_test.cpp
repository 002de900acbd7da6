// Trainings that end early, or whose streams, disk or neighbours fail: what is left, what is said, and the exit code.
#include "flags.h"
#include "trainer/terminal.h"

using namespace tern::programs::test;

namespace {

/// A corpus, and a run in `old`.
struct Trained {
  TempDirectory directory;
  fs::path data = directory / "data", old = directory / "old";

  Trained() {
    write_corpus(data);
    if (run(translate, train(data, old)).code != 0) throw std::runtime_error("the training failed");
  }
  /// A training whose first epoch is long.
  Arguments long_epoch(const fs::path& out) {
    const fs::path many = directory / "many";
    write_corpus(many, 20'000);
    return train(many, out, {"--batch-size", "1", "--updates", "1000000", "--epochs", "1000000"});
  }
  Result decode(const fs::path& model) const {
    return run(translate, {"decode", "--model", model.string(), "--device", "cpu"}, "Der Hund\n");
  }
};

const Arguments endless = {"--updates", "1000000", "--epochs", "1000000"};

/// The last line of stderr: progress may stand before it.
std::string last_line(const std::string& text) { return text.substr(text.rfind('\n', text.size() - 2) + 1); }

Arguments sweep(const fs::path& out, const std::string& seeds, const Arguments& more = {}) {
  return with(words_of("sweep --out " + out.string() + " --layers 1 --widths 16 --seeds " + seeds +
                       " --device cpu --threads 1 --pairs 4 --train-examples 32 --valid-examples 10 --test-examples 10 --epochs 1"),
              more);
}

}  // namespace

TEST_CASE("A training that ends before its first model leaves the earlier run as it was") {
  const Trained trained;
  const auto before = contents(trained.old);
  const Result diverged = run(translate, train(trained.data, trained.old, {"--lr", "1e12", "--clip", "0", "--schedule", "constant"}));
  CHECK(diverged.code == 1);
  CHECK(contains(diverged.err, "keeps the earlier run, as no epoch was done\n"));
  fs::remove_all(trained.old / ".tern-staging");  // with the checkpoint of its first epoch
  CHECK(contents(trained.old) == before);

  // No file can grow past 10 KB, which the model does.
  const Result full = shell("ulimit -f 20; exec \"$0\" \"$@\"", translate, train(trained.data, trained.old));
  INFO(full.err);
  CHECK(full.code == 1);
  CHECK(contains(full.err, "could not be written: File too large; " + trained.old.string() + " keeps the earlier run"));
  CHECK(contents(trained.old) == before);
  CHECK(trained.decode(trained.old).code == 0);
}

TEST_CASE("A signal ends a training at its next step") {
  Trained trained;
  const auto before = contents(trained.old);
  const fs::path fresh = trained.directory / "fresh", err = trained.directory / "err";
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string stopped = fmt::format("tern-translate: stopped by {} ", signal == SIGINT    ? "SIGINT"
                                                                              : signal == SIGTERM ? "SIGTERM"
                                                                                                  : "SIGHUP");
    INFO(stopped);
    const pid_t first = start(translate, trained.long_epoch(trained.old), "/dev/null", "/dev/null", err);
    const fs::path log = trained.old / ".tern-staging/log.jsonl";
    CHECK(wait_until([&] { return !slurp(log).empty(); }));
    ::kill(first, signal);
    CHECK(finish(first) == 128 + signal);
    CHECK(last_line(slurp(err)).starts_with(stopped + "at update "));
    CHECK(contains(slurp(err), "; --resume goes on from " + (trained.old / ".tern-staging/checkpoints/update-").string()));
    CHECK(slurp(err).ends_with(trained.old.string() + " keeps the earlier run, as no epoch was done\n"));
    CHECK(fs::exists(trained.old / ".tern-staging/checkpoints"));
    fs::remove_all(trained.old / ".tern-staging");
    CHECK(contents(trained.old) == before);

    const pid_t later = start(translate, train(trained.data, fresh, endless), "/dev/null", "/dev/null", err);
    CHECK(wait_until([&] { return fs::exists(fresh / "model.safetensors"); }));
    ::kill(later, signal);
    CHECK(finish(later) == 128 + signal);
    CHECK(last_line(slurp(err)).starts_with(stopped + "at update "));
    CHECK(contains(slurp(err), "; --resume goes on from " + (fresh / "checkpoints/update-").string()));
    CHECK(contains(slurp(err), "; " + fresh.string() + " keeps the model of epoch "));
    CHECK(contents(fresh).count("summary.json") == 0);
    const Result decoded = trained.decode(fresh);
    CHECK(decoded.code == 0);
    CHECK(decoded.err ==
          "tern-translate: " + fresh.string() + ": the training of this model goes on, or was cut short: it has no summary.json\n");
    fs::remove_all(fresh);
  }
}

TEST_CASE("A directory has one training at a time") {
  const Trained trained;
  const fs::path path = trained.directory / "run";
  const pid_t first = start(translate, train(trained.data, path, endless), "/dev/null", "/dev/null", "/dev/null");
  CHECK(wait_until([&] { return fs::exists(path / ".tern-staging/config.json") || fs::exists(path / "config.json"); }));
  const std::string refusal = path.string() + ": another process writes a run there";
  check_refused(run(translate, train(trained.data, path)), refusal);
  CHECK(wait_until([&] { return fs::exists(path / "model.safetensors"); }));
  check_refused(run(translate, train(trained.data, path)), refusal);
  ::kill(first, SIGKILL);
  finish(first);
  CHECK(run(translate, train(trained.data, path)).code == 0);
}

TEST_CASE("A stream that fails does not end a program in another way") {
  const Trained trained;
  for (const char* sink : {"2>/dev/full", "2>&-"})
    CHECK(shell(std::string("\"$0\" decode --model /nonexistent ") + sink, translate).code == 2);
  const fs::path path = trained.directory / "run";
  const std::vector<std::pair<std::string, int>> scripts = {
      {"\"$0\" \"$@\" 2>/dev/full", 0}, {"\"$0\" \"$@\" 2>&-", 0}, {"\"$0\" \"$@\" >/dev/full", 1}, {"\"$0\" \"$@\" >&-", 1}};
  for (const auto& [script, code] : scripts) {
    INFO(script);
    CHECK(shell(script, translate, train(trained.data, path)).code == code);
    CHECK(json_lines(path / "log.jsonl").size() == 6);  // nothing that was meant for a stream is in a file
    CHECK(json_of(path / "summary.json")["updates"] == 3);
    fs::remove_all(path);
  }
  // A reader that leaves: the training goes on to its end.
  const Result left = shell("{ \"$0\" \"$@\"; echo $? >&2; } | head -n 1", translate, train(trained.data, path));
  CHECK(contains(left.err, "the output could not be written: Broken pipe\n1\n"));
  CHECK(fs::exists(path / "summary.json"));
}

TEST_CASE("Output that nobody reads is dropped") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(ends[1], stream);
    const std::string line(100, 'x');
    for (int i = 0; i < 2000; ++i) {  // a pipe holds 64 KB
      tern::train::write_progress(line);
      tern::train::write_output(line);
    }
    ::_exit(tern::train::output_fault() == "its reader does not read" ? 0 : 1);
  }
  CHECK(finish(child) == 0);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_CASE("decode refuses damaged and mixed runs") {
  const Trained trained;
  const fs::path path = trained.directory / "run";
  const auto spoil = [&](const char* name, const std::function<std::string(std::string)>& change) {
    fs::remove_all(path);
    fs::copy(trained.old, path);
    spill(path / name, change(slurp(path / name)));
    return trained.decode(path);
  };
  check_refused(spoil("model.safetensors",
                      [](std::string text) {
                        text[text.size() - 100] = static_cast<char>(text[text.size() - 100] ^ 1);
                        return text;
                      }),
                "is damaged, or was changed: its checksum is ");
  const std::string changed = ": is not the one that model.safetensors was written with";
  check_refused(spoil("config.json",
                      [](std::string text) {
                        const std::string key = "\"restart_positions\": ";
                        const std::size_t at = text.find(key) + key.size();
                        return text.replace(at, text.find(',', at) - at, text[at] == 't' ? "false" : "true");
                      }),
                "config.json" + changed);
  check_refused(spoil("tokenizer.json", [](std::string text) { return text + "\n"; }), "tokenizer.json" + changed);
}

TEST_CASE("A sweep goes on where it was cut short") {
  const TempDirectory directory;
  const fs::path out = directory / "sweep", csv = out / "sweep.csv";
  REQUIRE(run(recall, sweep(out, "1,2")).code == 0);
  const std::string two = slurp(csv);
  CHECK(count_lines(two) == 3);
  spill(csv, two + "recall,1,16,2,10,4,3,99");  // a row that was cut off
  spill(out / ".sweep.csv.999.0.tmp", "half");

  const Result more = done(run(recall, sweep(out, "1,2,3")));
  CHECK(contains(more.out, "3 runs on ") == true);
  CHECK(contains(more.out, "; 2 are done\n"));
  const std::string three = slurp(csv);
  CHECK(three.starts_with(two));
  CHECK(count_lines(three) == 4);
  CHECK(contents(out).count(".sweep.csv.999.0.tmp") == 0);

  const auto before = contents(out);
  check_refused(run(recall, sweep(out, "1,2,3,4", {"--warmup", "9"})), "sweep.json: the sweep there has --warmup 100 and this one 9",
                "tern-recall");
  CHECK(contents(out) == before);
  fs::remove(out / "sweep.json");
  check_refused(run(recall, sweep(out, "1,2,3,4")), "sweep.csv: sweep.json, which says with what settings it was made, is missing",
                "tern-recall");
  CHECK(slurp(csv) == three);
}

TEST_CASE("A signal ends a sweep, which keeps its rows") {
  const TempDirectory directory;
  const fs::path out = directory / "sweep", csv = out / "sweep.csv", err = directory / "err";
  std::string seeds = "1";
  for (int seed = 2; seed <= 5000; ++seed) seeds += "," + std::to_string(seed);
  const auto rows = [&] { return count_lines(slurp(csv)) - 1; };
  const pid_t child = start(recall, sweep(out, seeds), "/dev/null", "/dev/null", err);
  CHECK(wait_until([&] { return rows() >= 2; }));
  check_refused(run(recall, sweep(out, "1")), "sweep: another process writes a run there", "tern-recall");
  ::kill(child, SIGTERM);
  CHECK(finish(child) == 128 + SIGTERM);
  CHECK(contains(slurp(err), fmt::format("sweep.csv has {} of 5000 runs, and the same command goes on from there\n", rows())));
  const std::string kept = slurp(csv);
  REQUIRE(run(recall, sweep(out, "1,2")).code == 0);
  CHECK(slurp(csv) == kept);
}

#if !defined(__SANITIZE_ADDRESS__)  // which maps terabytes
TEST_CASE("tern-bench step shows a case without memory as a row, and goes on") {
  const TempDirectory directory;
  const fs::path file = directory / "rows";
  const Result result = shell("ulimit -v 3000000; exec \"$0\" \"$@\"", bench,
                              words_of("step --model xl,ar --batch 1 --length 4 --vocab 40 --warmup 0 --steps 1 --threads 1 --device cpu "
                                       "--json " +
                                       file.string()));
  INFO(result.err);
  CHECK(result.code == 0);
  const std::vector<Json> found = json_lines(file);
  REQUIRE(found.size() == 2);
  CHECK(found[0]["error"] == "out of memory");
  CHECK(found[1].contains("step_ms"));
}
#endif
