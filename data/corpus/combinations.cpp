#include "composer.h"

namespace tern::corpus {
namespace {

void collect(const Clause& clause, std::vector<std::string>& found);

void collect(const NounPhrase& phrase, std::vector<std::string>& found) {
  if (phrase.noun == nullptr) return;
  if (phrase.adjective != nullptr)
    found.push_back(std::string("adjective ") + phrase.adjective->german + " " + phrase.noun->german);
  if (phrase.modifier != nullptr)
    found.push_back(std::string("compound ") + phrase.modifier->german + " " + phrase.noun->german);
  if (phrase.of) collect(*phrase.of, found);
  if (phrase.relative) collect(*phrase.relative, found);
}

void collect(const Clause& clause, std::vector<std::string>& found) {
  collect(clause.subject, found);
  for (const std::optional<NounPhrase>& part : {clause.recipient, clause.object, clause.than}) {
    if (part) collect(*part, found);
  }
  if (clause.place) collect(clause.place->noun, found);
  if (clause.object && clause.object->noun != nullptr) {
    found.push_back("object " + full_infinitive(*clause.verb) + " " + clause.object->noun->german);
  }
  if (clause.predicate != nullptr && clause.subject.noun != nullptr) {
    found.push_back(std::string("adjective ") + clause.predicate->german + " " + clause.subject.noun->german);
  }
  if (clause.complement) collect(*clause.complement->clause, found);
}

}  // namespace

std::vector<std::string> combinations(const Sentence& sentence) {
  std::vector<std::string> found;
  Clause clause = sentence.clause;
  if (sentence.mood == Mood::what) clause.object.reset();
  if (sentence.mood == Mood::where || sentence.mood == Mood::where_to) clause.place.reset();
  if (sentence.mood == Mood::who) clause.subject = {};
  collect(clause, found);
  if (sentence.second) collect(*sentence.second, found);
  return found;
}

}  // namespace tern::corpus
