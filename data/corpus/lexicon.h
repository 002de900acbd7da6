#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

// The words of the embedded corpus: every German word stands here once, with the forms that no rule gives, beside
// its one English translation. The kinds say which words make sense together.
namespace tern::corpus {

enum class Gender : std::uint8_t { masculine, feminine, neuter };
enum class Case : std::uint8_t { nominative, accusative, dative, genitive };

using Kinds = std::uint64_t;

// What a noun is, as bits. A verb names the kinds of its subject and object, an adjective and a preposition the
// kinds that they go with.
namespace kind {
constexpr Kinds bit(int index) { return Kinds{1} << index; }
constexpr Kinds adult = bit(0), young = bit(1), kin = bit(2), profession = bit(3), related = bit(4), animal = bit(5);
constexpr Kinds pet = bit(6), food = bit(7), drink = bit(8), sweet = bit(9), warmable = bit(10), text = bit(11);
constexpr Kinds written = bit(12), picture = bit(13), flower = bit(14), plant = bit(15), flat = bit(16), upright = bit(17);
constexpr Kinds tool = bit(18), gift = bit(19), clothing = bit(20), coloured = bit(21), furniture = bit(22), seat = bit(23);
constexpr Kinds surface = bit(24), shelter = bit(25), opening = bit(26), edge = bit(27), container = bit(28), switched = bit(29);
constexpr Kinds vehicle = bit(30), pulled = bit(31), room = bit(32), building = bit(33), area = bit(34), landmark = bit(35);
constexpr Kinds target = bit(36), stop = bit(37), passage = bit(38), crossing = bit(39), sky = bit(40);
constexpr Kinds mass = bit(60);  // neither plural nor indefinite article
constexpr Kinds weak = bit(61);  // masculine n-declension: the plural form in every case but the nominative
constexpr Kinds person = adult | young | kin;
}  // namespace kind

struct Noun {
  const char* german;
  Gender gender;
  const char* plural;    // "" where none is used
  const char* genitive;  // singular
  const char* english;
  const char* english_plural;  // "" when the rule gives it
  Kinds kinds;
};

// The first part of a compound, with its linking letters: Küchen + Tisch is Küchentisch, a kitchen table.
struct Modifier {
  const char* german;
  const char* english;
  const char* heads;  // the nouns that it may precede, separated by spaces
};

struct Adjective {
  const char* german;
  const char* stem;  // before an ending: dunkel, but dunkl-e
  const char* english;
  const char* comparative;  // "" where none is used
  const char* english_comparative;
  Kinds kinds;
};

enum class Frame : std::uint8_t {
  intransitive,
  transitive,     // accusative object
  dative,         // dative object
  ditransitive,   // dative recipient, accusative object
  motion,         // goes somewhere
  position,       // is somewhere
  placing,        // accusative object, put somewhere
  prepositional,  // object behind a preposition of the verb's own
  copula,
  becoming,
  weather,
  existential,  // es gibt
  reporting,    // dass-clause
  attempting,   // infinitive with zu
};

using Persons = std::array<const char*, 5>;  // ich, du, er, wir, sie

struct Preposition {
  const char* german;
  Case governs;
  const char* english;
  Kinds kinds;
};

struct Verb {
  const char* infinitive;  // without a separable prefix
  const char* prefix;      // separable, or ""
  const char* du;          // "" when the rules give du and er
  const char* er;
  const char* participle;
  bool perfect_with_sein;
  const char* english;
  const char* english_past;  // "" when regular
  Frame frame;
  Kinds subject;
  Kinds object = 0;
  const char* imperative = "";  // "" when it is stem + e
  const Persons* present = nullptr;
  const Persons* preterite = nullptr;  // sein and haben use it where other verbs use the perfect
  const Preposition* preposition = nullptr;
};

struct Modal {
  const char* infinitive;
  Persons present;
  const char* english;           // an auxiliary (can), or a full verb with to (want to)
  const char* english_negative;  // what stands for it under negation
  bool auxiliary;
  bool negative_auxiliary;
};

struct Name {
  const char* text;
  bool female;
};

struct Pair {
  const char* german;
  const char* english;
};

std::span<const Noun> nouns();
std::span<const Modifier> modifiers();
std::span<const Adjective> adjectives();
std::span<const Verb> verbs();
std::span<const Modal> modals();
std::span<const Name> names();
std::span<const Pair> cities();
std::span<const Preposition> places();  // dative or fixed: where something is
std::span<const Preposition> goals();   // where something goes
std::span<const Pair> habitual_times();
std::span<const Pair> past_times();
std::span<const Pair> coming_times();
std::span<const Pair> weekdays();
std::span<const Pair> frequencies();
std::span<const Pair> manners();
std::span<const Pair> numbers();  // two to twelve
extern const Persons haben_present, sein_present, werden_present;

// The entry with that German dictionary form; a verb is named with its prefix. Throws std::logic_error where none is.
const Noun& noun(std::string_view german);
const Verb& verb(std::string_view infinitive, Frame frame);
const Adjective& adjective(std::string_view german);
const Preposition& place(std::string_view german);
const Preposition& goal(std::string_view german);

const Modal& modal(std::string_view infinitive);

std::string full_infinitive(const Verb& verb);
bool is_one_of(const Verb& verb, std::initializer_list<std::string_view> infinitives);
bool is_lasting(const Verb& verb);  // a state: no modal, no future, no time of day
bool is_mass(const Noun& noun);
bool goes_with(const Adjective& adjective, const Noun& noun);
bool goes_with(const Modifier& modifier, const Noun& head);

}  // namespace tern::corpus
