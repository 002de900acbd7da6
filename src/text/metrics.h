#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tern::text {

/// Options of bleu() and chrf().
struct MetricOptions {
  bool lowercase = false;  ///< compare in lower case
};

/// Corpus BLEU (Papineni et al. 2002) with one reference: 13a tokeniser, orders 1 to 4, exponential smoothing, no
/// effective order. Equal to sacreBLEU 2 (Post 2018).
struct Bleu {
  double score = 0;                       ///< 0 to 100
  std::array<std::int64_t, 4> correct{};  ///< n-grams of the hypotheses that the references have, n = 1 .. 4
  std::array<std::int64_t, 4> total{};    ///< n-grams of the hypotheses
  std::array<double, 4> precisions{};     ///< per cent, smoothed
  double brevity_penalty = 1;             ///< exp(1 - ref_length / hyp_length) where that is below 1
  std::int64_t hyp_length = 0;            ///< in 13a tokens
  std::int64_t ref_length = 0;            ///< in 13a tokens
  bool lowercase = false;                 ///< as in MetricOptions
  /// "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:tern-X.Y.Z"
  std::string signature() const;
};

/// Corpus chrF2 (Popovic 2015): character orders 1 to 6 without white space, beta 2, effective order. Equal to
/// sacreBLEU 2.
struct Chrf {
  double score = 0;        ///< 0 to 100
  bool lowercase = false;  ///< as in MetricOptions
  /// "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:tern-X.Y.Z"
  std::string signature() const;
};

/// BLEU of plain text (not tokenised), one hypothesis and one reference a segment. Throws std::invalid_argument if the two lists are empty
/// or of different lengths.
Bleu bleu(std::span<const std::string> hypotheses, std::span<const std::string> references, const MetricOptions& options = {});
/// chrF2 of plain text, one hypothesis and one reference a segment. Throws std::invalid_argument as bleu does.
Chrf chrf(std::span<const std::string> hypotheses, std::span<const std::string> references, const MetricOptions& options = {});

/// "BLEU|<signature> = 40.69 71.8/47.9/33.8/24.2 (BP = 1.000 ratio = 1.002 hyp_len = 12988 ref_len = 12968)"
std::string format(const Bleu& bleu, int decimals = 2);
/// "chrF2|<signature> = 60.57"
std::string format(const Chrf& chrf, int decimals = 2);

/// Full lower-casing, independent of any locale, as Python's str.lower(): U+0130 becomes two code points and a capital sigma at the end of
/// a word becomes the final form.
std::string lower(std::string_view text);

/// The tokens of mteval-v13a, joined by single spaces.
std::string tokenize_13a(std::string_view line);

}  // namespace tern::text
