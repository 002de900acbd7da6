#include "composer.h"

#include <stdexcept>

namespace tern::corpus {
namespace {

using namespace kind;

const Modal& modal(std::string_view infinitive) {
  for (const Modal& entry : modals()) {
    if (infinitive == entry.infinitive) return entry;
  }
  throw std::logic_error("[composer] no modal " + std::string(infinitive));
}

NounPhrase pronoun(Person person) {
  NounPhrase phrase;
  phrase.pronoun = person;
  return phrase;
}

bool is_named(const Verb& verb, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (full_infinitive(verb) == name) return true;
  }
  return false;
}

bool is_plural(Person person) { return person == Person::we || person == Person::you_all || person == Person::they; }

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
    case Front::object:
      return third_owner(*clause.object);
    case Front::place:
      return third_owner(clause.place->noun);
    case Front::time:
      return false;
  }
  return false;
}

// The subject's case must be visible somewhere when an object stands before the verb: den Ball hat das Kind.
bool object_may_lead(const Clause& clause) {
  if (!clause.object || clause.object->noun == nullptr || clause.object->relative || clause.negated) return false;
  if (clause.verb->frame == Frame::dative) return clause.object->determiner != Determiner::named;
  const NounPhrase& object = *clause.object;
  const bool shows = object.determiner != Determiner::named && object.determiner != Determiner::number &&
                     object.determiner != Determiner::many && object.determiner != Determiner::none;
  if (shows && !object.plural && object.noun->gender == Gender::masculine) return true;
  const NounPhrase& subject = clause.subject;
  if (subject.pronoun) return subject.pronoun != Person::she && subject.pronoun != Person::they && shows;
  return shows && subject.noun != nullptr && subject.noun->gender == Gender::masculine && !subject.plural &&
         subject.determiner != Determiner::named;
}

std::shared_ptr<const Clause> share(const Clause& clause) { return std::make_shared<const Clause>(clause); }

}  // namespace

Pair Composer::draw_time(Tense tense) {
  const std::size_t dice = random_.below(100);
  if (dice < 14) return draw_pair(weekdays());
  if (dice < 32) {
    static std::vector<std::pair<std::string, std::string>> hours;
    if (hours.empty()) {
      const std::span<const Pair> count = numbers();
      for (std::size_t i = 0; i < count.size(); ++i) {
        hours.emplace_back(std::string("um ") + count[i].german + " Uhr",
                           std::string("at ") + count[i].english + " o'clock");
        if (i > 0) {
          hours.emplace_back(std::string("um halb ") + count[i].german,
                             std::string("at half past ") + count[i - 1].english);
        }
      }
    }
    const auto& [hour, english_hour] = hours[random_.below(hours.size())];
    return {hour.c_str(), english_hour.c_str()};
  }
  switch (tense) {
    case Tense::present:
      return draw_pair(habitual_times());
    case Tense::past:
      return draw_pair(past_times());
    default:
      return draw_pair(coming_times());
  }
}

void Composer::draw_tense(Clause& clause) {
  const std::size_t dice = random_.below(100);
  if (dice < 40) return;
  if (dice < 70) {
    clause.tense = Tense::past;
  } else if (dice < 90) {
    clause.tense = Tense::modal;
    clause.modal = &random_.pick(modals());
  } else {
    clause.tense = Tense::future;
  }
}

void Composer::draw_adverbials(Clause& clause, int time_percent) {
  if (random_.chance(time_percent)) {
    clause.time = draw_time(clause.tense);
  } else if (random_.chance(14) && (clause.tense == Tense::present || clause.tense == Tense::past)) {
    clause.frequency = &draw_pair(frequencies());
  }
  if (random_.chance(25) && is_named(*clause.verb, {"öffnen", "schließen", "essen", "trinken", "gehen", "laufen"})) {
    clause.manner = &draw_pair(manners());
  }
}

