#include <stdexcept>

#include "syntax.h"

namespace tern::corpus {

NounPhrase pronoun(Person person) {
  NounPhrase phrase;
  phrase.pronoun = person;
  return phrase;
}

Person agreement(const NounPhrase& phrase) {
  if (phrase.pronoun) return *phrase.pronoun;
  if (phrase.name != nullptr) return phrase.name->female ? Person::she : Person::he;
  if (phrase.city != nullptr) return Person::it;
  if (phrase.plural) return Person::they;
  constexpr Person singular[] = {Person::he, Person::she, Person::it};
  return singular[static_cast<std::size_t>(phrase.noun->gender)];
}

bool animate(const NounPhrase& phrase) {
  return phrase.pronoun || phrase.name != nullptr || (phrase.noun != nullptr && (phrase.noun->kinds & kind::person) != 0);
}

std::size_t form_index(Person person) {
  constexpr std::size_t forms[] = {0, 1, 2, 2, 2, 3, 4};
  return forms[static_cast<std::size_t>(person)];
}

// A capital at the start and one space between words. The first letter may be ä, ö or ü, two bytes that differ from
// their capitals in one bit.
std::string join(const std::vector<std::string>& words, char closing) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == ",") {
      const bool needless = i + 1 == words.size() || words[i + 1] == ",";
      if (!needless) text += ',';
      continue;
    }
    if (!text.empty()) text += ' ';
    text += words[i];
  }
  text += closing;
  if (text[0] >= 'a' && text[0] <= 'z') {
    text[0] = static_cast<char>(text[0] - 'a' + 'A');
  } else if (text[0] == '\xC3') {
    text[1] = static_cast<char>(text[1] & ~0x20);
  }
  return text;
}

