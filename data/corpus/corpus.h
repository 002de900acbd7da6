#pragma once

#include <array>
#include <string>
#include <vector>

#include "composer.h"

namespace tern::corpus {

struct Example {
  std::string german, english;  // as written
  // The units a reader of the training set must have met: words, and the parts of compounds.
  std::vector<std::string> german_units, english_units;
  std::vector<Combination> combinations;
};

constexpr std::size_t train_count = 20000, valid_count = 300, test_count = 300;
constexpr std::size_t min_words = 4, max_words = 14, max_pair_words = 39;

struct Corpus {
  std::vector<Example> train, valid, test;
};

struct Split {
  const char* name;
  std::vector<Example> Corpus::* examples;
  std::size_t count;
};
constexpr std::array<Split, 3> splits = {
    {{"train", &Corpus::train, train_count}, {"valid", &Corpus::valid, valid_count}, {"test", &Corpus::test, test_count}}};

// Whether a combination is kept out of the training set: one in twelve, of compounds one in eight, chosen by a hash.
// Words with few partners lose none, because turning a lamp off is not learnt from turning it on.
bool held_out(const Combination& combination);

// The whole corpus, the same on every machine. Throws std::logic_error if one German sentence got two translations.
Corpus make_corpus();

// One line for each property that the corpus lacks; empty when all is well.
std::vector<std::string> faults(const Corpus& corpus);

// One side of a split as its file holds it.
std::string file_text(const std::vector<Example>& examples, std::string Example::* side);

std::size_t count_words(const std::string& text);

}  // namespace tern::corpus