void Composer::draw_negation(Clause& clause, int percent) {
  if (clause.frequency != nullptr || clause.manner != nullptr || !random_.chance(percent)) return;
  const auto quantified = [](const NounPhrase& phrase) {
    return phrase.noun != nullptr &&
           (phrase.determiner == Determiner::every || phrase.determiner == Determiner::many ||
            phrase.determiner == Determiner::number || phrase.determiner == Determiner::indefinite ||
            phrase.determiner == Determiner::none);
  };
  if (quantified(clause.subject)) return;
  if (clause.recipient && quantified(*clause.recipient)) return;
  if (clause.place && clause.place->noun.noun != nullptr && quantified(clause.place->noun)) return;
  if (clause.object && quantified(*clause.object)) {
    const Determiner determiner = clause.object->determiner;
    if (determiner != Determiner::indefinite && determiner != Determiner::none) return;
    clause.object->determiner = Determiner::negative;
  }
  clause.negated = true;
}

void Composer::draw_front(Clause& clause) {
  if (clause.time && random_.chance(50)) {
    clause.front = Front::time;
  } else if (object_may_lead(clause) && random_.chance(18)) {
    clause.front = Front::object;
  } else if (clause.place && clause.verb->frame == Frame::position && !clause.negated && random_.chance(30)) {
    clause.front = Front::place;
  }
}

Clause Composer::bare(const Verb& verb, const NounPhrase& subject) {
  Clause clause;
  clause.subject = subject;
  clause.verb = &verb;
  switch (verb.frame) {
    case Frame::transitive:
      clause.object = object(verb.object, subject, Case::accusative);
      break;
    case Frame::dative:
      clause.object = object(verb.object, subject, Case::dative);
      break;
    case Frame::ditransitive:
      clause.recipient = object(kind::person, subject, Case::dative);
      clause.object = object(verb.object, subject, Case::accusative);
      break;
    case Frame::motion:
      clause.place = direction(verb, subject);
      break;
    case Frame::position:
      clause.place = location(subject);
      break;
    case Frame::placing: {
      clause.object = object(verb.object, subject, Case::accusative);
      clause.place = destination(*clause.object->noun);
      break;
    }
    case Frame::prepositional:
      clause.place.emplace();
      clause.place->preposition = verb.preposition;
      clause.place->noun = object(verb.object, subject, verb.preposition->governs);
      break;
    default:
      break;
  }
  return clause;
}

Clause Composer::bare(Frame frame) {
  const Verb& verb = draw_verb(frame);
  return bare(verb, subject(verb.subject));
}

Clause Composer::event(Frame frame) {
  Clause clause = bare(frame);
  draw_tense(clause);
  const bool belongs = is_named(*clause.verb, {"gehören"});
  const bool state = belongs || is_named(*clause.verb, {"kennen", "lieben", "brauchen", "haben"});
  if (belongs) clause.tense = Tense::present;
  if (!state) {
    const bool placed =
        frame == Frame::intransitive ? random_.chance(50) : frame == Frame::transitive && random_.chance(8);
    if (placed) clause.place = location(clause.subject);
    draw_adverbials(clause, 36);
  }
  draw_negation(clause, 15);
  return clause;
}

Clause Composer::any_event() {
  const std::size_t dice = random_.below(100);
  if (dice < 42) return event(Frame::transitive);
  if (dice < 56) return event(Frame::intransitive);
  if (dice < 64) return event(Frame::motion);
  if (dice < 74) return event(Frame::position);
  if (dice < 81) return event(Frame::placing);
  if (dice < 88) return event(Frame::ditransitive);
  if (dice < 95) return event(Frame::dative);
  return event(Frame::prepositional);
}

Clause Composer::predicate_of(const NounPhrase& subject, std::initializer_list<const char*> choices) {
  Clause clause;
  clause.subject = subject;
  clause.verb = &verb("sein", Frame::copula);
  clause.predicate = &adjective(choices.begin()[random_.below(choices.size())]);
  return clause;
}

Clause Composer::predicate() {
  Clause clause;
  clause.verb = &verb("sein", Frame::copula);
  clause.predicate = &random_.pick(adjectives());
  // A mass noun is described only by the adjectives that may stand before it.
  do {
    clause.subject = subject(clause.predicate->kinds);
  } while (clause.subject.noun != nullptr && (clause.subject.noun->kinds & mass) != 0 &&
           (clause.predicate->kinds & mass) == 0);
  if (clause.subject.noun != nullptr && clause.subject.determiner == Determiner::indefinite) {
    clause.subject.determiner = Determiner::definite;
  }
  clause.subject.adjective = nullptr;
  if (random_.chance(30)) clause.tense = Tense::past;
  const bool passing = is_named(*clause.verb, {"sein"}) && (clause.predicate->kinds & kind::person) == kind::person &&
                       is_named({.infinitive = clause.predicate->german, .prefix = ""},
                                {"müde", "hungrig", "krank", "glücklich", "traurig"});
  if (passing) {
    if (clause.tense == Tense::past && random_.chance(40)) {
      clause.time = draw_time(Tense::past);
    } else if (random_.chance(35)) {
      clause.frequency = &draw_pair(frequencies());
    }
  }
  draw_negation(clause, 22);
  return clause;
}

