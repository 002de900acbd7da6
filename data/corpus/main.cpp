#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string_view>

#include "corpus.h"

namespace {

using namespace tern::corpus;
namespace fs = std::filesystem;

constexpr const char* usage = "usage: tern-make-corpus DIR | --check DIR (writes or verifies train, valid and test)";

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path.string());
}

template <class Visit>
void each_file(const Corpus& corpus, const fs::path& dir, Visit visit) {
  for (const Split& split : splits) {
    const std::vector<Example>& examples = corpus.*split.examples;
    visit(dir / (std::string(split.name) + ".de"), file_text(examples, &Example::german));
    visit(dir / (std::string(split.name) + ".en"), file_text(examples, &Example::english));
  }
}

void print_counts(const Corpus& corpus) {
  for (const Split& split : splits) {
    std::size_t german = 0, english = 0;
    std::set<std::string> combinations;
    for (const Example& example : corpus.*split.examples) {
      german += count_words(example.german);
      english += count_words(example.english);
      for (const Combination& combination : example.combinations) {
        if (held_out(combination)) combinations.insert(combination.text);
      }
    }
    std::printf("%-5s %5zu pairs %6zu German words %6zu English words %4zu held-out combinations\n", split.name,
                (corpus.*split.examples).size(), german, english, combinations.size());
  }
  std::set<std::string> german_units, english_units;
  for (const Example& example : corpus.train) {
    german_units.insert(example.german_units.begin(), example.german_units.end());
    english_units.insert(example.english_units.begin(), example.english_units.end());
  }
  std::printf("train knows %zu German and %zu English words and parts of compounds\n", german_units.size(), english_units.size());
}

int run(bool check, const fs::path& dir) {
  const Corpus corpus = make_corpus();
  const std::vector<std::string> found = faults(corpus);
  std::size_t failures = found.size();
  for (const std::string& fault : found) std::fprintf(stderr, "tern-make-corpus: %s\n", fault.c_str());
  if (check) {
    each_file(corpus, dir, [&failures](const fs::path& path, const std::string& text) {
      if (read_file(path) == text) return;
      ++failures;
      std::fprintf(stderr, "tern-make-corpus: %s differs from what this program writes\n", path.string().c_str());
    });
  } else if (failures == 0) {
    fs::create_directories(dir);
    each_file(corpus, dir, write_file);
  }
  print_counts(corpus);
  std::printf("%s: %zu faults\n", check ? "checked" : failures == 0 ? "written" : "not written", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (argc == 2 && (first == "--help" || first == "-h")) {
    std::puts(usage);
    return 0;
  }
  const bool check = first == "--check";
  const bool wrong_option = !check && first.starts_with("-");
  if (argc != (check ? 3 : 2) || first.empty() || wrong_option) {
    std::fprintf(stderr, "%s\n", usage);
    return 2;
  }
  try {
    return run(check, argv[check ? 2 : 1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tern-make-corpus: %s\n", error.what());
    return 1;
  }
}
