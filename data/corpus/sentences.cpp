#include <algorithm>

#include "composer.h"

namespace tern::corpus {
namespace {

using namespace kind;

bool is_plural(Person person) { return person == Person::we || person == Person::they; }

// Sie at the start of a sentence, or Ihren, could also be the polite form of address.
bool starts_like_polite_form(const Clause& clause) {
  if (clause.complement && clause.complement->first) return false;
  const auto third_owner = [](const NounPhrase& phrase) {
    return phrase.determiner == Determiner::possessive && (phrase.owner == Person::she || phrase.owner == Person::they);
  };
  switch (clause.front) {
    case Front::subject:
      if (clause.verb->frame == Frame::existential) return false;
      return clause.subject.pronoun == Person::they || third_owner(clause.subject);
    case Front::object: return third_owner(*clause.object);
    case Front::place: return third_owner(clause.place->noun);
    case Front::time: return false;
  }
  return false;
}

// The mother who looks for the mother.
bool repeats_noun(const Clause& clause) {
  std::vector<const Noun*> seen;
  const auto repeats = [&seen](const NounPhrase* phrase) {
    for (; phrase != nullptr; phrase = phrase->of.get()) {
      if (phrase->noun == nullptr) continue;
      if (std::find(seen.begin(), seen.end(), phrase->noun) != seen.end()) return true;
      seen.push_back(phrase->noun);
    }
    return false;
  };
  return repeats(&clause.subject) || (clause.recipient && repeats(&*clause.recipient)) || (clause.object && repeats(&*clause.object)) ||
         (clause.place && repeats(&clause.place->noun)) || (clause.complement && repeats_noun(*clause.complement->clause));
}

// Chairs with tables, people with people.
bool comparable(const NounPhrase& one, const NounPhrase& other) {
  if (animate(one) || animate(other)) return animate(one) && animate(other);
  constexpr Kinds sorts = animal | food | text | clothing | furniture | container | switched | vehicle | building;
  return (one.noun->kinds & other.noun->kinds & sorts) != 0;
}

std::shared_ptr<const Clause> share(const Clause& clause) { return std::make_shared<const Clause>(clause); }

}  // namespace

Sentence Composer::plain() {
  Sentence sentence;
  sentence.clause = random_.chance(12) ? predicate() : any_event();
  draw_front(sentence.clause);
  return sentence;
}

Sentence Composer::question() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  const auto fresh = [this](Frame frame) {
    Clause drawn = bare(frame);
    draw_tense(drawn);
    if (!is_lasting(*drawn.verb) && random_.chance(20)) drawn.time = draw_time(drawn.tense);
    return drawn;
  };
  switch (random_.below(12)) {
    case 0: {
      sentence.mood = Mood::who;
      const Verb& chosen = draw_verb(random_.chance(70) ? Frame::transitive : Frame::ditransitive);
      if ((chosen.subject & kind::person) == 0) return question();
      clause = bare(chosen, pronoun(Person::he));
      draw_tense(clause);
      break;
    }
    case 1:
      sentence.mood = Mood::what;
      do {
        clause = fresh(Frame::transitive);
      } while ((clause.verb->object & (kind::person | animal)) != 0);
      break;
    case 2:
      sentence.mood = Mood::where;
      clause = fresh(random_.chance(50) ? Frame::position : Frame::intransitive);
      if (!clause.place) clause.place = location(*clause.verb, clause.subject);
      break;
    case 3: {
      sentence.mood = Mood::where_to;
      // One draw a statement: the order of a call's arguments is the compiler's choice.
      const Verb& chosen = draw_verb(Frame::motion, {"gehen", "laufen"});
      clause = bare(chosen, subject(kind::person));
      draw_tense(clause);
      break;
    }
    case 4:
      sentence.mood = Mood::when;
      clause = any_event();
      clause.time.reset();
      break;
    case 5:
      sentence.mood = Mood::why;
      clause = any_event();
      break;
    case 6:
      sentence.mood = Mood::which;
      do {
        clause = fresh(Frame::transitive);
      } while (!clause.object->noun || clause.object->of || clause.object->noun->kinds & (mass | kind::person));
      clause.object->determiner = Determiner::which;
      break;
    case 7:
      sentence.mood = Mood::question;
      clause = predicate();
      break;
    default:
      sentence.mood = Mood::question;
      clause = any_event();
      break;
  }
  clause.front = Front::subject;
  clause.frequency = nullptr;
  if (clause.negated) {
    clause.negated = false;
    if (clause.object && clause.object->determiner == Determiner::negative) clause.object->determiner = Determiner::definite;
  }
  return sentence;
}