Clause Composer::weather() {
  Clause clause;
  const std::size_t dice = random_.below(3);
  clause.subject = pronoun(Person::it);
  if (dice == 0) {
    clause.verb = &verb("scheinen", Frame::weather);
    clause.subject = {};
    clause.subject.noun = &noun("Sonne");
  } else {
    clause.verb = &verb(dice == 1 ? "regnen" : "schneien", Frame::weather);
  }
  return clause;
}

// Someone a pronoun can stand for in the next clause without doubt.
NounPhrase Composer::antecedent() {
  NounPhrase phrase;
  do {
    phrase = person(kind::person);
  } while (agreement(phrase) == Person::it || phrase.determiner == Determiner::every);
  return phrase;
}

NounPhrase Composer::referring(const NounPhrase& antecedent) { return pronoun(agreement(antecedent)); }

NounPhrase Composer::relative_person(bool as_subject) {
  NounPhrase head;
  head.noun = &draw_noun(adult | young);
  head.plural = random_.chance(25);
  if (random_.chance(20)) head.determiner = Determiner::indefinite;
  adorn(head, 25, 10);
  Clause clause;
  if (!as_subject || random_.chance(65)) {
    static constexpr Frame frames[] = {Frame::intransitive, Frame::position, Frame::transitive, Frame::transitive};
    const Frame frame = random_.pick(std::span<const Frame>(frames));
    const Verb* chosen = nullptr;
    do {
      chosen = &draw_verb(frame);
    } while ((chosen->subject & head.noun->kinds & kind::person) == 0);
    clause = bare(*chosen, head);
    if (frame == Frame::intransitive && random_.chance(60)) clause.place = location(head);
    head.relative_gap = Gap::subject;
  } else {
    constexpr Person pronouns[] = {Person::i, Person::you, Person::we, Person::he};
    const NounPhrase who = pronoun(random_.pick(std::span<const Person>(pronouns)));
    const bool masculine = head.noun->gender == Gender::masculine && !head.plural;
    clause.verb =
        masculine && random_.chance(50)
            ? &draw_verb(Frame::transitive, {"kennen", "fragen", "besuchen", "anrufen", "einladen", "abholen"})
            : &draw_verb(Frame::dative, {"helfen", "danken", "zuhören", "folgen"});
    clause.subject = who;
    clause.object = head;
    head.relative_gap = Gap::object;
  }
  if (random_.chance(45)) clause.tense = Tense::past;
  head.relative = share(clause);
  return head;
}

NounPhrase Composer::relative_thing(Kinds kinds) {
  NounPhrase head;
  const Verb* chosen = nullptr;
  do {
    head.noun = &draw_noun(kinds);
    chosen = &draw_verb(Frame::transitive);
  } while ((chosen->object & head.noun->kinds) == 0 || (chosen->subject & kind::person) == 0);
  head.plural = (head.noun->kinds & mass) == 0 && random_.chance(25);
  adorn(head, 20, 40);
  Clause clause;
  clause.verb = chosen;
  clause.subject = person(chosen->subject & kind::person);
  clause.object = head;
  if (random_.chance(60)) clause.tense = Tense::past;
  head.relative = share(clause);
  head.relative_gap = Gap::object;
  return head;
}

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
    if (random_.chance(20)) drawn.time = draw_time(drawn.tense);
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
      if (!clause.place) clause.place = location(clause.subject);
      break;
    case 3:
      sentence.mood = Mood::where_to;
      clause = bare(draw_verb(Frame::motion, {"gehen", "laufen"}), subject(kind::person));
      draw_tense(clause);
      break;
    case 4:
      sentence.mood = Mood::when;
      clause = any_event();
      clause.time.reset();
      clause.frequency = nullptr;
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
      clause.frequency = nullptr;
      break;
    default:
      sentence.mood = Mood::question;
      clause = any_event();
      break;
  }
  clause.front = Front::subject;
  if (clause.negated) {
    clause.negated = false;
    if (clause.object && clause.object->determiner == Determiner::negative)
      clause.object->determiner = Determiner::definite;
  }
  return sentence;
}

