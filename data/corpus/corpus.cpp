#include "corpus.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>

#include "random.h"

namespace tern::corpus {
namespace {

using Units = std::unordered_set<std::string>;

std::string without_marks(std::string text) {
  std::erase(text, '+');
  return text;
}

std::vector<std::string> units(const std::string& marked) {
  std::vector<std::string> found(1);
  for (const char letter : marked) {
    if (std::string_view(" +,.?!").find(letter) == std::string_view::npos) {
      found.back() += letter;
    } else if (!found.back().empty()) {
      found.emplace_back();
    }
  }
  if (found.back().empty()) found.pop_back();
  return found;
}

// Different held-out combinations in a sentence: none may stand in train, and in valid and test each sentence has one,
// so that an error there names the combination that the model could not put together.
std::size_t count_held_out(const Example& example) {
  std::unordered_set<std::string> found;
  for (const Combination& combination : example.combinations) {
    if (held_out(combination)) found.insert(combination.text);
  }
  return found.size();
}

bool fits(const Example& example) {
  const std::size_t german = count_words(example.german), english = count_words(example.english);
  return german >= min_words && german <= max_words && english >= min_words && english <= max_words && german + english <= max_pair_words;
}

// Draws sentences of the right length, each German sentence once, and sees to it that none has two translations.
class Source {
 public:
  explicit Source(std::uint64_t seed) : composer_(seed) {}

  Example next() {
    while (true) {
      const Sentence sentence = composer_.sentence();
      const std::string marked_german = german(sentence), marked_english = english(sentence);
      Example example{.german = without_marks(marked_german),
                      .english = without_marks(marked_english),
                      .german_units = units(marked_german),
                      .english_units = units(marked_english),
                      .combinations = combinations(sentence)};
      const auto [known, fresh] = translations_.emplace(example.german, example.english);
      if (known->second != example.english) {
        throw std::logic_error("[corpus] two translations of '" + example.german + "': '" + known->second + "' and '" + example.english +
                               "'");
      }
      if (fresh && fits(example)) return example;
    }
  }

 private:
  Composer composer_;
  std::unordered_map<std::string, std::string> translations_;
};

void add_units(const std::vector<Example>& examples, Units& german, Units& english) {
  for (const Example& example : examples) {
    german.insert(example.german_units.begin(), example.german_units.end());
    english.insert(example.english_units.begin(), example.english_units.end());
  }
}

bool covered(const std::vector<std::string>& words, const Units& known) {
  return std::all_of(words.begin(), words.end(), [&](const std::string& word) { return known.contains(word); });
}

bool valid_utf8(const std::string& text) {
  std::size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    // The corpus needs no letter beyond two bytes.
    const std::size_t more = lead < 0x80 ? 0 : lead >= 0xC2 && lead < 0xE0 ? 1 : 2;
    if (more == 2 || i + more >= text.size()) return false;
    if (more == 1 && (static_cast<unsigned char>(text[i + 1]) & 0xC0) != 0x80) return false;
    if (more == 0 && lead < 0x20) return false;
    i += more + 1;
  }
  return true;
}

}  // namespace

bool held_out(const Combination& combination) {
  const std::size_t one_in = combination.text.starts_with("compound") ? 8 : 12;
  return combination.choices >= 5 && hash(combination.text) % one_in == 0;
}

std::size_t count_words(const std::string& text) { return static_cast<std::size_t>(std::count(text.begin(), text.end(), ' ')) + 1; }

Corpus make_corpus() {
  Corpus corpus;
  Source source(20260);
  std::vector<Example> unseen;
  while (corpus.train.size() < train_count || unseen.size() < 4 * (valid_count + test_count)) {
    Example example = source.next();
    const std::size_t unseen_combinations = count_held_out(example);
    if (unseen_combinations == 1) {
      unseen.push_back(std::move(example));
    } else if (unseen_combinations == 0 && corpus.train.size() < train_count) {
      corpus.train.push_back(std::move(example));
    }
  }
  Units german_known, english_known, english_sentences;
  add_units(corpus.train, german_known, english_known);
  for (const Example& example : corpus.train) english_sentences.insert(example.english);
  for (Example& example : unseen) {
    if (!covered(example.german_units, german_known) || !covered(example.english_units, english_known)) continue;
    if (!english_sentences.insert(example.english).second) continue;
    std::vector<Example>& split = corpus.valid.size() < valid_count ? corpus.valid : corpus.test;
    if (split.size() < (&split == &corpus.valid ? valid_count : test_count)) split.push_back(std::move(example));
  }
  return corpus;
}

std::vector<std::string> faults(const Corpus& corpus) {
  std::vector<std::string> found;
  const auto expect = [&found](bool holds, const std::string& fault) {
    if (!holds) found.push_back(fault);
  };
  Units german_known, english_known, german_sentences, train_english;
  add_units(corpus.train, german_known, english_known);
  for (const Example& example : corpus.train) train_english.insert(example.english);
  for (const Split& split : splits) {
    const std::string name = split.name;
    const std::vector<Example>& examples = corpus.*split.examples;
    const bool training = split.examples == &Corpus::train;
    expect(examples.size() == split.count,
           name + " has " + std::to_string(examples.size()) + " pairs, expected " + std::to_string(split.count));
    for (const Example& example : examples) {
      const std::string where = name + " '" + example.german + "': ";
      expect(german_sentences.insert(example.german).second, where + "the German stands twice");
      expect(fits(example), where + "too short or too long");
      expect(valid_utf8(example.german) && valid_utf8(example.english), where + "not plain UTF-8 letters");
      expect(count_held_out(example) == (training ? 0u : 1u),
             where + (training ? "uses a held-out combination" : "does not use one held-out combination"));
      if (training) continue;
      expect(!train_english.contains(example.english), where + "its English stands in train");
      expect(covered(example.german_units, german_known), where + "a German word is unknown to train");
      expect(covered(example.english_units, english_known), where + "an English word is unknown to train");
    }
  }
  return found;
}

std::string file_text(const std::vector<Example>& examples, std::string Example::* side) {
  std::string text;
  for (const Example& example : examples) text += example.*side + '\n';
  return text;
}

}  // namespace tern::corpus