namespace {

using Words = std::vector<std::string>;

void append(Words& words, const Words& more) { words.insert(words.end(), more.begin(), more.end()); }

bool is_vowel(char letter) { return std::string_view("aeiou").find(letter) != std::string_view::npos; }

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string without_last_word(const std::string& words) { return words.substr(0, words.rfind(' ')); }

// books, churches, cherries; the same rule serves the third person: reads, catches, carries, goes.
std::string add_s(const std::string& word) {
  const std::size_t size = word.size();
  if (ends_with(word, "s") || ends_with(word, "x") || ends_with(word, "ch") || ends_with(word, "sh") || word == "go") {
    return word + "es";
  }
  if (ends_with(word, "y") && !is_vowel(word[size - 2])) return word.substr(0, size - 1) + "ies";
  return word + "s";
}

// Applies to the first word alone: look for, looks for.
std::string third_person(const std::string& verb) {
  if (verb == "have" || verb == "have to") return "has" + verb.substr(4);
  const std::size_t space = verb.find(' ');
  if (space == std::string::npos) return add_s(verb);
  return add_s(verb.substr(0, space)) + verb.substr(space);
}

std::string past(const Verb& verb) {
  if (*verb.english_past != '\0') return verb.english_past;
  const std::string base = verb.english;
  if (ends_with(base, "e")) return base + "d";
  if (ends_with(base, "y") && !is_vowel(base[base.size() - 2])) return base.substr(0, base.size() - 1) + "ied";
  return base + "ed";
}

constexpr const char* subject_pronouns[7] = {"I", "you", "he", "she", "it", "we", "they"};
constexpr const char* object_pronouns[7] = {"me", "you", "him", "her", "it", "us", "them"};
constexpr const char* possessives[7] = {"my", "your", "his", "her", "its", "our", "their"};

std::string noun_form(const Noun& noun, bool plural) {
  if (!plural) return noun.english;
  return *noun.english_plural != '\0' ? noun.english_plural : add_s(noun.english);
}

Words relative_clause(const Clause& clause, Gap gap);

Words noun_phrase(const NounPhrase& phrase, bool subject) {
  if (phrase.pronoun) {
    return {(subject ? subject_pronouns : object_pronouns)[static_cast<std::size_t>(*phrase.pronoun)]};
  }
  if (phrase.name != nullptr) return {phrase.name->text};
  if (phrase.city != nullptr) return {phrase.city->english};

  Words core;
  if (phrase.adjective != nullptr) core.push_back(phrase.adjective->english);
  if (phrase.modifier != nullptr) core.push_back(phrase.modifier->english);
  core.push_back(noun_form(*phrase.noun, phrase.plural));

  const bool mass = (phrase.noun->kinds & kind::mass) != 0;
  const char* a = is_vowel(core[0][0]) ? "an" : "a";
  Words words;
  const bool owner_first = phrase.of && animate(*phrase.of);
  if (owner_first) {
    words = noun_phrase(*phrase.of, false);
    words.back() += ends_with(words.back(), "s") ? "'" : "'s";
  } else {
    switch (phrase.determiner) {
      case Determiner::none: break;
      case Determiner::definite: words.push_back("the"); break;
      case Determiner::indefinite:
        if (!phrase.plural) words.push_back(a);
        break;
      case Determiner::negative: words.push_back(phrase.plural || mass ? "any" : a); break;
      case Determiner::possessive: words.push_back(possessives[static_cast<std::size_t>(phrase.owner)]); break;
      case Determiner::demonstrative: words.push_back(phrase.plural ? "these" : "this"); break;
      case Determiner::every: words.push_back("every"); break;
      case Determiner::which: words.push_back("which"); break;
      case Determiner::many: words.push_back("many"); break;
      case Determiner::number: words.push_back(phrase.number->english); break;
      case Determiner::named: words.push_back(std::string(phrase.holder->text) + "'s"); break;
    }
  }
  append(words, core);
  if (phrase.of && !owner_first) {
    words.push_back("of");
    append(words, noun_phrase(*phrase.of, false));
  }
  if (phrase.relative) {
    const bool object = phrase.relative_gap == Gap::object;
    words.push_back(!animate(phrase) ? "that" : object ? "whom" : "who");
    append(words, relative_clause(*phrase.relative, phrase.relative_gap));
  }
  return words;
}

Words preposition_phrase(const PrepositionPhrase& phrase) {
  if (phrase.preposition == nullptr) return {phrase.fixed.english};
  Words words = {phrase.preposition->english};
  append(words, noun_phrase(phrase.noun, false));
  return words;
}

const char* be_present(Person person) {
  if (person == Person::i) return "am";
  return form_index(person) == 2 ? "is" : "are";
}

const char* be_past(Person person) { return person == Person::i || form_index(person) == 2 ? "was" : "were"; }

bool is_singular_third(Person person) { return form_index(person) == 2; }

// she | does | not | open: the auxiliary is empty where English needs none.
struct VerbGroup {
  std::string auxiliary;
  std::string main;
};

VerbGroup full_verb(const std::string& base, const std::string& past_form, Tense tense, Person person, bool support) {
  const bool third = is_singular_third(person);
  if (tense == Tense::past) return support ? VerbGroup{"did", base} : VerbGroup{"", past_form};
  if (support) return {third ? "does" : "do", base};
  return {"", third ? third_person(base) : base};
}

VerbGroup verb_group(const Clause& clause, Person person, bool inverted) {
  const Verb& verb = *clause.verb;
  const std::string base = verb.english;
  const bool support = inverted || clause.negated;
  if (clause.tense == Tense::future) return {"will", base};
  if (clause.tense == Tense::modal) {
    const Modal& modal = *clause.modal;
    const std::string helper = clause.negated ? modal.english_negative : modal.english;
    const bool auxiliary = clause.negated ? modal.negative_auxiliary : modal.auxiliary;
    if (auxiliary) return {helper, base};
    return full_verb(helper + " " + base, "", Tense::present, person, support);
  }
  if (base == "be") return {clause.tense == Tense::past ? be_past(person) : be_present(person), ""};
  return full_verb(base, clause.tense == Tense::past ? past(verb) : "", clause.tense, person, support);
}

// The adverb of pick up, turn on and take off.
std::string particle(const Verb& verb) {
  const std::string base = verb.english;
  for (const char* word : {"up", "on", "off"}) {
    if (ends_with(base, std::string(" ") + word)) return word;
  }
  return "";
}

// Picks up the child, but picks him up.
bool takes_in_pronoun(const Clause& clause) { return clause.object && clause.object->pronoun && !particle(*clause.verb).empty(); }

struct Shown {
  bool subject = true, object = true, place = true, time = true;
};

Words complement_words(const Complement& complement);

Words after_verb(const Clause& clause, Shown shown) {
  Words words;
  if (clause.recipient) append(words, noun_phrase(*clause.recipient, false));
  if (shown.object && clause.object) {
    append(words, noun_phrase(*clause.object, false));
    if (takes_in_pronoun(clause)) words.push_back(particle(*clause.verb));
  }
  if (clause.predicate != nullptr) {
    words.push_back(clause.than ? clause.predicate->english_comparative : clause.predicate->english);
    if (clause.than) {
      words.push_back("than");
      append(words, noun_phrase(*clause.than, true));
    }
  }
  if (clause.profession != nullptr) {
    words.push_back(is_vowel(clause.profession->english[0]) ? "an" : "a");
    words.push_back(clause.profession->english);
  }
  if (clause.manner != nullptr) words.push_back(clause.manner->english);
  if (shown.place && clause.place) append(words, preposition_phrase(*clause.place));
  if (shown.time && clause.time) words.push_back(clause.time->english);
  if (clause.complement && !clause.complement->first) {
    append(words, complement_words(*clause.complement));
  }
  return words;
}

Words clause_words(const Clause& clause, bool inverted, Shown shown) {
  Words words;
  const bool existential = clause.verb->frame == Frame::existential;
  const Person person = existential ? agreement(*clause.object) : agreement(clause.subject);
  const VerbGroup group = verb_group(clause, person, inverted);
  if (inverted && !group.auxiliary.empty()) words.push_back(group.auxiliary);
  if (shown.subject) {
    if (existential) {
      words.push_back("there");
    } else {
      append(words, noun_phrase(clause.subject, true));
    }
  }
  if (!inverted && !group.auxiliary.empty()) words.push_back(group.auxiliary);
  if (clause.negated) {
    if (words.back() == "can") {
      words.back() = "cannot";
    } else {
      words.push_back("not");
    }
  }
  if (clause.frequency != nullptr) words.push_back(clause.frequency->english);
  if (!group.main.empty()) words.push_back(takes_in_pronoun(clause) ? without_last_word(group.main) : group.main);
  append(words, after_verb(clause, shown));
  return words;
}

Words relative_clause(const Clause& clause, Gap gap) {
  return clause_words(clause, false, {.subject = gap != Gap::subject, .object = gap != Gap::object});
}

Words complement_words(const Complement& complement) {
  Words words;
  if (*complement.conjunction.english != '\0') words.push_back(complement.conjunction.english);
  if (complement.order == Order::infinitive) {
    const Verb& verb = *complement.clause->verb;
    words.push_back("to");
    words.push_back(takes_in_pronoun(*complement.clause) ? without_last_word(verb.english) : verb.english);
    append(words, after_verb(*complement.clause, {}));
  } else {
    append(words, clause_words(*complement.clause, false, {}));
  }
  return words;
}

// English keeps its order where German fronts an object or a place; a time or a clause may stand first in both.
Words statement(const Clause& clause) {
  Words words;
  if (clause.complement && clause.complement->first) {
    words = complement_words(*clause.complement);
    words.push_back(",");
  } else if (clause.front == Front::time) {
    words.push_back(clause.time->english);
    append(words, clause_words(clause, false, {.time = false}));
    return words;
  }
  append(words, clause_words(clause, false, {}));
  return words;
}

Words question(const Clause& clause, const Words& first, Shown shown) {
  Words words = first;
  append(words, clause_words(clause, shown.subject, shown));
  return words;
}

}  // namespace

