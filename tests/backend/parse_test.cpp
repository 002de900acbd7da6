// Numbers that a whole text is.
#include "backend/parse.h"

#include <cstdint>

#include "catch.h"

namespace tern {

using backend::parse_number;

TEST_CASE("A number is the whole text") {
  CHECK(parse_number<std::int64_t>("-12") == -12);
  CHECK(parse_number<double>("1.5e3") == 1500);
  for (const char* text : {"", " 12", "12 ", "+12", "12a", "0x10", "1.5"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_number<std::int64_t>(text));
  }
}

TEST_CASE("A number that its type cannot hold is none") {
  CHECK(parse_number<std::uint16_t>("65535") == 65535);
  CHECK_FALSE(parse_number<std::uint16_t>("65536"));
  CHECK_FALSE(parse_number<std::uint64_t>("-1"));
}

}  // namespace tern