Sentence Composer::request() {
  Sentence sentence;
  sentence.mood = Mood::request;
  const NounPhrase you = pronoun(Person::you);
  const Verb* chosen = nullptr;
  switch (random_.below(5)) {
    case 0: chosen = &draw_verb(Frame::ditransitive, {"geben", "zeigen", "bringen"}); break;
    case 1: chosen = &draw_verb(Frame::placing); break;
    case 2: chosen = &draw_verb(Frame::dative, {"helfen", "zuhören"}); break;
    default:
      chosen = &draw_verb(Frame::transitive,
                          {"öffnen", "schließen", "lesen", "schreiben", "kaufen", "essen", "trinken", "suchen", "putzen", "füttern",
                           "anrufen", "abholen", "aufräumen", "einschalten", "ausschalten", "anziehen", "ausziehen", "besuchen"});
  }
  sentence.clause = bare(*chosen, you);
  // One opens the door at hand, but may be asked to buy a book.
  NounPhrase& object = *sentence.clause.object;
  const bool any = is_one_of(*chosen, {"kaufen", "essen", "trinken", "schreiben", "lesen", "geben", "bringen"});
  if (!any && object.noun != nullptr && object.determiner == Determiner::indefinite) {
    object.determiner = Determiner::definite;
  }
  return sentence;
}

Sentence Composer::existential() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  clause.verb = &verb("geben", Frame::existential);
  clause.subject = pronoun(Person::it);
  NounPhrase& what = clause.object.emplace();
  const std::size_t dice = random_.below(4);
  clause.place.emplace();
  if (dice == 0) {
    clause.place->preposition = &place("in");
    clause.place->noun.city = &draw_pair(cities());
    what.noun = &draw_noun(building | crossing);
  } else if (dice == 1) {
    clause.place = spot(places(), {{"in", room}}, nullptr);
    what.noun = &draw_noun(furniture | switched);
  } else if (dice == 2) {
    clause.place = spot(places(), {{"in", area}, {"hinter", building}, {"vor", building}}, nullptr);
    what.noun = &draw_noun(plant | flower | animal);
  } else {
    clause.place = spot(places(), {{"in", container}, {"auf", surface}}, nullptr);
    what.noun = &draw_noun(tool | text | food);
  }
  if (what.noun == clause.place->noun.noun) return existential();
  const bool uncountable = (what.noun->kinds & mass) != 0;
  what.determiner = uncountable ? Determiner::none : Determiner::indefinite;
  what.plural = !uncountable && random_.chance(45);
  if (what.plural && random_.chance(40)) {
    what.determiner = Determiner::number;
    what.number = &random_.pick(numbers());
  } else if (what.plural && random_.chance(50)) {
    what.determiner = Determiner::many;
  }
  adorn(what, 45, dice == 0 ? 0 : 40);  // no village church in Berlin
  if (random_.chance(22)) {
    sentence.mood = Mood::question;
  } else if (random_.chance(65)) {
    clause.front = Front::place;
  }
  return sentence;
}

Sentence Composer::comparison() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  clause.verb = &verb("sein", Frame::copula);
  do {
    clause.predicate = &random_.pick(adjectives());
  } while (*clause.predicate->comparative == '\0');
  NounPhrase than;
  do {
    clause.subject = subject(clause.predicate->kinds);
    than = subject(clause.predicate->kinds);
  } while (!comparable(clause.subject, than) || (than.pronoun && than.pronoun != Person::you) ||
           (clause.subject.noun && than.noun && clause.subject.noun == than.noun) ||
           (clause.subject.noun && (clause.subject.noun->kinds & mass) != 0) || (than.noun && (than.noun->kinds & mass) != 0));
  clause.subject.adjective = nullptr;
  than.adjective = nullptr;
  clause.than = than;
  if (random_.chance(20)) clause.tense = Tense::past;
  return sentence;
}

