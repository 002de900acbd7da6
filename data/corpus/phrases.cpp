#include <stdexcept>

#include "composer.h"

namespace tern::corpus {
namespace {

using namespace kind;
constexpr Kinds grammatical = mass | weak;
constexpr Person speakers[] = {Person::i, Person::you, Person::we};

bool is(const Noun& noun, Kinds kinds) { return (noun.kinds & kinds & ~grammatical) != 0; }

// Pauls Kuchen could be one cake or more: it is one.
void settle_number(NounPhrase& phrase) {
  if (phrase.determiner == Determiner::named && std::string_view(phrase.noun->plural) == phrase.noun->german) {
    phrase.plural = false;
  }
}

PrepositionPhrase fixed(const char* german, const char* english) {
  PrepositionPhrase phrase;
  phrase.fixed = {german, english};
  return phrase;
}

}  // namespace

const Noun& Composer::draw_noun(Kinds kinds) {
  std::vector<const Noun*> found;
  for (const Noun& noun : nouns()) {
    if (is(noun, kinds)) found.push_back(&noun);
  }
  if (found.empty()) throw std::logic_error("[composer] no noun of these kinds");
  return *found[random_.below(found.size())];
}

const Verb& Composer::draw_verb(Frame frame, std::initializer_list<const char*> only) {
  if (only.size() != 0) return verb(only.begin()[random_.below(only.size())], frame);
  std::vector<const Verb*> found;
  for (const Verb& entry : verbs()) {
    if (entry.frame == frame) found.push_back(&entry);
  }
  return *found[random_.below(found.size())];
}

// My, your, our; his, her and their only where the subject of the clause is meant, and never for a neuter noun,
// because German says sein Bruder of a girl and English says her brother.
Person Composer::draw_owner(const NounPhrase& binder) {
  const Person bound = agreement(binder);
  if (animate(binder) && bound != Person::it && random_.chance(65)) return bound;
  return random_.pick(std::span<const Person>(speakers));
}

void Composer::adorn(NounPhrase& phrase, int adjective_percent, int modifier_percent) {
  if (random_.chance(modifier_percent)) {
    std::vector<const Modifier*> found;
    for (const Modifier& modifier : modifiers()) {
      if (goes_with(modifier, *phrase.noun)) found.push_back(&modifier);
    }
    if (!found.empty()) phrase.modifier = found[random_.below(found.size())];
  }
  if (random_.chance(adjective_percent)) {
    std::vector<const Adjective*> found;
    for (const Adjective& adjective : adjectives()) {
      if (goes_with(adjective, *phrase.noun)) found.push_back(&adjective);
    }
    if (!found.empty()) phrase.adjective = found[random_.below(found.size())];
  }
}

NounPhrase Composer::person_noun(Kinds kinds, bool may_be_quantified) {
  NounPhrase phrase;
  phrase.noun = &draw_noun(kinds);
  phrase.plural = *phrase.noun->plural != '\0' && random_.chance(22);
  const std::size_t dice = random_.below(100);
  if (is(*phrase.noun, kin)) {
    if (dice < 72) {
      phrase.determiner = Determiner::possessive;
      phrase.owner = random_.pick(std::span<const Person>(speakers));
    } else if (dice < 84) {
      phrase.determiner = Determiner::named;
      phrase.holder = &random_.pick(names());
    }
    adorn(phrase, 8, 0);
    return phrase;
  }
  if (dice < 10) {
    phrase.determiner = Determiner::demonstrative;
  } else if (dice < 22 && may_be_quantified) {
    phrase.determiner = Determiner::indefinite;
  } else if (dice < 32 && is(*phrase.noun, related)) {
    phrase.determiner = Determiner::possessive;
    phrase.owner = random_.pick(std::span<const Person>(speakers));
  } else if (dice < 44 && may_be_quantified && phrase.plural) {
    phrase.determiner = Determiner::number;
    phrase.number = &random_.pick(numbers());
  } else if (dice < 54 && may_be_quantified && phrase.plural) {
    phrase.determiner = Determiner::many;
  } else if (dice < 40 && may_be_quantified) {
    phrase.determiner = Determiner::every;
  }
  adorn(phrase, 20, 12);
  return phrase;
}

NounPhrase Composer::person(Kinds kinds) {
  constexpr Person pronouns[] = {Person::i, Person::you, Person::he, Person::she, Person::we, Person::they};
  NounPhrase phrase;
  const std::size_t dice = random_.below(100);
  if (dice < 30) {
    phrase.pronoun = random_.pick(std::span<const Person>(pronouns));
  } else if (dice < 45) {
    phrase.name = &random_.pick(names());
  } else {
    phrase = person_noun(kinds, true);
  }
  return phrase;
}

NounPhrase Composer::subject(Kinds kinds) {
  const Kinds others = kinds & ~(kind::person | grammatical);
  if ((kinds & kind::person) != 0 && (others == 0 || random_.chance(75))) return person(kinds & kind::person);
  NounPhrase phrase;
  phrase.noun = &draw_noun(others);
  phrase.plural = *phrase.noun->plural != '\0' && random_.chance(20);
  const std::size_t dice = random_.below(100);
  if (dice < 12) {
    phrase.determiner = Determiner::demonstrative;
  } else if (dice < 28) {
    phrase.determiner = Determiner::possessive;
    phrase.owner = random_.pick(std::span<const Person>(speakers));
  } else if (dice < 34) {
    phrase.determiner = Determiner::named;
    phrase.holder = &random_.pick(names());
  } else if (dice < 42 && phrase.plural) {
    phrase.determiner = Determiner::number;
    phrase.number = &random_.pick(numbers());
  }
  settle_number(phrase);
  adorn(phrase, 18, 50);
  return phrase;
}

NounPhrase Composer::thing(const Noun& noun, const NounPhrase& binder) {
  NounPhrase phrase;
  phrase.noun = &noun;
  const std::size_t dice = random_.below(100);
  if (is_mass(noun)) {
    phrase.determiner = dice < 68 ? Determiner::none : Determiner::definite;
    adorn(phrase, 35, 50);
    return phrase;
  }
  phrase.plural = random_.chance(25);
  if (dice < 14) {
    phrase.determiner = Determiner::possessive;
    phrase.owner = draw_owner(binder);
  } else if (dice < 22) {
    phrase.determiner = Determiner::demonstrative;
  } else if (dice < 48) {
    phrase.determiner = Determiner::indefinite;
  } else if (dice < 64 && phrase.plural) {
    phrase.determiner = Determiner::number;
    phrase.number = &random_.pick(numbers());
  } else if (dice < 74 && phrase.plural) {
    phrase.determiner = Determiner::many;
  } else if (dice < 54) {
    phrase.determiner = Determiner::named;
    phrase.holder = &random_.pick(names());
  } else if (dice < 60) {
    phrase.of = std::make_shared<NounPhrase>(person_noun(kin | adult, false));
  } else if (dice < 72 && is(noun, opening) && !is(noun, furniture)) {
    NounPhrase whole;
    whole.noun = &draw_noun(building);
    adorn(whole, 15, 15);
    phrase.of = std::make_shared<NounPhrase>(whole);
    adorn(phrase, 20, 0);
    return phrase;
  }
  settle_number(phrase);
  adorn(phrase, 24, 50);
  return phrase;
}

// Only sie is left out of the accusative pronouns: it is both her and them.
NounPhrase Composer::object(Kinds kinds, const NounPhrase& binder, Case governed) {
  const Noun& noun = draw_noun(kinds);
  if (!is(noun, kind::person)) return thing(noun, binder);
  NounPhrase phrase;
  if (random_.chance(30)) {
    std::vector<Person> choices;
    const Person bound = agreement(binder);
    const bool of_speaker = bound == Person::i || bound == Person::we;
    const bool of_hearer = bound == Person::you;
    if (!of_speaker) choices.insert(choices.end(), {Person::i, Person::we});
    if (!of_hearer) choices.push_back(Person::you);
    choices.push_back(Person::he);
    if (governed == Case::dative) choices.insert(choices.end(), {Person::she, Person::they});
    phrase.pronoun = choices[random_.below(choices.size())];
    return phrase;
  }
  phrase = person_noun(kinds & kind::person, true);
  if (phrase.determiner == Determiner::every) phrase.determiner = Determiner::definite;
  if (phrase.determiner == Determiner::possessive) phrase.owner = draw_owner(binder);
  return phrase;
}

PrepositionPhrase Composer::spot(std::span<const Preposition> rows, Spots spots, const Noun* other) {
  const auto& [german, kinds] = spots.begin()[random_.below(spots.size())];
  PrepositionPhrase phrase;
  for (const Preposition& row : rows) {
    if (std::string_view(row.german) == german) phrase.preposition = &row;
  }
  if (phrase.preposition == nullptr) throw std::logic_error(std::string("[composer] no preposition ") + german);
  NounPhrase& noun = phrase.noun;
  do {
    noun.noun = &draw_noun(kinds);
  } while (noun.noun == other || !is(*noun.noun, phrase.preposition->kinds));
  const std::size_t dice = random_.below(100);
  if (dice < 8) {
    noun.determiner = Determiner::indefinite;
  } else if (dice < 15) {
    noun.determiner = Determiner::demonstrative;
  } else if (dice < 26) {
    noun.determiner = Determiner::possessive;
    noun.owner = random_.pick(std::span<const Person>(speakers));
  }
  adorn(noun, 10, 45);
  return phrase;
}

PrepositionPhrase Composer::location(const Verb& verb, const NounPhrase& who) {
  constexpr Kinds inside = room | building | area;
  const Noun* noun = who.noun;
  if (is_one_of(verb, {"ankommen"})) return spot(places(), {{"an", stop}}, noun);
  if (animate(who)) {
    const std::size_t dice = random_.below(100);
    if (dice < 10) return fixed("zu Hause", "at home");
    if (dice < 16) {
      PrepositionPhrase phrase;
      phrase.preposition = &place("in");
      phrase.noun.city = &draw_pair(cities());
      return phrase;
    }
    if (is_one_of(verb, {"wohnen"})) return spot(places(), {{"in", building | area}, {"neben", building}}, noun);
    return spot(places(),
                {{"in", inside},
                 {"in", inside},
                 {"in", inside},
                 {"neben", landmark},
                 {"hinter", landmark},
                 {"vor", landmark},
                 {"an", edge | stop},
                 {"unter", plant}},
                noun);
  }
  if (is(*noun, animal)) {
    return spot(places(),
                {{"in", room | area}, {"unter", shelter}, {"auf", seat}, {"hinter", landmark}, {"neben", landmark}, {"vor", landmark}},
                noun);
  }
  if (is(*noun, furniture)) {
    return spot(places(), {{"in", room}, {"neben", furniture | opening}, {"vor", building | opening}, {"an", opening}}, noun);
  }
  if (is(*noun, vehicle | pulled)) {
    return spot(places(), {{"vor", building}, {"hinter", building}, {"neben", building | plant}, {"in", area}}, noun);
  }
  if (is(*noun, upright)) return spot(places(), {{"auf", surface}, {"neben", furniture}, {"in", room}}, noun);
  return spot(places(), {{"auf", surface}, {"in", container}, {"unter", furniture}, {"neben", furniture}}, noun);
}

PrepositionPhrase Composer::direction(const Verb& verb, const NounPhrase& who) {
  constexpr Kinds inside = room | building | area;
  const bool comes = std::string_view(verb.infinitive) == "kommen";
  if (animate(who) && random_.chance(comes ? 30 : 16)) {
    if (random_.chance(50)) return fixed("nach Hause", "home");
    PrepositionPhrase phrase;
    phrase.preposition = &goal("nach");
    phrase.noun.city = &draw_pair(cities());
    return phrase;
  }
  if (comes) return spot(goals(), {{"in", inside}, {"zu", target}, {"aus", inside}}, who.noun);
  return spot(goals(),
              {{"in", inside},
               {"in", inside},
               {"zu", target},
               {"aus", inside},
               {"durch", passage},
               {"über", crossing},
               {"an", opening},
               {"hinter", landmark}},
              who.noun);
}

PrepositionPhrase Composer::destination(const Noun& what) {
  if (is(what, furniture)) {
    return spot(goals(), {{"in", room}, {"neben", furniture | opening}, {"vor", opening | building}}, &what);
  }
  if (is(what, upright)) return spot(goals(), {{"auf", surface}, {"neben", furniture}, {"in", room}}, &what);
  return spot(goals(), {{"auf", surface}, {"in", container}, {"unter", furniture}, {"neben", furniture}}, &what);
}

}  // namespace tern::corpus
