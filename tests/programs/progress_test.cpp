// The status line of trainings.
#include <poll.h>
#include <sys/ioctl.h>

#include <cstdlib>

#include "support.h"
#include "trainer/terminal.h"

using namespace tern::train;
using namespace tern::programs::test;

namespace {

const Progress half{.epoch = 3, .epochs = 20, .update = 540, .updates = 1200, .seconds = 32, .loss = 2.345, .items_per_second = 12345.4};

/// The stderr of a program, where that is a terminal of so many columns, until it has drawn `drawings` times; then it is ended.
std::string terminal_output(const std::string& program, const Arguments& arguments, unsigned short columns, std::ptrdiff_t drawings) {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(master >= 0);
  REQUIRE(::grantpt(master) == 0);
  REQUIRE(::unlockpt(master) == 0);
  const std::string terminal = ::ptsname(master);
  const int slave = ::open(terminal.c_str(), O_RDWR | O_NOCTTY);
  winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  REQUIRE(::ioctl(slave, TIOCSWINSZ, &size) == 0);
  const pid_t child = start(program, arguments, "/dev/null", "/dev/null", terminal);
  ::close(slave);
  std::string text;
  char part[4096];
  pollfd ready{master, POLLIN, 0};
  while (std::count(text.begin(), text.end(), '\r') < drawings && ::poll(&ready, 1, 20'000) > 0) {
    const ssize_t got = ::read(master, part, sizeof part);
    if (got <= 0) break;  // the terminal hangs up at the program's end
    text.append(part, static_cast<std::size_t>(got));
  }
  ::kill(child, SIGKILL);
  finish(child);
  ::close(master);
  return text;
}

}  // namespace

TEST_CASE("A status line shows how far a training is, and fits the terminal") {
  CHECK(progress_text(half, 0) == "epoch 3/20  45% 540/1200 [00:32<00:39, 16.9 updates/s] loss 2.345  12,345 tokens/s");
  CHECK(progress_text(half, 101) == "epoch 3/20  45%|#######         | 540/1200 [00:32<00:39, 16.9 updates/s] loss 2.345  12,345 tokens/s");
  for (std::size_t columns = 1; columns < 200; ++columns) CHECK(progress_text(half, columns).size() < columns);
  CHECK(contains(progress_text(half, 200), "|" + std::string(18, '#') + std::string(22, ' ') + "|"));
  CHECK_FALSE(contains(progress_text(half, 60), "|"));
}

TEST_CASE("The time left follows from this session's updates alone") {
  Progress resumed = half;
  resumed.first_update = 500;
  CHECK(contains(progress_text(resumed, 0), "[00:32<08:48, 1.2 updates/s]"));  // 40 updates in 32 s, and 660 are left
  resumed.update = 500;
  CHECK(contains(progress_text(resumed, 0), "[00:32<?, ? updates/s]"));
  resumed.update = 504;
  resumed.may_end_early = true;
  CHECK(contains(progress_text(resumed, 0), "<at most 1:32:48, 8.00 s/update]"));
  CHECK(contains(progress_text({.update = 7, .updates = 7, .seconds = 7}, 0), "100% 7/7 [00:07<00:00, 1.0 updates/s]"));
}

TEST_CASE("Numbers of a status line are grouped, times are a clock's") {
  CHECK(grouped(0) == "0");
  CHECK(grouped(999.4) == "999");
  CHECK(grouped(1000) == "1,000");
  CHECK(grouped(123456) == "123,456");
  CHECK(grouped(1234567.8) == "1,234,568");
  CHECK(grouped(-1234) == "-1,234");
  CHECK(clock_time(0) == "00:00");
  CHECK(clock_time(59.7) == "01:00");
  CHECK(clock_time(3725) == "1:02:05");
  CHECK(clock_time(360000) == "100:00:00");
}

TEST_CASE("A training draws its status on a terminal, and none into a file") {
  const TempDirectory directory;
  const Arguments arguments = words_of("train --out " + (directory / "run").string() +
                                       " --threads 1 --device cpu --preset quick --pairs 6 "
                                       "--valid-examples 20 --test-examples 20 --layers 1 --width 16 --heads 2 --batch-size 4");
  const Arguments endless = with(arguments, {"--epochs", "100", "--train-examples", "100000"}),
                  brief = with(arguments, {"--epochs", "1", "--train-examples", "20"});
  const std::string shown = terminal_output(recall, endless, 100, 3);
  CHECK(shown.starts_with("\repoch 1/100   0%|"));
  CHECK(contains(shown, "/2500000 [00:0"));
  // Each drawing begins where the line does, and stays on it.
  std::istringstream drawings(shown);
  for (std::string drawing; std::getline(drawings, drawing, '\r');) CHECK(drawing.size() < 100);
  fs::remove_all(directory / "run");
  CHECK(done(run(recall, brief)).err.empty());
}
