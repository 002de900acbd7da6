#include <stdexcept>
#include <utility>

#include "syntax.h"

namespace tern::corpus {
namespace {

using Words = std::vector<std::string>;

void append(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

std::size_t index(Case value) { return static_cast<std::size_t>(value); }
// Columns of the declension tables: masculine, feminine, neuter, plural.
std::size_t column(Gender gender, bool plural) { return plural ? 3 : static_cast<std::size_t>(gender); }

using Table = const char* const[4][4];
constexpr Table definite_article = {
    {"der", "die", "das", "die"}, {"den", "die", "das", "die"}, {"dem", "der", "dem", "den"}, {"des", "der", "des", "der"}};
constexpr Table relative_pronoun = {
    {"der", "die", "das", "die"}, {"den", "die", "das", "die"}, {"dem", "der", "dem", "denen"}, {"dessen", "deren", "dessen", "deren"}};
constexpr Table der_word = {{"er", "e", "es", "e"}, {"en", "e", "es", "e"}, {"em", "er", "em", "en"}, {"es", "er", "es", "er"}};
constexpr Table ein_word = {{"", "e", "", "e"}, {"en", "e", "", "e"}, {"em", "er", "em", "en"}, {"es", "er", "es", "er"}};
constexpr Table weak_ending = {{"e", "e", "e", "en"}, {"en", "e", "e", "en"}, {"en", "en", "en", "en"}, {"en", "en", "en", "en"}};
constexpr Table mixed_ending = {{"er", "e", "es", "en"}, {"en", "e", "es", "en"}, {"en", "en", "en", "en"}, {"en", "en", "en", "en"}};
constexpr Table strong_ending = {{"er", "e", "es", "e"}, {"en", "e", "es", "e"}, {"em", "er", "em", "en"}, {"en", "er", "en", "er"}};

constexpr const char* pronoun_forms[7][3] = {{"ich", "mich", "mir"}, {"du", "dich", "dir"}, {"er", "ihn", "ihm"},   {"sie", "sie", "ihr"},
                                             {"es", "es", "ihm"},    {"wir", "uns", "uns"}, {"sie", "sie", "ihnen"}};
constexpr const char* possessives[7] = {"mein", "dein", "sein", "ihr", "sein", "unser", "ihr"};

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The first letter: Tisch, tisch. Ä, Ö and Ü are two bytes and differ from ä, ö and ü in one bit of the second.
std::string in_lower_case(std::string word) {
  const std::size_t at = word[0] == '\xC3' ? 1 : 0;
  word[at] = static_cast<char>(word[at] | 0x20);
  return word;
}

std::string inflect(const Noun& noun, Case c, bool plural) {
  if (plural) {
    const std::string form = noun.plural;
    const bool dative_n = c == Case::dative && !ends_with(form, "n") && !ends_with(form, "s");
    return dative_n ? form + "n" : form;
  }
  if ((noun.kinds & kind::weak) != 0 && c != Case::nominative) return noun.plural;
  return c == Case::genitive ? noun.genitive : noun.german;
}

Words subordinate(const Clause& clause, Gap gap);

Words noun_phrase(const NounPhrase& phrase, Case c) {
  if (phrase.pronoun) {
    if (c == Case::genitive) throw std::logic_error("[german] a pronoun has no genitive here");
    return {pronoun_forms[static_cast<std::size_t>(*phrase.pronoun)][index(c)]};
  }
  if (phrase.name != nullptr) return {phrase.name->text};
  if (phrase.city != nullptr) return {phrase.city->german};

  const std::size_t row = index(c);
  const std::size_t col = column(phrase.noun->gender, phrase.plural);
  Words words;
  const Table* endings = &strong_ending;
  switch (phrase.determiner) {
    case Determiner::none: break;
    case Determiner::definite:
      words.push_back(definite_article[row][col]);
      endings = &weak_ending;
      break;
    case Determiner::indefinite:
      if (!phrase.plural) {
        words.push_back(std::string("ein") + ein_word[row][col]);
        endings = &mixed_ending;
      }
      break;
    case Determiner::negative:
      words.push_back(std::string("kein") + ein_word[row][col]);
      endings = &mixed_ending;
      break;
    case Determiner::possessive:
      words.push_back(std::string(possessives[static_cast<std::size_t>(phrase.owner)]) + ein_word[row][col]);
      endings = &mixed_ending;
      break;
    case Determiner::demonstrative:
      words.push_back(std::string("dies") + der_word[row][col]);
      endings = &weak_ending;
      break;
    case Determiner::every:
      words.push_back(std::string("jed") + der_word[row][col]);
      endings = &weak_ending;
      break;
    case Determiner::which:
      words.push_back(std::string("welch") + der_word[row][col]);
      endings = &weak_ending;
      break;
    case Determiner::many: words.push_back(std::string("viel") + strong_ending[row][col]); break;
    case Determiner::number: words.push_back(phrase.number->german); break;
    case Determiner::named: words.push_back(std::string(phrase.holder->text) + "s"); break;
  }
  if (phrase.adjective != nullptr) words.push_back(std::string(phrase.adjective->stem) + (*endings)[row][col]);
  std::string noun = inflect(*phrase.noun, c, phrase.plural);
  if (phrase.modifier != nullptr) {
    noun = in_lower_case(std::move(noun));
    noun = std::string(phrase.modifier->german) + "+" + noun;
  }
  words.push_back(noun);
  if (phrase.of) append(words, noun_phrase(*phrase.of, Case::genitive));
  if (phrase.relative) {
    const bool object = phrase.relative_gap == Gap::object;
    const bool dative = object && phrase.relative->verb->frame == Frame::dative;
    const Case role = dative ? Case::dative : object ? Case::accusative : Case::nominative;
    words.push_back(",");
    words.push_back(relative_pronoun[index(role)][col]);
    append(words, subordinate(*phrase.relative, phrase.relative_gap));
    words.push_back(",");
  }
  return words;
}

// im, ans, zur: an article without stress melts into the preposition, but not before a relative clause.
Words preposition_phrase(const PrepositionPhrase& phrase) {
  if (phrase.preposition == nullptr) return {phrase.fixed.german};
  Words words = noun_phrase(phrase.noun, phrase.preposition->governs);
  const std::string preposition = phrase.preposition->german;
  if (phrase.noun.noun != nullptr && phrase.noun.determiner == Determiner::definite && !phrase.noun.relative) {
    constexpr const char* contractions[][3] = {{"in", "dem", "im"},  {"an", "dem", "am"},  {"zu", "dem", "zum"},
                                               {"zu", "der", "zur"}, {"in", "das", "ins"}, {"an", "das", "ans"}};
    for (const auto& [first, article, contracted] : contractions) {
      if (preposition == first && words[0] == article) {
        words[0] = contracted;
        return words;
      }
    }
  }
  words.insert(words.begin(), preposition);
  return words;
}

// Regular present forms; öffnen, warten and finden put an e before st and t.
std::string present(const Verb& verb, Person person) {
  const std::size_t form = form_index(person);
  if (verb.present != nullptr) return (*verb.present)[form];
  const std::string infinitive = verb.infinitive;
  const bool en = ends_with(infinitive, "en");
  const std::string stem = infinitive.substr(0, infinitive.size() - (en ? 2 : 1));
  const bool needs_e = ends_with(stem, "t") || ends_with(stem, "d") || ends_with(stem, "ffn") || ends_with(stem, "gn");
  const bool sibilant = ends_with(stem, "s") || ends_with(stem, "ß") || ends_with(stem, "z");
  switch (form) {
    case 0: return stem + "e";
    case 1: return *verb.du != '\0' ? verb.du : stem + (needs_e ? "est" : sibilant ? "t" : "st");
    case 2: return *verb.er != '\0' ? verb.er : stem + (needs_e ? "et" : "t");
    default: return infinitive;
  }
}

std::string imperative(const Verb& verb) {
  if (*verb.imperative != '\0') return verb.imperative;
  const std::string infinitive = verb.infinitive;
  return infinitive.substr(0, infinitive.size() - (ends_with(infinitive, "en") ? 2 : 1)) + "e";
}

// The finite verb and what closes the bracket behind the middle field.
struct Bracket {
  std::string finite;
  Words closing;
  bool particle_only = false;  // closing is a separable prefix, which a verb-last clause writes in one word
};

Bracket bracket(const Clause& clause) {
  const Verb& verb = *clause.verb;
  const Person person = verb.frame == Frame::existential ? Person::it : agreement(clause.subject);
  const std::size_t form = form_index(person);
  switch (clause.tense) {
    case Tense::past:
      if (verb.preterite != nullptr) return {(*verb.preterite)[form], {}};
      return {(verb.perfect_with_sein ? sein_present : haben_present)[form], {verb.participle}};
    case Tense::future: return {werden_present[form], {full_infinitive(verb)}};
    case Tense::modal: return {clause.modal->present[form], {full_infinitive(verb)}};
    case Tense::present: break;
  }
  if (*verb.prefix != '\0') return {present(verb, person), {verb.prefix}, true};
  return {present(verb, person), {}};
}

Case object_case(const Clause& clause) { return clause.verb->frame == Frame::dative ? Case::dative : Case::accusative; }

Words subject_words(const Clause& clause) {
  if (clause.verb->frame == Frame::existential) return {"es"};
  return noun_phrase(clause.subject, Case::nominative);
}

struct Shown {
  bool subject = true, object = true, place = true, time = true;
};

// Everything between the two halves of the bracket, in the order that carries no stress.
Words middle_field(const Clause& clause, Shown shown) {
  Words words;
  if (shown.subject) append(words, subject_words(clause));
  const bool pronoun_object = clause.object && clause.object->pronoun;
  const bool pronoun_recipient = clause.recipient && clause.recipient->pronoun;
  if (shown.object && pronoun_object) append(words, noun_phrase(*clause.object, object_case(clause)));
  if (pronoun_recipient) append(words, noun_phrase(*clause.recipient, Case::dative));
  if (shown.time && clause.time) words.push_back(clause.time->german);
  if (clause.frequency != nullptr) words.push_back(clause.frequency->german);
  if (clause.recipient && !pronoun_recipient) append(words, noun_phrase(*clause.recipient, Case::dative));
  bool denied = !clause.negated;
  if (clause.object && clause.object->determiner == Determiner::negative) denied = true;
  if (shown.object && clause.object && !pronoun_object) append(words, noun_phrase(*clause.object, object_case(clause)));
  if (!denied) words.push_back("nicht");
  if (clause.manner != nullptr) words.push_back(clause.manner->german);
  if (clause.predicate != nullptr) {
    words.push_back(clause.than ? clause.predicate->comparative : clause.predicate->german);
    if (clause.than) {
      words.push_back("als");
      append(words, noun_phrase(*clause.than, Case::nominative));
    }
  }
  if (clause.profession != nullptr) words.push_back(clause.profession->german);
  if (shown.place && clause.place) append(words, preposition_phrase(*clause.place));
  return words;
}

Words complement_words(const Complement& complement) {
  const Clause& clause = *complement.clause;
  if (complement.order != Order::infinitive) {
    Words words = {complement.conjunction.german};
    append(words, subordinate(clause, Gap::none));
    return words;
  }
  Words words;
  if (*complement.conjunction.german != '\0') words.push_back(complement.conjunction.german);
  append(words, middle_field(clause, {.subject = false}));
  const Verb& verb = *clause.verb;
  if (*verb.prefix != '\0') {
    words.push_back(std::string(verb.prefix) + "zu" + verb.infinitive);
  } else {
    words.push_back("zu");
    words.push_back(verb.infinitive);
  }
  return words;
}

Words subordinate(const Clause& clause, Gap gap) {
  Words words = middle_field(clause, {.subject = gap != Gap::subject, .object = gap != Gap::object});
  const Bracket verb = bracket(clause);
  if (verb.particle_only) {
    words.push_back(verb.closing[0] + verb.finite);
  } else {
    append(words, verb.closing);
    words.push_back(verb.finite);
  }
  if (clause.complement) {
    words.push_back(",");
    append(words, complement_words(*clause.complement));
  }
  return words;
}

// Verb second: one constituent, the finite verb, the middle field, the end of the bracket.
Words main_clause(const Clause& clause, const Words& first, Shown shown) {
  Words words;
  const bool fronted = clause.complement && clause.complement->first;
  if (fronted) {
    append(words, complement_words(*clause.complement));
    words.push_back(",");
    shown = {};
  } else {
    words = first;
  }
  const Bracket verb = bracket(clause);
  words.push_back(verb.finite);
  append(words, middle_field(clause, shown));
  append(words, verb.closing);
  if (clause.complement && !fronted) {
    words.push_back(",");
    append(words, complement_words(*clause.complement));
  }
  return words;
}

Words statement(const Clause& clause) {
  switch (clause.front) {
    case Front::time: return main_clause(clause, {clause.time->german}, {.time = false});
    case Front::object: return main_clause(clause, noun_phrase(*clause.object, object_case(clause)), {.object = false});
    case Front::place: return main_clause(clause, preposition_phrase(*clause.place), {.place = false});
    case Front::subject: break;
  }
  return main_clause(clause, subject_words(clause), {.subject = false});
}

}  // namespace

std::string german(const Sentence& sentence) {
  const Clause& clause = sentence.clause;
  switch (sentence.mood) {
    case Mood::statement: {
      Words words = statement(clause);
      if (sentence.second) {
        words.push_back(",");
        words.push_back(sentence.conjunction.german);
        append(words, statement(*sentence.second));
      }
      return join(words, '.');
    }
    case Mood::question: return join(main_clause(clause, {}, {}), '?');
    case Mood::who: return join(main_clause(clause, {"wer"}, {.subject = false}), '?');
    case Mood::what: return join(main_clause(clause, {"was"}, {.object = false}), '?');
    case Mood::where: return join(main_clause(clause, {"wo"}, {.place = false}), '?');
    case Mood::where_to: return join(main_clause(clause, {"wohin"}, {.place = false}), '?');
    case Mood::when: return join(main_clause(clause, {"wann"}, {.time = false}), '?');
    case Mood::why: return join(main_clause(clause, {"warum"}, {}), '?');
    case Mood::which: return join(main_clause(clause, noun_phrase(*clause.object, object_case(clause)), {.object = false}), '?');
    case Mood::request: {
      Words words = {"bitte", imperative(*clause.verb)};
      append(words, middle_field(clause, {.subject = false}));
      if (*clause.verb->prefix != '\0') words.push_back(clause.verb->prefix);
      return join(words, '!');
    }
  }
  throw std::logic_error("[german] unknown mood");
}

}  // namespace tern::corpus