Sentence Composer::request() {
  Sentence sentence;
  sentence.mood = Mood::request;
  const NounPhrase you = pronoun(Person::you);
  const Verb* chosen = nullptr;
  switch (random_.below(5)) {
    case 0:
      chosen = &draw_verb(Frame::ditransitive, {"geben", "zeigen", "bringen", "schicken", "leihen"});
      break;
    case 1:
      chosen = &draw_verb(Frame::placing);
      break;
    case 2:
      chosen = &draw_verb(Frame::dative, {"helfen", "zuhören", "antworten", "danken", "folgen"});
      break;
    default:
      chosen =
          &draw_verb(Frame::transitive, {"öffnen",   "schließen", "lesen",    "schreiben", "kaufen",      "essen",
                                         "trinken",  "suchen",    "waschen",  "putzen",    "reparieren",  "füttern",
                                         "anrufen",  "einladen",  "abholen",  "aufräumen", "einschalten", "ausschalten",
                                         "anziehen", "ausziehen", "besuchen", "fragen",    "backen"});
  }
  sentence.clause = bare(*chosen, you);
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
  adorn(what, 45, 40);
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
  } while (animate(clause.subject) != animate(than) || (than.pronoun && than.pronoun != Person::you) ||
           (clause.subject.noun && than.noun && clause.subject.noun == than.noun) ||
           (clause.subject.noun && (clause.subject.noun->kinds & mass) != 0) ||
           (than.noun && (than.noun->kinds & mass) != 0));
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
    draw_negation(clause, 0);
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
  const bool asks = is_named(*clause.verb, {"fragen"});
  const bool whether = asks || (is_named(*clause.verb, {"wissen"}) && random_.chance(40));
  clause.negated = whether && !asks;
  Clause told;
  if (random_.chance(15)) {
    told = predicate();
  } else if (random_.chance(8)) {
    told = weather();
  } else {
    told = any_event();
  }
  if (told.tense == Tense::past && is_named(*clause.verb, {"sagen", "glauben", "fragen"}) && random_.chance(50)) {
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
      if (is_named(*why.verb, {"finden"})) {
        why.object = thing(draw_noun(flat | tool), again);
        why.object->plural = false;
        why.object->determiner = Determiner::definite;
        why.object->of.reset();
        why.negated = true;
      }
      break;
    case 2:
      clause = predicate_of(who, {"müde"});
      why = bare(draw_verb(Frame::intransitive, {"arbeiten", "aufstehen", "aufwachen", "tanzen"}), again);
      why.tense = Tense::past;
      why.time = draw_time(Tense::past);
      break;
    case 3:
      clause = bare(verb("bleiben", Frame::position), who);
      draw_tense(clause);
      why = random_.chance(55) ? predicate_of(again, {"krank", "müde"}) : weather();
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
      const bool key = random_.chance(50);
      need.noun = &noun(key ? "Schlüssel" : "Messer");
      need.determiner = key ? Determiner::definite : Determiner::indefinite;
      adorn(need, 15, 35);
      clause.object = need;
      why = bare(verb(key ? "öffnen" : "schneiden", Frame::transitive), again);
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
  clause = random_.chance(50)
               ? bare(draw_verb(Frame::intransitive, {"arbeiten", "spielen", "tanzen", "singen", "warten"}), who)
               : bare(draw_verb(Frame::motion, {"gehen", "laufen"}), who);
  if (clause.verb->frame == Frame::intransitive) clause.place = location(who);
  Clause although = random_.chance(50) ? predicate_of(referring(who), {"müde", "krank", "hungrig"}) : weather();
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
  } while (clause.verb == nullptr || is_named(*clause.verb, {"verlieren", "finden", "kennen", "haben", "wohnen"}));
  Clause when;
  const std::size_t dice = random_.below(3);
  if (dice == 0) {
    when = weather();
  } else if (dice == 1) {
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
  static constexpr Errand errands[] = {{"in", "Küche", "trinken", drink},
                                       {"in", "Küche", "backen", baked},
                                       {"in", "Küche", "essen", food},
                                       {"in", "Bibliothek", "lesen", text},
                                       {"zu", "Markt", "kaufen", food},
                                       {"zu", "Markt", "verkaufen", food},
                                       {"zu", "Bahnhof", "abholen", kin},
                                       {"in", "Büro", "schreiben", written},
                                       {"in", "Keller", "suchen", tool | container},
                                       {"in", "Garten", "malen", flower | plant},
                                       {"in", "Stadt", "kaufen", clothing},
                                       {"in", "Stadt", "besuchen", kin},
                                       {"in", "Garten", "füttern", animal},
                                       {"in", "Haus", "putzen", opening},
                                       {"zu", "Museum", "malen", building}};
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
      draw_verb(Frame::transitive,
                {"öffnen",  "schließen", "finden",   "verkaufen", "reparieren",  "anrufen",     "malen",   "lesen",
                 "putzen",  "waschen",   "backen",   "aufräumen", "einschalten", "ausschalten", "füttern", "schreiben",
                 "abholen", "einladen",  "anziehen", "ausziehen", "besuchen",    "kaufen"});
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
      const NounPhrase who = relative_person(true);
      clause = random_.chance(50)
                   ? predicate_of(who, {"müde", "hungrig", "krank", "glücklich", "traurig", "freundlich", "klug"})
                   : bare(draw_verb(Frame::intransitive, {"schlafen", "lachen", "weinen", "singen", "tanzen"}), who);
      break;
    }
    case 1: {
      constexpr Person pronouns[] = {Person::i, Person::you, Person::he, Person::she, Person::we, Person::you_all};
      clause.subject =
          random_.chance(60) ? pronoun(random_.pick(std::span<const Person>(pronouns))) : person_noun(kin, false);
      clause.verb =
          &draw_verb(Frame::transitive, {"kennen", "suchen", "sehen", "besuchen", "fragen", "anrufen", "begrüßen"});
      clause.object = relative_person(false);
      break;
    }
    case 2: {
      const NounPhrase what = relative_thing(clothing | text | tool | furniture | container | vehicle | food | drink);
      do {
        clause = predicate_of(what, {"alt", "neu", "schön", "teuer", "billig", "frisch", "interessant", "lang", "kurz",
                                     "schwer", "rot", "blau", "grün", "schmutzig", "sauber", "kalt", "warm"});
      } while ((clause.predicate->kinds & what.noun->kinds) == 0 ||
               ((what.noun->kinds & mass) != 0 && (clause.predicate->kinds & what.noun->kinds & mass) == 0));
      break;
    }
    default: {
      const NounPhrase what = relative_thing(flat | tool | furniture | vehicle);
      const Verb* chosen = nullptr;
      do {
        chosen = &draw_verb(Frame::transitive,
                            {"suchen", "finden", "kaufen", "verkaufen", "waschen", "reparieren", "brauchen"});
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
    } while (is_named(*clause.verb, {"gehören"}));
    return clause;
  };
  sentence.clause = brief();
  Clause second = brief();
  if (sentence.clause.verb == second.verb || agreement(sentence.clause.subject) == agreement(second.subject))
    return coordinated();
  if (random_.chance(35)) sentence.clause.tense = second.tense = Tense::past;
  sentence.conjunction = random_.chance(55) ? Pair{"und", "and"} : Pair{"aber", "but"};
  sentence.second = share(second);
  return sentence;
}

Sentence Composer::sentence() {
  while (true) {
    Sentence drawn;
    const std::size_t dice = random_.below(100);
    if (dice < 46) {
      drawn = plain();
    } else if (dice < 57) {
      drawn = question();
    } else if (dice < 60) {
      drawn = request();
    } else if (dice < 64) {
      drawn = existential();
    } else if (dice < 67) {
      drawn = comparison();
    } else if (dice < 69) {
      drawn = profession();
    } else if (dice < 76) {
      drawn = reported();
    } else if (dice < 80) {
      drawn = reason();
    } else if (dice < 82) {
      drawn = concession();
    } else if (dice < 86) {
      drawn = condition();
    } else if (dice < 89) {
      drawn = purpose();
    } else if (dice < 92) {
      drawn = attempt();
    } else if (dice < 97) {
      drawn = relative();
    } else {
      drawn = coordinated();
    }
    if (drawn.mood == Mood::statement && starts_like_polite_form(drawn.clause)) continue;
    return drawn;
  }
}

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
