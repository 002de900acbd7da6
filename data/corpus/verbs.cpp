#include <algorithm>
#include <stdexcept>

#include "lexicon.h"

namespace tern::corpus {

const Persons haben_present = {"habe", "hast", "hat", "haben", "haben"};
const Persons sein_present = {"bin", "bist", "ist", "sind", "sind"};
const Persons werden_present = {"werde", "wirst", "wird", "werden", "werden"};

namespace {

using namespace kind;

constexpr Persons haben_preterite = {"hatte", "hattest", "hatte", "hatten", "hatten"};
constexpr Persons sein_preterite = {"war", "warst", "war", "waren", "waren"};
constexpr Persons wissen_present = {"weiß", "weißt", "weiß", "wissen", "wissen"};

constexpr Preposition waiting_for = {"auf", Case::accusative, "for", 0};
constexpr Preposition talking_to = {"mit", Case::dative, "to", 0};

constexpr Kinds being = person | animal;
constexpr Kinds portable = flat | upright | tool;
constexpr Kinds visible = being | portable | clothing | furniture | vehicle | plant | flower | picture | building | pulled;
constexpr Kinds goods = food | drink | text | clothing | furniture | container | switched | vehicle | tool | flower | picture | upright;

constexpr Verb verb_table[] = {
    {"schlafen", "", "schläfst", "schläft", "geschlafen", false, "sleep", "slept", Frame::intransitive, being},
    {"spielen", "", "", "", "gespielt", false, "play", "", Frame::intransitive, young | pet},
    {"arbeiten", "", "", "", "gearbeitet", false, "work", "", Frame::intransitive, adult | kin},
    {"singen", "", "", "", "gesungen", false, "sing", "sang", Frame::intransitive, person},
    {"tanzen", "", "", "", "getanzt", false, "dance", "", Frame::intransitive, person},
    {"stehen", "auf", "", "", "aufgestanden", true, "get up", "got up", Frame::intransitive, person},
    {"schlafen", "ein", "schläfst", "schläft", "eingeschlafen", true, "fall asleep", "fell asleep", Frame::intransitive, being},
    {"kommen", "an", "", "", "angekommen", true, "arrive", "", Frame::intransitive, person | pulled},

    {"lesen", "", "liest", "liest", "gelesen", false, "read", "read", Frame::transitive, person, text, "lies"},
    {"schreiben", "", "", "", "geschrieben", false, "write", "wrote", Frame::transitive, person, written},
    {"kaufen", "", "", "", "gekauft", false, "buy", "bought", Frame::transitive, adult | kin, goods},
    {"verkaufen", "", "", "", "verkauft", false, "sell", "sold", Frame::transitive, adult | kin, goods},
    {"essen", "", "isst", "isst", "gegessen", false, "eat", "ate", Frame::transitive, person, food, "iss"},
    {"fressen", "", "frisst", "frisst", "gefressen", false, "eat", "ate", Frame::transitive, animal, food},
    {"trinken", "", "", "", "getrunken", false, "drink", "drank", Frame::transitive, person, drink},
    {"öffnen", "", "", "", "geöffnet", false, "open", "", Frame::transitive, person, opening | container},
    {"schließen", "", "", "", "geschlossen", false, "close", "", Frame::transitive, person, opening | container},
    {"suchen", "", "", "", "gesucht", false, "look for", "looked for", Frame::transitive, being, being | portable},
    {"finden", "", "", "", "gefunden", false, "find", "found", Frame::transitive, being, being | portable},
    {"verlieren", "", "", "", "verloren", false, "lose", "lost", Frame::transitive, person, portable},
    {"sehen", "", "siehst", "sieht", "gesehen", false, "see", "saw", Frame::transitive, being, visible, "sieh"},
    {"kennen", "", "", "", "gekannt", false, "know", "knew", Frame::transitive, person, person | building | area | text},
    {"besuchen", "", "", "", "besucht", false, "visit", "", Frame::transitive, person, person | building},
    {"putzen", "", "", "", "geputzt", false, "clean", "", Frame::transitive, person, opening | room | furniture | vehicle | tool},
    {"brauchen", "", "", "", "gebraucht", false, "need", "", Frame::transitive, person, goods},
    {"füttern", "", "", "", "gefüttert", false, "feed", "fed", Frame::transitive, person, animal},
    {"haben", "", "hast", "hat", "gehabt", false, "have", "had", Frame::transitive, person,
     pet | vehicle | clothing | container | gift | food, "", &haben_present, &haben_preterite},
    {"rufen", "an", "", "", "angerufen", false, "call", "", Frame::transitive, person, person},
    {"holen", "ab", "", "", "abgeholt", false, "pick up", "picked up", Frame::transitive, adult | kin, person},
    {"räumen", "auf", "", "", "aufgeräumt", false, "tidy", "", Frame::transitive, person, room},
    {"schalten", "ein", "", "", "eingeschaltet", false, "turn on", "turned on", Frame::transitive, person, switched},
    {"schalten", "aus", "", "", "ausgeschaltet", false, "turn off", "turned off", Frame::transitive, person, switched},
    {"ziehen", "an", "", "", "angezogen", false, "put on", "put on", Frame::transitive, person, clothing},
    {"ziehen", "aus", "", "", "ausgezogen", false, "take off", "took off", Frame::transitive, person, clothing},

    {"helfen", "", "hilfst", "hilft", "geholfen", false, "help", "", Frame::dative, person, being, "hilf"},
    {"hören", "zu", "", "", "zugehört", false, "listen to", "listened to", Frame::dative, person, person},
    {"gehören", "", "", "", "gehört", false, "belong to", "belonged to", Frame::dative, goods | building | pet, person},

    {"geben", "", "gibst", "gibt", "gegeben", false, "give", "gave", Frame::ditransitive, person, gift | food | drink | tool | text, "gib"},
    {"zeigen", "", "", "", "gezeigt", false, "show", "", Frame::ditransitive, person,
     picture | text | building | room | animal | clothing | vehicle},
    {"bringen", "", "", "", "gebracht", false, "bring", "brought", Frame::ditransitive, person, gift | food | drink | tool | text},

    {"gehen", "", "", "", "gegangen", true, "go", "went", Frame::motion, being},
    {"laufen", "", "läufst", "läuft", "gelaufen", true, "run", "ran", Frame::motion, being},
    {"kommen", "", "", "", "gekommen", true, "come", "came", Frame::motion, person},

    {"liegen", "", "", "", "gelegen", false, "lie", "lay", Frame::position, flat | animal},
    {"stehen", "", "", "", "gestanden", false, "stand", "stood", Frame::position, upright | furniture | vehicle | pulled | person},
    {"sitzen", "", "", "", "gesessen", false, "sit", "sat", Frame::position, being},
    {"wohnen", "", "", "", "gewohnt", false, "live", "", Frame::position, person},
    {"bleiben", "", "", "", "geblieben", true, "stay", "", Frame::position, person},

    {"legen", "", "", "", "gelegt", false, "put", "put", Frame::placing, person, flat},
    {"stellen", "", "", "", "gestellt", false, "put", "put", Frame::placing, person, upright | furniture},

    {"warten", "", "", "", "gewartet", false, "wait", "", Frame::prepositional, person, person | pulled, "", nullptr, nullptr,
     &waiting_for},
    {"sprechen", "", "sprichst", "spricht", "gesprochen", false, "talk", "", Frame::prepositional, person, person, "sprich", nullptr,
     nullptr, &talking_to},

    {"sein", "", "bist", "ist", "gewesen", true, "be", "", Frame::copula, being, 0, "", &sein_present, &sein_preterite},
    {"werden", "", "wirst", "wird", "geworden", true, "become", "became", Frame::becoming, person, 0, "", &werden_present},
    {"regnen", "", "", "", "geregnet", false, "rain", "", Frame::weather, 0},
    {"schneien", "", "", "", "geschneit", false, "snow", "", Frame::weather, 0},
    {"scheinen", "", "", "", "geschienen", false, "shine", "shone", Frame::weather, sky},
    {"geben", "", "gibst", "gibt", "gegeben", false, "be", "", Frame::existential, 0},

    {"wissen", "", "weißt", "weiß", "gewusst", false, "know", "knew", Frame::reporting, person, 0, "", &wissen_present},
    {"sagen", "", "", "", "gesagt", false, "say", "said", Frame::reporting, person},
    {"hoffen", "", "", "", "gehofft", false, "hope", "", Frame::reporting, person},
    {"fragen", "", "", "", "gefragt", false, "ask", "", Frame::reporting, person},
    {"versuchen", "", "", "", "versucht", false, "try", "", Frame::attempting, person},
    {"vergessen", "", "vergisst", "vergisst", "vergessen", false, "forget", "forgot", Frame::attempting, person},
};

constexpr Modal modal_table[] = {
    {"können", {"kann", "kannst", "kann", "können", "können"}, "can", "can", true, true},
    {"müssen", {"muss", "musst", "muss", "müssen", "müssen"}, "must", "have to", true, false},
    {"wollen", {"will", "willst", "will", "wollen", "wollen"}, "want to", "want to", false, false},
    {"sollen", {"soll", "sollst", "soll", "sollen", "sollen"}, "should", "should", true, true},
    {"dürfen", {"darf", "darfst", "darf", "dürfen", "dürfen"}, "may", "may", true, true},
};

constexpr Kinds thing = flat | upright | tool | clothing | furniture | opening | container | vehicle | pulled | room | building;
constexpr Kinds shade = clothing | coloured | vehicle | pulled | opening;

constexpr Adjective adjective_table[] = {
    {"alt", "alt", "old", "älter", "older", adult | animal | thing | plant | text | area | crossing},
    {"neu", "neu", "new", "", "", thing | text | crossing},
    {"groß", "groß", "big", "größer", "bigger", animal | thing | plant | area | room | crossing | flower | food},
    {"klein", "klein", "small", "kleiner", "smaller", young | animal | thing | plant | area | crossing | flower | food},
    {"schön", "schön", "beautiful", "schöner", "more beautiful",
     clothing | building | area | plant | picture | flower | text | room | crossing},
    {"rot", "rot", "red", "", "", shade | flower},
    {"blau", "blau", "blue", "", "", shade | flower},
    {"grün", "grün", "green", "", "", shade},
    {"weiß", "weiß", "white", "", "", shade | flower | animal | building},
    {"schwarz", "schwarz", "black", "", "", shade | animal},
    {"schwer", "schwer", "heavy", "schwerer", "heavier", furniture | container | opening},
    {"warm", "warm", "warm", "", "", warmable | room | clothing | mass},
    {"kalt", "kalt", "cold", "", "", drink | room | warmable | mass},
    {"frisch", "frisch", "fresh", "", "", food | sweet | mass},
    {"müde", "müd", "tired", "", "", person | animal},
    {"hungrig", "hungrig", "hungry", "", "", person | animal},
    {"krank", "krank", "sick", "", "", person | animal},
    {"glücklich", "glücklich", "happy", "glücklicher", "happier", person},
    {"traurig", "traurig", "sad", "trauriger", "sadder", person},
    {"klug", "klug", "clever", "klüger", "cleverer", person | pet},
    {"teuer", "teur", "expensive", "teurer", "more expensive", clothing | vehicle | furniture | gift | switched | container | tool},
    {"dunkel", "dunkl", "dark", "", "", room | building},
};

constexpr Preposition place_table[] = {
    {"in", Case::dative, "in", room | building | area | container},
    {"auf", Case::dative, "on", surface},
    {"unter", Case::dative, "under", shelter},
    {"neben", Case::dative, "next to", landmark | furniture},
    {"hinter", Case::dative, "behind", landmark},
    {"vor", Case::dative, "in front of", landmark},
    {"an", Case::dative, "at", edge | stop},
};

constexpr Preposition goal_table[] = {
    {"in", Case::accusative, "into", room | building | area | container},
    {"auf", Case::accusative, "onto", surface},
    {"unter", Case::accusative, "under", shelter},
    {"neben", Case::accusative, "next to", landmark | furniture},
    {"hinter", Case::accusative, "behind", landmark},
    {"vor", Case::accusative, "in front of", landmark},
    {"an", Case::accusative, "to", edge},
    {"zu", Case::dative, "to", target},
    {"aus", Case::dative, "out of", room | building | area},
    {"durch", Case::accusative, "through", passage},
    {"über", Case::accusative, "across", crossing},
    {"nach", Case::dative, "to", 0},
};

constexpr Pair habitual_table[] = {{"am Morgen", "in the morning"}, {"am Abend", "in the evening"},    {"in der Nacht", "at night"},
                                   {"jeden Tag", "every day"},      {"jeden Morgen", "every morning"}, {"heute", "today"},
                                   {"im Sommer", "in summer"},      {"im Winter", "in winter"}};
constexpr Pair past_table[] = {{"gestern", "yesterday"},           {"letzte Woche", "last week"},       {"letztes Jahr", "last year"},
                               {"am Morgen", "in the morning"},    {"am Abend", "in the evening"},      {"im Sommer", "in summer"},
                               {"vor zwei Tagen", "two days ago"}, {"vor einer Stunde", "an hour ago"}, {"in der Nacht", "at night"}};
constexpr Pair coming_table[] = {{"morgen", "tomorrow"},
                                 {"heute", "today"},
                                 {"nächste Woche", "next week"},
                                 {"nächstes Jahr", "next year"},
                                 {"bald", "soon"},
                                 {"am Abend", "in the evening"},
                                 {"in drei Tagen", "in three days"}};
constexpr Pair weekday_table[] = {{"am Montag", "on Monday"},
                                  {"am Dienstag", "on Tuesday"},
                                  {"am Freitag", "on Friday"},
                                  {"am Samstag", "on Saturday"},
                                  {"am Sonntag", "on Sunday"}};
constexpr Pair frequency_table[] = {
    {"oft", "often"}, {"immer", "always"}, {"manchmal", "sometimes"}, {"selten", "rarely"}, {"nie", "never"}};
constexpr Pair manner_table[] = {{"langsam", "slowly"}, {"schnell", "quickly"}, {"leise", "quietly"}, {"vorsichtig", "carefully"}};
constexpr Pair number_table[] = {{"zwei", "two"},  {"drei", "three"},   {"vier", "four"},   {"fünf", "five"},
                                 {"sechs", "six"}, {"sieben", "seven"}, {"acht", "eight"},  {"neun", "nine"},
                                 {"zehn", "ten"},  {"elf", "eleven"},   {"zwölf", "twelve"}};

template <class Entry>
const Entry& find(std::span<const Entry> entries, std::string_view german, const char* what) {
  for (const Entry& entry : entries) {
    if (german == entry.german) return entry;
  }
  throw std::logic_error(std::string("[lexicon] no ") + what + " " + std::string(german));
}

}  // namespace

std::span<const Adjective> adjectives() { return adjective_table; }
std::span<const Verb> verbs() { return verb_table; }
std::span<const Modal> modals() { return modal_table; }
std::span<const Preposition> places() { return place_table; }
std::span<const Preposition> goals() { return goal_table; }
std::span<const Pair> habitual_times() { return habitual_table; }
std::span<const Pair> past_times() { return past_table; }
std::span<const Pair> coming_times() { return coming_table; }
std::span<const Pair> weekdays() { return weekday_table; }
std::span<const Pair> frequencies() { return frequency_table; }
std::span<const Pair> manners() { return manner_table; }
std::span<const Pair> numbers() { return number_table; }

const Adjective& adjective(std::string_view german) { return find(adjectives(), german, "adjective"); }
const Preposition& place(std::string_view german) { return find(places(), german, "place preposition"); }
const Preposition& goal(std::string_view german) { return find(goals(), german, "goal preposition"); }

const Modal& modal(std::string_view infinitive) {
  for (const Modal& entry : modal_table) {
    if (infinitive == entry.infinitive) return entry;
  }
  throw std::logic_error("[lexicon] no modal " + std::string(infinitive));
}

bool is_one_of(const Verb& verb, std::initializer_list<std::string_view> infinitives) {
  const std::string own = full_infinitive(verb);
  return std::find(infinitives.begin(), infinitives.end(), own) != infinitives.end();
}

bool is_lasting(const Verb& verb) { return is_one_of(verb, {"gehören", "kennen", "lieben", "brauchen", "haben", "wohnen"}); }

bool is_mass(const Noun& noun) { return (noun.kinds & mass) != 0; }

// An adjective goes with a mass noun only if it says so: warm milk, but not big milk.
bool goes_with(const Adjective& adjective, const Noun& noun) {
  constexpr Kinds grammatical = mass | weak;
  return (noun.kinds & adjective.kinds & ~grammatical) != 0 && (!is_mass(noun) || (adjective.kinds & mass) != 0);
}

std::string full_infinitive(const Verb& verb) { return std::string(verb.prefix) + verb.infinitive; }

const Verb& verb(std::string_view infinitive, Frame frame) {
  for (const Verb& entry : verb_table) {
    if (entry.frame == frame && full_infinitive(entry) == infinitive) return entry;
  }
  throw std::logic_error("[lexicon] no verb " + std::string(infinitive));
}

}  // namespace tern::corpus