std::string english(const Sentence& sentence) {
  const Clause& clause = sentence.clause;
  switch (sentence.mood) {
    case Mood::statement: {
      Words words = statement(clause);
      if (sentence.second) {
        words.push_back(",");
        words.push_back(sentence.conjunction.english);
        append(words, statement(*sentence.second));
      }
      return join(words, '.');
    }
    case Mood::question: return join(question(clause, {}, {}), '?');
    case Mood::who: return join(question(clause, {"who"}, {.subject = false}), '?');
    case Mood::what: return join(question(clause, {"what"}, {.object = false}), '?');
    case Mood::where: return join(question(clause, {"where"}, {.place = false}), '?');
    case Mood::where_to: return join(question(clause, {"where"}, {.place = false}), '?');
    case Mood::when: return join(question(clause, {"when"}, {.time = false}), '?');
    case Mood::why: return join(question(clause, {"why"}, {}), '?');
    case Mood::which: return join(question(clause, noun_phrase(*clause.object, false), {.object = false}), '?');
    case Mood::request: {
      Words words = {"please", takes_in_pronoun(clause) ? without_last_word(clause.verb->english) : clause.verb->english};
      append(words, after_verb(clause, {}));
      return join(words, '!');
    }
  }
  throw std::logic_error("[english] unknown mood");
}

}  // namespace tern::corpus
