// Lines of questions in HellaSwag's form, and faults in them.
#include "text/multiple_choice.h"

#include "catch.h"
#include "support.h"
#include "text/data_error.h"

using namespace tern::text;
using namespace tern::text::test;

TEST_CASE("a line has a beginning, endings and the number of the right one", "[text]") {
  for (const char* label : {"1", "\"1\""}) {
    const std::string line = std::string(R"({"ind": 4, "ctx": "A dog", "endings": ["runs.", "flies."], "label": )") + label + "}";
    const MultipleChoice choice = read_multiple_choice(line, "f:1");
    CHECK(choice.context == "A dog");
    CHECK(choice.endings == std::vector<std::string>{"runs.", "flies."});
    CHECK(choice.label == 1);
  }
}

TEST_CASE("a line of another form is one message with its place", "[text]") {
  const auto fault = [](const std::string& line) { return message_of<DataError>([&] { (void)read_multiple_choice(line, "f:7"); }); };
  for (const char* line : {"{", "{} x", "\xff", "{\"ctx\": \"a\" \"b\"}"}) CHECK(fault(line).starts_with("f:7"));
  for (const char* line : {"[]", "{}", R"({"ctx": 3, "endings": ["a", "b"], "label": 0})"})
    CHECK(fault(line) == "f:7: expected an object with the text \"ctx\"");
  for (const char* line :
       {R"({"ctx": "a", "label": 0})", R"({"ctx": "a", "endings": "ab", "label": 0})", R"({"ctx": "a", "endings": ["b"], "label": 0})"})
    CHECK(fault(line) == "f:7: expected \"endings\", a list of two texts or more");
  for (const char* ending : {"3", "\"\"", "\" \""})
    CHECK(fault(std::string(R"({"ctx": "a", "endings": ["b", )") + ending + R"(], "label": 0})") ==
          "f:7: expected \"endings\" that are texts and not blank");
  for (const char* label : {"2", "-1", "1.0", "\"\"", "\"one\"", "null", "99999999999999999999", "\"99999999999999999999\"", "[0]", "true"})
    CHECK(fault(std::string(R"({"ctx": "a", "endings": ["b", "c"], "label": )") + label + "}") ==
          "f:7: expected \"label\", the number of an ending from 0");
  CHECK(fault(R"({"ctx": "a", "endings": ["b", "c"]})") == "f:7: expected \"label\", the number of an ending from 0");
}
