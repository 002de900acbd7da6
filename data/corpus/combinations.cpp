#include <algorithm>

#include "composer.h"

namespace tern::corpus {
namespace {

using Found = std::vector<Combination>;

Combination described(const Adjective& adjective, const Noun& noun) {
  const auto choices = std::count_if(nouns().begin(), nouns().end(), [&](const Noun& other) { return goes_with(adjective, other); });
  return {std::string("adjective ") + adjective.german + " " + noun.german, static_cast<std::size_t>(choices)};
}

Combination compounded(const Modifier& modifier, const Noun& head) {
  const auto heads = std::count_if(nouns().begin(), nouns().end(), [&](const Noun& other) { return goes_with(modifier, other); });
  const auto firsts = std::count_if(modifiers().begin(), modifiers().end(), [&](const Modifier& other) { return goes_with(other, head); });
  return {std::string("compound ") + modifier.german + " " + head.german, static_cast<std::size_t>(std::min(heads, firsts))};
}

Combination governed(const Verb& verb, const Noun& object) {
  const auto choices = std::count_if(nouns().begin(), nouns().end(),
                                     [&](const Noun& other) { return (other.kinds & verb.object & ~(kind::mass | kind::weak)) != 0; });
  return {"object " + full_infinitive(verb) + " " + object.german, static_cast<std::size_t>(choices)};
}

void collect(const Clause& clause, Found& found);

void collect(const NounPhrase& phrase, Found& found) {
  if (phrase.noun == nullptr) return;
  if (phrase.adjective != nullptr) found.push_back(described(*phrase.adjective, *phrase.noun));
  if (phrase.modifier != nullptr) found.push_back(compounded(*phrase.modifier, *phrase.noun));
  if (phrase.of) collect(*phrase.of, found);
  if (phrase.relative) collect(*phrase.relative, found);
}

void collect(const Clause& clause, Found& found) {
  collect(clause.subject, found);
  for (const std::optional<NounPhrase>& part : {clause.recipient, clause.object, clause.than}) {
    if (part) collect(*part, found);
  }
  if (clause.place) collect(clause.place->noun, found);
  if (clause.object && clause.object->noun != nullptr) found.push_back(governed(*clause.verb, *clause.object->noun));
  if (clause.predicate != nullptr && clause.subject.noun != nullptr) {
    found.push_back(described(*clause.predicate, *clause.subject.noun));
  }
  if (clause.complement) collect(*clause.complement->clause, found);
}

}  // namespace

// What a question asks for is not said.
std::vector<Combination> combinations(const Sentence& sentence) {
  Found found;
  Clause clause = sentence.clause;
  if (sentence.mood == Mood::what) clause.object.reset();
  if (sentence.mood == Mood::where || sentence.mood == Mood::where_to) clause.place.reset();
  if (sentence.mood == Mood::who) clause.subject = {};
  collect(clause, found);
  if (sentence.second) collect(*sentence.second, found);
  return found;
}

}  // namespace tern::corpus
