// tern-launch: the variables that processes get, their output and exit codes, signals, and ends that leave nobody behind.
#include <chrono>

#include "support.h"

using namespace tern::programs::test;

namespace {

/// tern-launch with options and a script of sh.
Arguments script(const Arguments& options, const std::string& text) { return with(options, {"sh", "-c", text}); }

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines = split_lines(text);
  std::sort(lines.begin(), lines.end());
  return lines;
}

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

TEST_CASE("tern-launch --processes (or -n: each has its rank, and all one place to meet)") {
  const Result result = run(launch, script({"-n", "3"},
                                           "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR; test -d $TERN_STORE_DIR; "
                                           "test $MASTER_PORT -gt 1023"));
  CHECK(result.code == 0);
  CHECK(sorted_lines(result.out) == std::vector<std::string>{"0 3 0 3 127.0.0.1", "1 3 1 3 127.0.0.1", "2 3 2 3 127.0.0.1"});
  const Result store = run(launch, script({"--processes", "1"}, "echo $TERN_STORE_DIR"));
  CHECK(store.out.size() > 1);
  CHECK(!fs::exists(store.out.substr(0, store.out.size() - 1)));  // removed at the end
  check_refused(run(launch, script({"-n", "0"}, "true")), "--processes: ", "tern-launch");
  check_refused(run(launch, {"-n", "2"}), "expected a program", "tern-launch");
  check_refused(run(launch, {"-n", "2", "tern-no-such-program"}), "tern-no-such-program: No such file", "tern-launch");
}

TEST_CASE("tern-launch --machines --machine --master (ranks go on from machine to machine)") {
  const Result result =
      run(launch, script({"-n", "2", "--machines", "3", "--machine", "2", "--master", "node7:1234"},
                         "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $TERN_STORE_DIR"));
  CHECK(result.code == 0);
  CHECK(sorted_lines(result.out) == std::vector<std::string>{"4 6 0 2 node7 1234", "5 6 1 2 node7 1234"});
  check_refused(run(launch, script({"-n", "2", "--machines", "2"}, "true")), "--master: expected", "tern-launch");
  check_refused(run(launch, script({"-n", "2", "--machines", "2", "--machine", "2", "--master", "a:1"}, "true")),
                "--machine: ", "tern-launch");
  check_refused(run(launch, script({"-n", "2", "--machines", "2", "--master", "a"}, "true")), "ADDRESS:PORT", "tern-launch");
}

TEST_CASE("tern-launch --output (lines as they come, or each with its rank)") {
  const std::string text = "echo line; echo fault >&2; printf end";
  const Result prefixed = run(launch, script({"-n", "2", "--output", "prefix"}, text));
  CHECK(sorted_lines(prefixed.out) == std::vector<std::string>{"[0] end", "[0] line", "[1] end", "[1] line"});
  CHECK(sorted_lines(prefixed.err) == std::vector<std::string>{"[0] fault", "[1] fault"});
  const Result merged = run(launch, script({"-n", "2"}, "echo line; echo fault >&2"));
  CHECK(merged.out == "line\nline\n");
  CHECK(merged.err == "fault\nfault\n");
  check_refused(run(launch, script({"-n", "2", "--output", "all"}, "true")), "--output: ", "tern-launch");
}

TEST_CASE("tern-launch says that output was lost, and where it needs a directory") {
  const auto launched = [](const std::string& before, const std::string& how, const std::string& text, const std::string& after) {
    return shell(before + " \"$0\" \"$@\" " + after, launch, script({"-n", "2", "--output", how}, text));
  };
  for (const char* how : {"prefix", "merge"}) {
    INFO(how);
    CHECK(launched("", how, "echo line || exit 1", ">/dev/full").code == 1);
    CHECK(launched("", how, "exit 7", ">/dev/full").code == 7);
  }
  CHECK(launched("", "prefix", "echo line", ">/dev/full").err == "tern-launch: the output could not be written: No space left on device\n");
  check_refused(launched("TMPDIR=/nonexistent", "merge", "true", ""),
                "tern-launch: /nonexistent: could not be used for temporary files (set TMPDIR to another directory): ", "tern-launch");
  check_refused(launched("TMPDIR=/proc", "merge", "true", ""), "tern-launch: /proc: could not be used for temporary files ", "tern-launch");
}

