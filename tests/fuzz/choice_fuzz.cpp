// A line of a question with endings: read, or one message.
#include "fuzz.h"
#include "text/data_error.h"
#include "text/multiple_choice.h"

using namespace tern::text;
using tern::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const MultipleChoice choice = read_multiple_choice(tern::fuzz::text_of(data, size), "f:1");
    require(choice.endings.size() >= 2 && choice.label < choice.endings.size(), "the label is an ending's");
    for (const std::string& ending : choice.endings) require(!ending.empty(), "endings are not empty");
  } catch (const DataError& error) {
    tern::fuzz::require_message(error.what());
  }
  return 0;
}
