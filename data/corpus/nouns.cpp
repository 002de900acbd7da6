#include <stdexcept>

#include "lexicon.h"

namespace tern::corpus {
namespace {

using namespace kind;
constexpr auto m = Gender::masculine;
constexpr auto f = Gender::feminine;
constexpr auto n = Gender::neuter;

constexpr Noun noun_table[] = {
    // People.
    {"Mann", m, "Männer", "Mannes", "man", "men", adult},
    {"Frau", f, "Frauen", "Frau", "woman", "women", adult},
    {"Kind", n, "Kinder", "Kindes", "child", "children", related | young},
    {"Junge", m, "Jungen", "Jungen", "boy", "", young | weak},
    {"Mädchen", n, "Mädchen", "Mädchens", "girl", "", young},
    {"Lehrer", m, "Lehrer", "Lehrers", "teacher", "", related | adult | profession},
    {"Lehrerin", f, "Lehrerinnen", "Lehrerin", "teacher", "", related | adult | profession},
    {"Arzt", m, "Ärzte", "Arztes", "doctor", "", related | adult | profession},
    {"Ärztin", f, "Ärztinnen", "Ärztin", "doctor", "", related | adult | profession},
    {"Bäcker", m, "Bäcker", "Bäckers", "baker", "", related | adult | profession},
    {"Nachbar", m, "Nachbarn", "Nachbarn", "neighbour", "", related | adult | weak},
    {"Nachbarin", f, "Nachbarinnen", "Nachbarin", "neighbour", "", related | adult},
    {"Freund", m, "Freunde", "Freundes", "friend", "", kin},
    {"Freundin", f, "Freundinnen", "Freundin", "friend", "", kin},
    {"Vater", m, "", "Vaters", "father", "", kin},
    {"Mutter", f, "", "Mutter", "mother", "", kin},
    {"Bruder", m, "Brüder", "Bruders", "brother", "", kin},
    {"Schwester", f, "Schwestern", "Schwester", "sister", "", kin},
    {"Sohn", m, "Söhne", "Sohnes", "son", "", kin},
    {"Tochter", f, "Töchter", "Tochter", "daughter", "", kin},

    // Animals.
    {"Hund", m, "Hunde", "Hundes", "dog", "", animal | pet},
    {"Katze", f, "Katzen", "Katze", "cat", "", animal | pet},
    {"Vogel", m, "Vögel", "Vogels", "bird", "", animal},
    {"Pferd", n, "Pferde", "Pferdes", "horse", "", animal},

    // Food and drink.
    {"Apfel", m, "Äpfel", "Apfels", "apple", "", food | sweet},
    {"Kuchen", m, "Kuchen", "Kuchens", "cake", "", food | sweet},
    {"Brot", n, "", "Brotes", "bread", "", food | mass},
    {"Wasser", n, "", "Wassers", "water", "", drink | warmable | mass},
    {"Milch", f, "", "Milch", "milk", "", drink | warmable | mass},
    {"Kaffee", m, "", "Kaffees", "coffee", "", drink | warmable | mass},
    {"Saft", m, "", "Saftes", "juice", "", drink | sweet | mass},

    // What is read, worn and carried.
    {"Buch", n, "Bücher", "Buches", "book", "", text | written | flat | gift},
    {"Brief", m, "Briefe", "Briefes", "letter", "", text | written | flat},
    {"Zeitung", f, "Zeitungen", "Zeitung", "newspaper", "", text | flat},
    {"Bild", n, "Bilder", "Bildes", "picture", "", picture | flat | gift},
    {"Mantel", m, "Mäntel", "Mantels", "coat", "", clothing | coloured | flat},
    {"Jacke", f, "Jacken", "Jacke", "jacket", "", clothing | coloured | flat | gift},
    {"Hut", m, "Hüte", "Hutes", "hat", "", clothing | coloured | flat | gift},
    {"Kleid", n, "Kleider", "Kleides", "dress", "", clothing | coloured | flat},
    {"Schuh", m, "Schuhe", "Schuhes", "shoe", "", clothing | coloured},
    {"Schlüssel", m, "Schlüssel", "Schlüssels", "key", "", tool | flat},
    {"Tasche", f, "Taschen", "Tasche", "bag", "", container | coloured | flat | gift},
    {"Kiste", f, "Kisten", "Kiste", "box", "", container | surface | coloured | upright},
    {"Blume", f, "Blumen", "Blume", "flower", "", flower | coloured | gift},
    {"Baum", m, "Bäume", "Baumes", "tree", "", plant | shelter | landmark},

    // Furniture and parts of a house.
    {"Tisch", m, "Tische", "Tisches", "table", "", furniture | surface | shelter | edge},
    {"Stuhl", m, "Stühle", "Stuhles", "chair", "", furniture | surface | seat},
    {"Bett", n, "Betten", "Bettes", "bed", "", furniture | surface | shelter | seat},
    {"Bank", f, "Bänke", "Bank", "bench", "", furniture | surface | shelter | seat},
    {"Schrank", m, "Schränke", "Schrankes", "cupboard", "", furniture | container | opening},
    {"Lampe", f, "Lampen", "Lampe", "lamp", "", switched | upright},
    {"Radio", n, "Radios", "Radios", "radio", "", switched | upright},
    {"Uhr", f, "Uhren", "Uhr", "clock", "", tool},
    {"Tür", f, "Türen", "Tür", "door", "", opening | landmark | edge | coloured},
    {"Haustür", f, "Haustüren", "Haustür", "front door", "", opening | landmark | edge | coloured},
    {"Tor", n, "Tore", "Tores", "gate", "", opening | landmark},
    {"Fenster", n, "Fenster", "Fensters", "window", "", opening | edge},

    // Vehicles and places.
    {"Auto", n, "Autos", "Autos", "car", "", vehicle | landmark | coloured},
    {"Fahrrad", n, "Fahrräder", "Fahrrades", "bicycle", "", vehicle | coloured | gift},
    {"Zug", m, "Züge", "Zuges", "train", "", pulled},
    {"Haus", n, "Häuser", "Hauses", "house", "", building | landmark | target},
    {"Küche", f, "Küchen", "Küche", "kitchen", "", room},
    {"Zimmer", n, "Zimmer", "Zimmers", "room", "", room},
    {"Keller", m, "Keller", "Kellers", "cellar", "", room},
    {"Büro", n, "Büros", "Büros", "office", "", room},
    {"Garten", m, "Gärten", "Gartens", "garden", "", area | passage},
    {"Stadt", f, "Städte", "Stadt", "town", "", area | passage},
    {"Dorf", n, "Dörfer", "Dorfes", "village", "", area | passage},
    {"Schule", f, "Schulen", "Schule", "school", "", building | landmark},
    {"Hotel", n, "Hotels", "Hotels", "hotel", "", building | landmark | target},
    {"Museum", n, "Museen", "Museums", "museum", "", building | landmark | target},
    {"Bahnhof", m, "Bahnhöfe", "Bahnhofs", "station", "", landmark | target | stop},
    {"Markt", m, "Märkte", "Marktes", "market", "", target},
    {"Straße", f, "Straßen", "Straße", "street", "", crossing},
    {"Sonne", f, "", "Sonne", "sun", "", sky | mass},
    {"Zeit", f, "", "Zeit", "time", "", sky | mass},
};

constexpr Modifier modifier_table[] = {
    {"Küchen", "kitchen", "Tisch Stuhl Tür Fenster Lampe Uhr Schrank Bank Radio"},
    {"Garten", "garden", "Tisch Stuhl Tür Fenster Lampe Uhr Bank Tor Haus"},
    {"Büro", "office", "Tisch Stuhl Tür Fenster Lampe Uhr Schrank Schlüssel Radio"},
    {"Keller", "cellar", "Tür Fenster Lampe Schrank Schlüssel Radio"},
    {"Schul", "school", "Tisch Stuhl Tür Fenster Uhr Bank Tor Schlüssel Tasche Buch Garten"},
    {"Hotel", "hotel", "Tür Fenster Uhr Schlüssel Bett Garten Zimmer Küche Radio"},
    {"Holz", "wooden", "Tisch Stuhl Tür Lampe Schrank Bank Tor Haus Bett Kiste"},
    {"Glas", "glass", "Tisch Tür Lampe Schrank Haus"},
    {"Metall", "metal", "Tisch Stuhl Tür Lampe Schrank Bank Tor Bett Kiste"},
    {"Leder", "leather", "Stuhl Tasche Jacke Schuh Hut Mantel"},
    {"Sommer", "summer", "Jacke Schuh Hut Mantel Kleid Haus Blume"},
    {"Winter", "winter", "Jacke Schuh Hut Mantel Kleid Garten"},
    {"Kinder", "children's", "Tisch Stuhl Bett Zimmer Buch Jacke Schuh Mantel Fahrrad"},
    {"Stadt", "town", "Museum Tor Haus Garten"},
    {"Dorf", "village", "Schule Straße Museum Lehrer Bäcker Arzt"},
    {"Apfel", "apple", "Baum Kuchen Saft"},
};

constexpr Name name_table[] = {{"Anna", true},  {"Maria", true},  {"Lena", true},    {"Emma", true},
                               {"Paul", false}, {"Peter", false}, {"Martin", false}, {"Tim", false}};

constexpr Pair city_table[] = {
    {"Berlin", "Berlin"}, {"Hamburg", "Hamburg"}, {"München", "Munich"}, {"Wien", "Vienna"}, {"Köln", "Cologne"}};

}  // namespace

std::span<const Noun> nouns() { return noun_table; }
std::span<const Modifier> modifiers() { return modifier_table; }
std::span<const Name> names() { return name_table; }
std::span<const Pair> cities() { return city_table; }

const Noun& noun(std::string_view german) {
  for (const Noun& entry : noun_table) {
    if (german == entry.german) return entry;
  }
  throw std::logic_error("[lexicon] no noun " + std::string(german));
}

bool goes_with(const Modifier& modifier, const Noun& head) {
  const std::string heads = std::string(" ") + modifier.heads + " ";
  return heads.find(std::string(" ") + head.german + " ") != std::string::npos;
}

}  // namespace tern::corpus
