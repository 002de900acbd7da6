// An expression of Split, and behind the first line break a text: what splits covers the text, and what does not is refused in moments.
#include <chrono>
#include <stdexcept>

#include "fuzz.h"
#include "text/data_error.h"
#include "text/nfc.h"
#include "text/pretokenize.h"

using namespace tern::text;
using tern::fuzz::require;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input = tern::fuzz::text_of(data, size), expression = input.substr(0, input.find('\n'));
  const std::string_view text = input.substr(std::min(input.size(), expression.size() + 1));
  const auto begin = std::chrono::steady_clock::now();
  try {
    const Pattern pattern = split_pattern(expression);
    std::string all;
    PreTokenizer(pattern).for_each(text, [&](std::string_view word) {
      require(!word.empty(), "a word has text");
      all += word;
    });
    require(all == text, "the words are the text");
  } catch (const std::invalid_argument& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos, "a refusal is one line");
  } catch (const DataError& error) {
    require(std::string_view(error.what()).starts_with("expected a Split expression"), "a bound is named");
  }
  require(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20), "it ends in moments");
  const std::string composed = nfc(text);
  require(nfc(composed) == composed, "NFC is NFC");
  require(!is_surely_nfc(text) || composed == text, "what is surely NFC stays");
  return 0;
}
