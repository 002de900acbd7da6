#include <algorithm>
#include <iterator>
#include <string_view>

#include "composer.h"

namespace tern::corpus {
namespace {

using namespace kind;

Wording wording(const Pair& pair) { return {pair.german, pair.english}; }

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

}  // namespace

Wording Composer::draw_time(Tense tense) {
  const std::size_t dice = random_.below(100);
  if (dice < 32) {
    if (dice < 14) return wording(draw_pair(weekdays()));
    // halb drei, half of the third hour, is half past two.
    const std::size_t hour = random_.below(numbers().size());
    const Pair& named = numbers()[hour];
    if (hour == 0 || random_.chance(50)) {
      return {std::string("um ") + named.german + " Uhr", std::string("at ") + named.english + " o'clock"};
    }
    return {std::string("um halb ") + named.german, std::string("at half past ") + numbers()[hour - 1].english};
  }
  switch (tense) {
    case Tense::present: return wording(draw_pair(habitual_times()));
    case Tense::past: return wording(draw_pair(past_times()));
    default: return wording(draw_pair(coming_times()));
  }
}

void Composer::draw_tense(Clause& clause) {
  const std::size_t dice = random_.below(100);
  if (dice < 40) return;
  if (dice < 70 || is_lasting(*clause.verb)) {
    clause.tense = Tense::past;
  } else if (dice < 90) {
    clause.tense = Tense::modal;
    // A thing wants nothing and is allowed nothing.
    const bool will = animate(clause.subject) || (clause.subject.noun->kinds & animal) != 0;
    do {
      clause.modal = &random_.pick(modals());
    } while (!will && (clause.modal == &modal("wollen") || clause.modal == &modal("dürfen")));
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
  if (random_.chance(25) && is_one_of(*clause.verb, {"öffnen", "schließen", "gehen", "laufen"})) {
    clause.manner = &draw_pair(manners());
  }
}

void Composer::draw_negation(Clause& clause, int percent) {
  if (clause.frequency != nullptr || clause.manner != nullptr || !random_.chance(percent)) return;
  const auto quantified = [](const NounPhrase& phrase) {
    return phrase.noun != nullptr &&
           (phrase.determiner == Determiner::every || phrase.determiner == Determiner::many || phrase.determiner == Determiner::number ||
            phrase.determiner == Determiner::indefinite || phrase.determiner == Determiner::none);
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
  } else if (object_may_lead(clause) && random_.chance(12)) {
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
    case Frame::transitive: clause.object = object(verb.object, subject, Case::accusative); break;
    case Frame::dative: clause.object = object(verb.object, subject, Case::dative); break;
    case Frame::ditransitive:
      clause.recipient = object(kind::person, subject, Case::dative);
      clause.object = object(verb.object, subject, Case::accusative);
      break;
    case Frame::motion: clause.place = direction(verb, subject); break;
    case Frame::position: clause.place = location(verb, subject); break;
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
    default: break;
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
  if (!is_lasting(*clause.verb)) {
    const bool anywhere = frame == Frame::intransitive && !is_one_of(*clause.verb, {"aufstehen"});
    const bool somewhere = is_one_of(*clause.verb, {"lesen", "schreiben", "essen", "trinken", "sehen", "suchen", "finden"});
    if ((anywhere && random_.chance(45)) || (somewhere && random_.chance(14))) clause.place = location(*clause.verb, clause.subject);
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
  do {
    clause.subject = subject(clause.predicate->kinds);
  } while (clause.subject.noun != nullptr && !goes_with(*clause.predicate, *clause.subject.noun));
  if (clause.subject.noun != nullptr && clause.subject.determiner == Determiner::indefinite) {
    clause.subject.determiner = Determiner::definite;
  }
  clause.subject.adjective = nullptr;
  if (random_.chance(30)) clause.tense = Tense::past;
  constexpr std::string_view moods[] = {"müde", "hungrig", "krank", "glücklich", "traurig"};
  const bool passing = std::find(std::begin(moods), std::end(moods), clause.predicate->german) != std::end(moods);
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

Clause Composer::weather(bool wet) {
  Clause clause;
  const std::size_t dice = wet ? 1 + random_.below(2) : random_.below(3);
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
  phrase.adjective = nullptr;  // or the tired man would sleep because he is tired
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
    if (frame == Frame::intransitive && random_.chance(60)) clause.place = location(*chosen, head);
    head.relative_gap = Gap::subject;
  } else {
    constexpr Person pronouns[] = {Person::i, Person::you, Person::we, Person::he};
    const NounPhrase who = pronoun(random_.pick(std::span<const Person>(pronouns)));
    const bool masculine = head.noun->gender == Gender::masculine && !head.plural;
    clause.verb = masculine && random_.chance(50) ? &draw_verb(Frame::transitive, {"kennen", "besuchen", "anrufen", "abholen"})
                                                  : &draw_verb(Frame::dative, {"helfen", "zuhören"});
    clause.subject = who;
    clause.object = head;
    head.relative_gap = Gap::object;
  }
  if (random_.chance(45)) clause.tense = Tense::past;
  head.relative = std::make_shared<const Clause>(clause);
  return head;
}

NounPhrase Composer::relative_thing(Kinds kinds) {
  NounPhrase head;
  const Verb* chosen = nullptr;
  do {
    head.noun = &draw_noun(kinds);
    chosen = &draw_verb(Frame::transitive);
  } while ((chosen->object & head.noun->kinds) == 0 || (chosen->subject & kind::person) == 0);
  head.plural = *head.noun->plural != '\0' && random_.chance(25);
  adorn(head, 20, 40);
  Clause clause;
  clause.verb = chosen;
  clause.subject = person(chosen->subject & kind::person);
  clause.object = head;
  if (random_.chance(60)) clause.tense = Tense::past;
  head.relative = std::make_shared<const Clause>(clause);
  head.relative_gap = Gap::object;
  return head;
}

}  // namespace tern::corpus