Sentence Composer::profession() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  do {
    clause.subject = random_.chance(50) ? person(kin) : person_noun(kin, false);
  } while (is_plural(agreement(clause.subject)));
  const Person who = agreement(clause.subject);
  do {
    clause.profession = &draw_noun(kind::profession);
  } while ((who == Person::he && clause.profession->gender == Gender::feminine) ||
           (who == Person::she && clause.profession->gender == Gender::masculine));
  if (random_.chance(50)) {
    clause.verb = &verb("sein", Frame::copula);
    if (random_.chance(30)) clause.tense = Tense::past;
  } else {
    clause.verb = &verb("werden", Frame::becoming);
    const std::size_t dice = random_.below(3);
    if (dice == 0) {
      clause.tense = Tense::modal;
      clause.modal = &random_.pick(modals());
    } else {
      clause.tense = dice == 1 ? Tense::past : Tense::future;
    }
    if (clause.tense == Tense::past && random_.chance(40)) clause.time = draw_time(Tense::past);
  }
  return sentence;
}

// The tense of the reported clause follows the reporting one, so that neither language has to shift it.
Sentence Composer::reported() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  clause = bare(Frame::reporting);
  const bool asks = is_one_of(*clause.verb, {"fragen"});
  const bool whether = asks || (is_one_of(*clause.verb, {"wissen"}) && random_.chance(40));
  clause.negated = whether && !asks;
  Clause told;
  if (random_.chance(15)) {
    told = predicate();
  } else if (random_.chance(8)) {
    told = weather(false);
  } else {
    told = any_event();
  }
  if (whether) {  // whether it never rains is another question than ob es nie regnet
    told.frequency = nullptr;
    if (told.negated) return reported();
  }
  if (told.tense == Tense::past && is_one_of(*clause.verb, {"sagen", "fragen"}) && random_.chance(50)) {
    clause.tense = Tense::past;
  }
  Complement complement;
  complement.conjunction = whether ? Pair{"ob", "whether"} : Pair{"dass", "that"};
  complement.clause = share(told);
  clause.complement = complement;
  return sentence;
}

Sentence Composer::reason() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  const NounPhrase who = antecedent();
  const NounPhrase again = referring(who);
  Clause why;
  switch (random_.below(6)) {
    case 0:
      clause = predicate_of(who, {"glücklich"});
      why = bare(draw_verb(Frame::transitive, {"finden", "kaufen", "verkaufen", "sehen", "besuchen"}), again);
      why.tense = Tense::past;
      break;
    case 1:
      clause = predicate_of(who, {"traurig"});
      why = bare(draw_verb(Frame::transitive, {"verlieren", "verlieren", "finden"}), again);
      why.tense = Tense::past;
      if (is_one_of(*why.verb, {"finden"})) {
        why.object = thing(draw_noun(flat | tool), again);
        why.object->plural = false;
        why.object->determiner = Determiner::definite;
        why.object->of.reset();
        why.negated = true;
      }
      break;
    case 2:
      clause = predicate_of(who, {"müde"});
      why = bare(draw_verb(Frame::intransitive, {"arbeiten", "aufstehen", "tanzen"}), again);
      why.tense = Tense::past;
      why.time = draw_time(Tense::past);
      break;
    case 3:
      clause = bare(verb("bleiben", Frame::position), who);
      draw_tense(clause);
      why = random_.chance(55) ? predicate_of(again, {"krank", "müde"}) : weather(true);
      if (clause.tense == Tense::past) why.tense = Tense::past;
      break;
    case 4:
      clause = bare(verb("essen", Frame::transitive), who);
      why = predicate_of(again, {"hungrig"});
      if (random_.chance(40)) clause.tense = why.tense = Tense::past;
      break;
    default: {
      clause = bare(verb("brauchen", Frame::transitive), who);
      NounPhrase need;
      need.noun = &noun("Schlüssel");
      adorn(need, 15, 35);
      clause.object = need;
      why = bare(verb("öffnen", Frame::transitive), again);
      why.tense = Tense::modal;
      why.modal = &modal(random_.chance(50) ? "wollen" : "müssen");
    }
  }
  Complement complement;
  complement.conjunction = {"weil", "because"};
  complement.clause = share(why);
  clause.complement = complement;
  return sentence;
}

