#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "random.h"
#include "syntax.h"

namespace tern::corpus {

// Draws meanings that make sense: the kinds in the lexicon decide who does what to what, and where. The parts of a
// clause are drawn in phrases.cpp, clauses in clauses.cpp, whole sentences in sentences.cpp.
class Composer {
 public:
  explicit Composer(std::uint64_t seed) : random_(seed) {}
  Sentence sentence();

 private:
  using Spots = std::initializer_list<std::pair<const char*, Kinds>>;

  const Noun& draw_noun(Kinds kinds);
  const Verb& draw_verb(Frame frame, std::initializer_list<const char*> only = {});
  const Pair& draw_pair(std::span<const Pair> pairs) { return random_.pick(pairs); }
  Person draw_owner(const NounPhrase& binder);
  void adorn(NounPhrase& phrase, int adjective_percent, int modifier_percent);
  NounPhrase person(Kinds kinds);
  NounPhrase person_noun(Kinds kinds, bool may_be_quantified);
  NounPhrase subject(Kinds kinds);
  NounPhrase thing(const Noun& noun, const NounPhrase& binder);
  NounPhrase object(Kinds kinds, const NounPhrase& binder, Case governed);
  PrepositionPhrase spot(std::span<const Preposition> rows, Spots spots, const Noun* other);
  PrepositionPhrase location(const Verb& verb, const NounPhrase& who);
  PrepositionPhrase direction(const Verb& verb, const NounPhrase& who);
  PrepositionPhrase destination(const Noun& what);
  Wording draw_time(Tense tense);

  void draw_tense(Clause& clause);
  void draw_adverbials(Clause& clause, int time_percent);
  void draw_negation(Clause& clause, int percent);
  void draw_front(Clause& clause);

  Clause bare(const Verb& verb, const NounPhrase& subject);
  Clause bare(Frame frame);
  Clause event(Frame frame);
  Clause any_event();
  Clause predicate_of(const NounPhrase& subject, std::initializer_list<const char*> adjectives);
  Clause predicate();
  Clause weather(bool wet);
  NounPhrase referring(const NounPhrase& antecedent);
  NounPhrase antecedent();
  NounPhrase relative_person(bool as_subject);
  NounPhrase relative_thing(Kinds kinds);

  Sentence plain();
  Sentence question();
  Sentence request();
  Sentence existential();
  Sentence comparison();
  Sentence profession();
  Sentence reported();
  Sentence reason();
  Sentence concession();
  Sentence condition();
  Sentence purpose();
  Sentence attempt();
  Sentence relative();
  Sentence coordinated();

  Random random_;
};

// Two words that a sentence joins: an adjective and its noun, a verb and its object, the parts of a compound.
struct Combination {
  std::string text;     // "adjective alt Haus"
  std::size_t choices;  // how many other partners the lexicon offers, at least
};

std::vector<Combination> combinations(const Sentence& sentence);

}  // namespace tern::corpus
