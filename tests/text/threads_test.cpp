// One tokenizer may be used by several threads at once.
#include <thread>

#include "catch.h"
#include "support.h"
#include "text/bpe.h"

using namespace tern::text;
using namespace tern::text::test;

TEST_CASE("encoding from several threads gives the same ids", "[text]") {
  using Ids = std::vector<std::int32_t>;
  const auto lines = fixture("bpe.json")["lines"].get<std::vector<std::string>>();
  const Tokenizer reference = Tokenizer::load(fixture_path("tokenizer.json")), shared = Tokenizer::load(fixture_path("tokenizer.json"));
  std::vector<Ids> alone;
  for (const std::string& line : lines) alone.push_back(reference.encode(line));
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < lines.size(); ++i) wrong[t] += shared.encode(lines[i]) != alone[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4, 0));
}