Sentence Composer::concession() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  const NounPhrase who = antecedent();
  clause = random_.chance(50) ? bare(draw_verb(Frame::intransitive, {"arbeiten", "spielen", "tanzen", "singen"}), who)
                              : bare(draw_verb(Frame::motion, {"gehen", "laufen"}), who);
  if (clause.verb->frame == Frame::intransitive) clause.place = location(*clause.verb, who);
  Clause although = random_.chance(50) ? predicate_of(referring(who), {"müde", "krank", "hungrig"}) : weather(true);
  if (random_.chance(45)) clause.tense = although.tense = Tense::past;
  Complement complement;
  complement.conjunction = {"obwohl", "although"};
  complement.clause = share(although);
  clause.complement = complement;
  return sentence;
}

Sentence Composer::condition() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  const NounPhrase who = antecedent();
  do {
    static constexpr Frame frames[] = {Frame::intransitive, Frame::motion, Frame::position, Frame::transitive};
    const Frame frame = random_.pick(std::span<const Frame>(frames));
    const Verb& chosen = draw_verb(frame);
    if ((chosen.subject & kind::person) != kind::person) continue;
    clause = bare(chosen, who);
  } while (clause.verb == nullptr || is_one_of(*clause.verb, {"verlieren", "finden", "kennen", "haben", "wohnen"}));
  Clause when;
  const std::size_t dice = random_.below(3);
  if (dice == 0) {
    when = weather(false);
  } else if (dice == 1 || is_one_of(*clause.verb, {"einschlafen", "ankommen", "stehen", "sitzen"})) {
    when = predicate_of(referring(who), {"müde", "krank", "hungrig", "traurig", "glücklich"});
  } else {
    when.subject = referring(who);
    when.verb = &verb("haben", Frame::transitive);
    NounPhrase& time = when.object.emplace();
    time.noun = &noun("Zeit");
    time.determiner = Determiner::none;
  }
  Complement complement;
  complement.conjunction = {"wenn", "when"};
  complement.first = random_.chance(60);
  complement.clause = share(when);
  // The pronoun follows its noun: Wenn Anna müde ist, schläft sie.
  if (complement.first && dice != 0) {
    when.subject = who;
    complement.clause = share(when);
    clause.subject = referring(who);
  }
  clause.complement = complement;
  return sentence;
}

Sentence Composer::purpose() {
  struct Errand {
    const char* preposition;
    const char* where;
    const char* verb;
    Kinds object;
  };
  static constexpr Errand errands[] = {
      {"in", "Küche", "trinken", drink},  {"in", "Küche", "essen", food},      {"zu", "Markt", "kaufen", food},
      {"zu", "Markt", "verkaufen", food}, {"zu", "Bahnhof", "abholen", kin},   {"in", "Büro", "schreiben", written},
      {"in", "Keller", "suchen", tool},   {"zu", "Markt", "kaufen", flower},   {"in", "Stadt", "kaufen", clothing},
      {"in", "Stadt", "besuchen", kin},   {"in", "Garten", "füttern", animal}, {"in", "Zimmer", "lesen", text},
  };
  Sentence sentence;
  Clause& clause = sentence.clause;
  const Errand& errand = random_.pick(std::span<const Errand>(errands));
  clause.subject = person(adult | kin);
  clause.verb = &draw_verb(Frame::motion, {"gehen", "laufen", "kommen"});
  draw_tense(clause);
  clause.place.emplace();
  clause.place->preposition = &goal(errand.preposition);
  clause.place->noun.noun = &noun(errand.where);
  Clause aim;
  aim.subject = clause.subject;
  aim.verb = &verb(errand.verb, Frame::transitive);
  aim.object = object(errand.object, clause.subject, Case::accusative);
  if (random_.chance(25)) {
    clause.time = draw_time(clause.tense);
    clause.front = Front::time;
  }
  Complement complement;
  complement.conjunction = {"um", ""};
  complement.order = Order::infinitive;
  complement.clause = share(aim);
  clause.complement = complement;
  return sentence;
}