TEST_CASE("tern-launch --grace (one that fails is named, and the others are ended, if need be by force)") {
  Result result;
  CHECK(seconds_of([&] { result = run(launch, script({"-n", "3"}, "if [ $RANK = 1 ]; then exit 7; fi; sleep 30")); }) < 5);
  CHECK(result.code == 7);
  CHECK(contains(result.err, "tern-launch: rank 1 (process "));
  CHECK(contains(result.err, ") ended with exit code 7: the others are asked to end\n"));
  CHECK(sorted_lines(result.err).size() == 1);

  const TempDirectory directory;
  const std::string ready = (directory / "ready").string();
  const std::string deaf = "if [ $RANK = 0 ]; then until [ -e " + ready + " ]; do sleep 0.01; done; kill -9 $$; fi; trap '' TERM; touch " +
                           ready + "; sleep 30; sleep 30";
  const double took = seconds_of([&] { result = run(launch, script({"-n", "2", "--grace", "0.5"}, deaf)); });
  CHECK((took > 0.4 && took < 5));
  CHECK(result.code == 137);
  CHECK(contains(result.err, ") died by signal 9 (Killed)"));
  check_refused(run(launch, script({"-n", "2", "--grace", "-1"}, "true")), "--grace: ", "tern-launch");
}

TEST_CASE("tern-launch passes a signal on to every process, once, and waits for them") {
  const TempDirectory directory;
  const std::string text =
      "trap 'echo $RANK stopped; exit 0' TERM; echo $RANK ready >> " + (directory / "ready").string() + "; while true; do sleep 0.05; done";
  const std::string out = directory / "out", err = directory / "err";
  const pid_t pid = start(launch, script({"-n", "2"}, text), "/dev/null", out, err);
  CHECK(wait_until([&] { return count_lines(slurp(directory / "ready")) == 2; }));
  ::kill(pid, SIGTERM);
  CHECK(finish(pid) == 128 + SIGTERM);
  CHECK(sorted_lines(slurp(out)) == std::vector<std::string>{"0 stopped", "1 stopped"});
  CHECK_FALSE(contains(slurp(err), "tern-launch: "));
}

TEST_CASE("tern-launch names a process that fails while all are asked to stop, and ends with its code") {
  for (const auto& [end, code, how] :
       {std::tuple{"kill -ABRT $$", 128 + SIGABRT, ") died by signal 6 (Aborted)"}, std::tuple{"exit 7", 7, ") ended with exit code 7"}}) {
    const TempDirectory directory;
    const std::string text = "trap 'if [ $RANK = 1 ]; then " + std::string(end) + "; fi; exit 143' TERM; echo >> " +
                             (directory / "ready").string() + "; while true; do sleep 0.05; done";
    const std::string out = directory / "out", err = directory / "err";
    const pid_t pid = start(launch, script({"-n", "3"}, text), "/dev/null", out, err);
    CHECK(wait_until([&] { return count_lines(slurp(directory / "ready")) == 3; }));
    ::kill(pid, SIGTERM);
    CHECK(finish(pid) == code);
    CHECK(contains(slurp(err), "tern-launch: rank 1 (process "));
    CHECK(contains(slurp(err), how));
    // The shells of a system may have words of their own for a process that ends by a signal.
    const std::string said = slurp(err);
    CHECK(said.find("tern-launch: ") == said.rfind("tern-launch: "));
  }
}

TEST_CASE("tern-launch that is killed leaves no process behind") {
  const TempDirectory directory;
  const std::string out = directory / "out", err = directory / "err";
  // It cannot remove its temporary directory, which stands in this test's for that reason.
  Arguments command = script({"-n", "2"}, "echo $$ >> " + (directory / "pids").string() + "; exec sleep 30");
  command.insert(command.begin(), {"TMPDIR=" + directory.path().string(), launch});
  const pid_t pid = start("/usr/bin/env", command, "/dev/null", out, err);
  CHECK(wait_until([&] { return count_lines(slurp(directory / "pids")) == 2; }));
  ::kill(pid, SIGKILL);
  finish(pid);
  for (const std::string& line : sorted_lines(slurp(directory / "pids"))) {
    const bool is_gone = wait_until([&] { return ::kill(std::stoi(line), 0) != 0 || contains(slurp("/proc/" + line + "/stat"), ") Z "); });
    CHECK(is_gone);
  }
}
