#include "io/event_file.h"

#include <sys/resource.h>

#include <csignal>

#include "catch.h"
#include "event_records.h"
#include "io/files.h"
#include "support.h"

using namespace tern::io;
using namespace tern::io::test;
using tern::test::Field, tern::test::field, tern::test::fields, tern::test::number, tern::test::records;

namespace {

/// Bytes by their hexadecimal digits; spaces only divide.
std::string hex(std::string_view digits) {
  std::string bytes;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] == ' ') continue;
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
    ++i;
  }
  return bytes;
}

EventFile::Clock at(double seconds) {
  return [seconds] { return seconds; };
}

}  // namespace

TEST_CASE("CRC-32C has the values of RFC 3720") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xE3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8A9136AA);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62A8AB43);
}

TEST_CASE("An event file has the bytes that were written out by hand") {
  const TempDirectory directory;
  const auto path = directory / "events.out.tfevents";
  {
    EventFile file(path, at(1.5));
    CHECK_FALSE(file.goes_on());
    file.scalars(300, {{"loss", 2.5}});
  }
  // wall_time 1.5; file_version. The header is the one that every such file begins with.
  const std::string version = hex("09 000000000000f83f  1a 0d") + "brain.Event:2";
  // wall_time; step 300 = 0b10'0101100; summary { value { tag "loss", simple_value 2.5 } }.
  const std::string scalar = hex("09 000000000000f83f  10 ac02  2a 0d 0a 0b  0a 04") + "loss" + hex("15 00002040");
  const std::string bytes = slurp(path);
  CHECK(bytes.substr(0, 12) == hex("18 00 00 00 00 00 00 00 a3 7f 4b 22"));
  CHECK(records(bytes) == std::vector<std::string>{version, scalar});
}

TEST_CASE("An event file holds scalars, texts and sessions that a reader finds") {
  const TempDirectory directory;
  const auto path = directory / "events.out.tfevents";
  const std::string long_text(300, 'x');
  {
    EventFile file(path, at(1'700'000'000.25));
    file.scalars(7, {{"train/loss", 0.1}, {"memory", 12345678}});
    file.text(8, "samples", "Ein Hund.\n\n" + long_text);
  }
  {
    EventFile file(path, at(1'700'000'001));
    CHECK(file.goes_on());
    file.begin_session(5);
  }
  const std::vector<std::string> events = records(slurp(path));
  REQUIRE(events.size() == 4);  // the version stands there once
  CHECK(number<double>(field(events[1], 1).bytes) == 1'700'000'000.25);
  CHECK(field(events[1], 2).integer == 7);
  const std::vector<Field> values = fields(field(events[1], 5).bytes);
  REQUIRE(values.size() == 2);
  CHECK(field(values[0].bytes, 1).bytes == "train/loss");
  CHECK(number<float>(field(values[0].bytes, 2).bytes) == 0.1F);
  CHECK(field(values[1].bytes, 1).bytes == "memory");
  CHECK(number<float>(field(values[1].bytes, 2).bytes) == 12345678.0F);

  CHECK(field(events[2], 2).integer == 8);
  const std::string text = field(field(events[2], 5).bytes, 1).bytes, tensor = field(text, 8).bytes, metadata = field(text, 9).bytes;
  CHECK(field(text, 1).bytes == "samples");
  CHECK(field(tensor, 1).integer == 7);  // DT_STRING
  CHECK(field(field(field(tensor, 2).bytes, 2).bytes, 1).integer == 1);
  CHECK(field(tensor, 8).bytes == "Ein Hund.\n\n" + long_text);
  CHECK(field(field(metadata, 1).bytes, 1).bytes == "text");
  CHECK(field(metadata, 4).integer == 2);  // DATA_CLASS_TENSOR

  CHECK(field(events[3], 2).integer == 5);
  CHECK(field(field(events[3], 7).bytes, 1).integer == 1);  // START
}

TEST_CASE("An event file goes on behind its last whole record") {
  const TempDirectory directory;
  const auto path = directory / "events.out.tfevents";
  {
    EventFile file(path);
    file.scalars(1, {{"loss", 3}});
  }
  const std::string whole = slurp(path);
  {
    EventFile file(path);
    file.scalars(2, {{"loss", 2}});
  }
  const std::string more = slurp(path);
  REQUIRE(records(more).size() == 3);
  // Whatever a killed process has left of the last record, or of the first.
  for (std::size_t length = 0; length < more.size(); ++length) {
    spill(path, more.substr(0, length));
    EventFile file(path);
    file.begin_session(2);
    file.flush();
    INFO("cut to " << length << " of " << more.size() << " bytes");
    CHECK(records(slurp(path)).size() == (length < whole.size() ? 2 : 3));
  }
  std::string damaged = more;
  damaged[damaged.size() - 6] ^= 1;
  spill(path, damaged);
  EventFile file(path);
  CHECK(slurp(path) == whole);
}

TEST_CASE("An event file that goes on is a new one") {
  const TempDirectory directory;
  const auto path = directory / "events.out.tfevents", copy = directory / "copy";
  EventFile(path).scalars(1, {{"loss", 3}});
  const std::string whole = slurp(path);
  spill(path, whole + "torn");
  std::filesystem::create_hard_link(path, copy);  // as `cp -al` copies a run
  EventFile file(path);
  CHECK(slurp(path) == whole);
  CHECK(slurp(copy) == whole + "torn");
  file.scalars(2, {{"loss", 2}});
  file.flush();
  CHECK(records(slurp(path)).size() == 3);
  CHECK(slurp(copy) == whole + "torn");
}

TEST_CASE("An event file leaves what is none as it is") {
  const TempDirectory directory;
  const auto path = directory / "events.out.tfevents";
  for (const std::string& other : {std::string("a text"), std::string(100, 'x'), hex("18 00 00 00 00 00 00 00 a3 7f 4b 23")}) {
    spill(path, other);
    CHECK(file_error([&] { EventFile file(path); }).find("holds no events of version brain.Event:2") != std::string::npos);
    CHECK(slurp(path) == other);
  }
  CHECK(file_error([&] { EventFile file(directory / "no" / "events"); }).find("could not be opened") != std::string::npos);
}

TEST_CASE("An event file keeps what a full disk does not take") {
  const TempDirectory directory;
  const auto path = directory / "events.out.tfevents";
  EventFile file(path);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit limit = before;
  limit.rlim_cur = 60;  // the version, and half a record
  ::setrlimit(RLIMIT_FSIZE, &limit);
  file.scalars(1, {{"loss", 1}});
  const std::string fault = file_error([&] { file.flush(); });
  const std::size_t kept = records(slurp(path)).size();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  CHECK(fault.find("could not be written") != std::string::npos);
  CHECK(kept == 1);
  file.scalars(2, {{"loss", 2}});
  file.flush();
  CHECK(records(slurp(path)).size() == 3);
}

TEST_CASE("An event file hands events over in time, and not each by itself") {
  const TempDirectory directory;
  const auto path = directory / "events.out.tfevents";
  double now = 100;
  EventFile file(path, [&now] { return now; });
  file.scalars(1, {{"loss", 1}});
  CHECK(records(slurp(path)).size() == 1);
  now += 11;
  file.scalars(2, {{"loss", 2}});
  CHECK(records(slurp(path)).size() == 3);
  file.text(3, "long", std::string(70'000, 'x'));
  CHECK(records(slurp(path)).size() == 4);
}