Sentence Composer::attempt() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  clause = bare(Frame::attempting);
  if (random_.chance(45)) clause.tense = Tense::past;
  const Verb& tried =
      draw_verb(Frame::transitive, {"öffnen", "schließen", "verkaufen", "anrufen", "lesen", "putzen", "aufräumen", "einschalten",
                                    "ausschalten", "füttern", "schreiben", "abholen", "anziehen", "ausziehen", "besuchen", "kaufen"});
  if ((tried.subject & kind::young) == 0) clause.subject = person(adult | kin);
  Complement complement;
  complement.conjunction = {"", ""};
  complement.order = Order::infinitive;
  complement.clause = share(bare(tried, clause.subject));
  clause.complement = complement;
  return sentence;
}

Sentence Composer::relative() {
  Sentence sentence;
  Clause& clause = sentence.clause;
  switch (random_.below(4)) {
    case 0: {
      NounPhrase who = relative_person(true);
      who.adjective = nullptr;
      clause = random_.chance(50) ? predicate_of(who, {"müde", "hungrig", "krank", "glücklich", "traurig", "klug"})
                                  : bare(draw_verb(Frame::intransitive, {"schlafen", "singen", "tanzen"}), who);
      break;
    }
    case 1: {
      constexpr Person pronouns[] = {Person::i, Person::you, Person::he, Person::she, Person::we};
      clause.subject = random_.chance(60) ? pronoun(random_.pick(std::span<const Person>(pronouns))) : person_noun(kin, false);
      clause.verb = &draw_verb(Frame::transitive, {"kennen", "suchen", "sehen", "besuchen", "anrufen"});
      clause.object = relative_person(false);
      break;
    }
    case 2: {
      NounPhrase what = relative_thing(clothing | text | tool | furniture | container | vehicle | food | drink);
      what.adjective = nullptr;
      do {
        clause = predicate_of(what, {"alt", "neu", "schön", "teuer", "frisch", "schwer", "rot", "blau", "grün", "kalt", "warm"});
      } while (!goes_with(*clause.predicate, *what.noun));
      break;
    }
    default: {
      const NounPhrase what = relative_thing(flat | tool | furniture | vehicle);
      const Verb* chosen = nullptr;
      do {
        chosen = &draw_verb(Frame::transitive, {"suchen", "finden", "kaufen", "verkaufen", "brauchen"});
      } while ((chosen->object & what.noun->kinds) == 0 || chosen == what.relative->verb);
      clause.verb = chosen;
      clause.subject = person(adult | kin);
      clause.object = what;
    }
  }
  if (random_.chance(35)) clause.tense = Tense::past;
  return sentence;
}

Sentence Composer::coordinated() {
  Sentence sentence;
  const auto brief = [this]() {
    constexpr Frame frames[] = {Frame::intransitive, Frame::transitive, Frame::position, Frame::dative};
    Clause clause;
    do {
      clause = bare(random_.pick(std::span<const Frame>(frames)));
    } while (is_one_of(*clause.verb, {"gehören"}));
    return clause;
  };
  sentence.clause = brief();
  Clause second = brief();
  if (sentence.clause.verb == second.verb || agreement(sentence.clause.subject) == agreement(second.subject)) return coordinated();
  if (random_.chance(35)) sentence.clause.tense = second.tense = Tense::past;
  sentence.conjunction = random_.chance(55) ? Pair{"und", "and"} : Pair{"aber", "but"};
  sentence.second = share(second);
  return sentence;
}

Sentence Composer::sentence() {
  while (true) {
    Sentence drawn;
    const std::size_t dice = random_.below(100);
    if (dice < 50) {
      drawn = plain();
    } else if (dice < 61) {
      drawn = question();
    } else if (dice < 64) {
      drawn = request();
    } else if (dice < 68) {
      drawn = existential();
    } else if (dice < 71) {
      drawn = comparison();
    } else if (dice < 73) {
      drawn = profession();
    } else if (dice < 79) {
      drawn = reported();
    } else if (dice < 83) {
      drawn = reason();
    } else if (dice < 85) {
      drawn = concession();
    } else if (dice < 88) {
      drawn = condition();
    } else if (dice < 91) {
      drawn = purpose();
    } else if (dice < 94) {
      drawn = attempt();
    } else if (dice < 98) {
      drawn = relative();
    } else {
      drawn = coordinated();
    }
    if (drawn.mood == Mood::statement && starts_like_polite_form(drawn.clause)) continue;
    if (repeats_noun(drawn.clause) || (drawn.second && repeats_noun(*drawn.second))) continue;
    return drawn;
  }
}

}  // namespace tern::corpus
