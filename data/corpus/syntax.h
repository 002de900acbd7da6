#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lexicon.h"

// What a sentence means, before either language says it. german.cpp and english.cpp each say the same value; neither
// looks at the other, so the English is a function of the meaning and, as the writer checks, of the German.
namespace tern::corpus {

enum class Person : std::uint8_t { i, you, he, she, it, we, they };
enum class Determiner : std::uint8_t {
  none,
  definite,
  indefinite,  // none in the plural
  negative,    // kein
  possessive,
  demonstrative,
  every,
  which,
  many,
  number,
  named,  // Annas
};
enum class Tense : std::uint8_t { present, past, future, modal };
enum class Order : std::uint8_t { subordinate, infinitive };
// The constituent that a relative pronoun stands for.
enum class Gap : std::uint8_t { none, subject, object };
enum class Front : std::uint8_t { subject, time, object, place };

struct Clause;

struct Wording {
  std::string german, english;
};

struct NounPhrase {
  std::optional<Person> pronoun;
  const Name* name = nullptr;
  const Pair* city = nullptr;
  const Noun* noun = nullptr;
  const Modifier* modifier = nullptr;
  const Adjective* adjective = nullptr;
  Determiner determiner = Determiner::definite;
  Person owner = Person::i;      // possessive
  const Name* holder = nullptr;  // named
  const Pair* number = nullptr;
  bool plural = false;
  std::shared_ptr<const NounPhrase> of;  // genitive: the house of my sister
  std::shared_ptr<const Clause> relative;
  Gap relative_gap = Gap::none;
};

struct PrepositionPhrase {
  const Preposition* preposition = nullptr;
  NounPhrase noun;
  Pair fixed = {};  // instead: nach Hause, home
};

struct Complement {
  Pair conjunction = {};  // dass, that; empty before an infinitive
  bool first = false;     // Wenn es regnet, ...
  std::shared_ptr<const Clause> clause;
  Order order = Order::subordinate;
};

struct Clause {
  NounPhrase subject;
  const Verb* verb = nullptr;
  Tense tense = Tense::present;
  const Modal* modal = nullptr;
  bool negated = false;
  std::optional<NounPhrase> recipient;
  std::optional<NounPhrase> object;
  const Adjective* predicate = nullptr;
  std::optional<NounPhrase> than;  // makes the predicate a comparative
  const Noun* profession = nullptr;
  std::optional<PrepositionPhrase> place;
  std::optional<Wording> time;
  const Pair* frequency = nullptr;
  const Pair* manner = nullptr;
  Front front = Front::subject;
  std::optional<Complement> complement;
};

enum class Mood : std::uint8_t { statement, question, who, what, where, where_to, when, why, which, request };

struct Sentence {
  Mood mood = Mood::statement;
  Clause clause;
  // A second clause of equal rank.
  Pair conjunction = {};
  std::shared_ptr<const Clause> second;
};

NounPhrase pronoun(Person person);
Person agreement(const NounPhrase& phrase);
bool animate(const NounPhrase& phrase);
// The index into Persons.
std::size_t form_index(Person person);

// Words as they are written, but for a '+' between the parts of a compound.
std::string german(const Sentence& sentence);
std::string english(const Sentence& sentence);

// Joins words and punctuation: a comma clings to the word before it and vanishes before a closing mark.
std::string join(const std::vector<std::string>& words, char closing);

}  // namespace tern::corpus
