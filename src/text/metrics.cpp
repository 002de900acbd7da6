#include "text/metrics.h"

#include <fmt/format.h>
#include <tern/version.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "text/pretokenize.h"
#include "text/unicode.h"

namespace tern::text {
namespace {

// Final_Sigma (The Unicode Standard, table 3-17): a cased letter before, none after, case-ignorable ones not counted.
bool is_final_sigma(const std::u32string& text, std::size_t at) {
  static const Pattern cased(R"(\A\p{Cased})"), ignorable(R"(\A\p{Case_Ignorable})");
  const auto is = [](const Pattern& pattern, char32_t c) {
    if (c >= 0xD800 && c < 0xE000) return false;  // a byte that is not UTF-8 (to_code_points)
    std::string bytes;
    append_utf8(bytes, c);
    return pattern.matches(bytes);
  };
  std::size_t before = at, after = at + 1;
  while (before > 0 && is(ignorable, text[before - 1])) --before;
  if (before == 0 || !is(cased, text[before - 1])) return false;
  while (after < text.size() && is(ignorable, text[after])) ++after;
  return after == text.size() || !is(cased, text[after]);
}

}  // namespace

// utf8proc maps single characters; the two cases that depend on context or give two characters, sigma and U+0130, are handled here.
// Decoding and encoding are in unicode.h instead: utf8proc does not say how many ill-formed bytes make one U+FFFD, and a program that
// scores nothing so goes without its tables of 340 KB.
std::string lower(std::string_view text) {
  const std::u32string points = to_code_points(text);
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < points.size(); ++i) {
    const char32_t c = points[i];
    if (c == 0x130) {
      out += "i\xCC\x87";
    } else if (c == 0x3A3) {
      append_utf8(out, is_final_sigma(points, i) ? 0x3C2 : 0x3C3);
    } else if (c >= 0xDC00 && c < 0xE000) {
      out.push_back(static_cast<char>(c - 0xDC00));
    } else {
      append_utf8(out, static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    }
  }
  return out;
}

namespace {

constexpr const char* version = "tern-" TERN_VERSION_STRING;

bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_point(char c) noexcept { return c == '.' || c == ','; }

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  std::size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string out;
  std::size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    out.append(text, done, at - done).append(to);
    done = at + from.size();
  }
  text = out.append(text, done);
}

// The four rules of mteval-v13a's tokeniser, one pass each, in its order. The rules split next to ASCII characters alone, so that a pass
// over bytes gives the same text as one over characters.
std::string split_punctuation(const std::string& text) {
  std::string spaced;
  for (const char c : text) {  // ASCII punctuation but ' , - .
    const bool apart = (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') ||
                       (c >= ':' && c <= '@') || c == '/';
    if (apart) {
      spaced.append({' ', c, ' '});
    } else {
      spaced.push_back(c);
    }
  }
  // Replaces two neighbours a and b for which applies(a, b) holds by `pattern`, such as "a b ", and continues after both.
  const auto rewrite = [](const std::string& in, auto&& applies, std::string_view pattern) {
    std::string out;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (i + 1 == in.size() || !applies(in[i], in[i + 1])) {
        out.push_back(in[i]);
        continue;
      }
      for (const char c : pattern) out.push_back(c == 'a' ? in[i] : c == 'b' ? in[i + 1] : c);
      ++i;
    }
    return out;
  };
  spaced = rewrite(spaced, [](char a, char b) { return !is_digit(a) && is_point(b); }, "a b ");
  spaced = rewrite(spaced, [](char a, char b) { return is_point(a) && !is_digit(b); }, " a b");
  return rewrite(spaced, [](char a, char b) { return is_digit(a) && b == '-'; }, "a b ");
}

// N-grams that two sequences share, each counted as often as it is in both.
template <std::size_t Width>
std::int64_t shared_ngrams(std::span<const std::uint32_t> a, std::span<const std::uint32_t> b, std::size_t n) {
  using Ngram = std::array<std::uint32_t, Width>;
  const auto sorted = [n](std::span<const std::uint32_t> sequence) {
    std::vector<Ngram> ngrams;
    for (std::size_t i = 0; i + n <= sequence.size(); ++i) {
      Ngram ngram{};
      std::copy_n(sequence.begin() + static_cast<std::ptrdiff_t>(i), n, ngram.begin());
      ngrams.push_back(ngram);
    }
    std::sort(ngrams.begin(), ngrams.end());
    return ngrams;
  };
  const std::vector<Ngram> of_a = sorted(a), of_b = sorted(b);
  std::int64_t shared = 0;
  for (auto i = of_a.begin(), j = of_b.begin(); i != of_a.end() && j != of_b.end();) {
    if (*i < *j) {
      ++i;
    } else if (*j < *i) {
      ++j;
    } else {
      ++shared, ++i, ++j;
    }
  }
  return shared;
}

std::int64_t ngram_count(std::size_t length, std::size_t n) noexcept { return length >= n ? static_cast<std::int64_t>(length - n + 1) : 0; }

void check_segments(const char* metric, std::span<const std::string> hypotheses, std::span<const std::string> references) {
  if (hypotheses.size() == references.size() && !hypotheses.empty()) return;
  throw std::invalid_argument(fmt::format("[{}] expected as many hypotheses as references, at least one, but got {} and {}", metric,
                                          hypotheses.size(), references.size()));
}

double floored_log(double x) noexcept { return x == 0 ? -9999999999.0 : std::log(x); }

}  // namespace

std::string tokenize_13a(std::string_view line) {
  std::string text(strip_right(line));
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  replace_all(text, "&quot;", "\"");
  replace_all(text, "&amp;", "&");
  replace_all(text, "&lt;", "<");
  replace_all(text, "&gt;", ">");
  std::string joined;
  for_each_word(split_punctuation(' ' + text + ' '), [&](std::string_view word) {
    if (!joined.empty()) joined.push_back(' ');
    joined.append(word);
  });
  return joined;
}

Bleu bleu(std::span<const std::string> hypotheses, std::span<const std::string> references, const MetricOptions& options) {
  check_segments("bleu", hypotheses, references);
  Bleu result;
  result.lowercase = options.lowercase;
  std::unordered_map<std::string, std::uint32_t> numbers;
  const auto tokens = [&](const std::string& line) {
    std::vector<std::uint32_t> out;
    for_each_word(tokenize_13a(options.lowercase ? lower(line) : line), [&](std::string_view word) {
      out.push_back(numbers.emplace(word, static_cast<std::uint32_t>(numbers.size())).first->second);
    });
    return out;
  };
  for (std::size_t i = 0; i < hypotheses.size(); ++i) {
    const std::vector<std::uint32_t> hyp = tokens(hypotheses[i]), ref = tokens(references[i]);
    result.hyp_length += static_cast<std::int64_t>(hyp.size());
    result.ref_length += static_cast<std::int64_t>(ref.size());
    for (std::size_t n = 1; n <= 4; ++n) {
      result.correct[n - 1] += shared_ngrams<4>(hyp, ref, n);
      result.total[n - 1] += ngram_count(hyp.size(), n);
    }
  }
  if (result.hyp_length < result.ref_length) {
    const auto hyp = static_cast<double>(result.hyp_length), ref = static_cast<double>(result.ref_length);
    result.brevity_penalty = hyp > 0 ? std::exp(1 - ref / hyp) : 0;
  }
  if (std::all_of(result.correct.begin(), result.correct.end(), [](std::int64_t c) { return c == 0; })) return result;
  double smoothing = 1;
  for (std::size_t n = 0; n < 4 && result.total[n] > 0; ++n) {
    const auto total = static_cast<double>(result.total[n]);
    if (result.correct[n] == 0) smoothing *= 2;
    result.precisions[n] = result.correct[n] == 0 ? 100 / (smoothing * total) : 100 * static_cast<double>(result.correct[n]) / total;
  }
  double logs = 0;
  for (const double precision : result.precisions) logs += floored_log(precision);
  result.score = result.brevity_penalty * std::exp(logs / 4);
  return result;
}

Chrf chrf(std::span<const std::string> hypotheses, std::span<const std::string> references, const MetricOptions& options) {
  check_segments("chrf", hypotheses, references);
  constexpr std::size_t orders = 6;
  std::array<std::int64_t, orders> hyp_counts{}, ref_counts{}, matches{};
  const auto characters = [&](const std::string& line) {
    std::vector<std::uint32_t> out;
    for (const char32_t c : to_code_points(options.lowercase ? lower(line) : line)) {
      if (!is_python_space(c)) out.push_back(c);
    }
    return out;
  };
  for (std::size_t i = 0; i < hypotheses.size(); ++i) {
    const std::vector<std::uint32_t> hyp = characters(hypotheses[i]), ref = characters(references[i]);
    for (std::size_t n = 1; n <= orders; ++n) {
      // As sacreBLEU: the precision of an order leaves out a segment whose reference is too short for that order.
      if (ref.size() >= n) hyp_counts[n - 1] += ngram_count(hyp.size(), n);
      ref_counts[n - 1] += ngram_count(ref.size(), n);
      matches[n - 1] += shared_ngrams<orders>(hyp, ref, n);
    }
  }
  double precision = 0, recall = 0;
  int effective = 0;
  for (std::size_t n = 0; n < orders; ++n) {
    if (hyp_counts[n] == 0 || ref_counts[n] == 0) continue;
    precision += static_cast<double>(matches[n]) / static_cast<double>(hyp_counts[n]);
    recall += static_cast<double>(matches[n]) / static_cast<double>(ref_counts[n]);
    ++effective;
  }
  Chrf result;
  result.lowercase = options.lowercase;
  if (precision + recall > 0) {
    precision /= effective;
    recall /= effective;
    constexpr double beta2 = 2 * 2;
    result.score = 100 * (1 + beta2) * precision * recall / (beta2 * precision + recall);
  }
  return result;
}

std::string Bleu::signature() const {
  return fmt::format("nrefs:1|case:{}|eff:no|tok:13a|smooth:exp|version:{}", lowercase ? "lc" : "mixed", version);
}

std::string Chrf::signature() const {
  return fmt::format("nrefs:1|case:{}|eff:yes|nc:6|nw:0|space:no|version:{}", lowercase ? "lc" : "mixed", version);
}

std::string format(const Bleu& bleu, int decimals) {
  const auto& p = bleu.precisions;
  const double ratio = bleu.ref_length > 0 ? static_cast<double>(bleu.hyp_length) / static_cast<double>(bleu.ref_length) : 0;
  return fmt::format("BLEU|{} = {:.{}f} {:.1f}/{:.1f}/{:.1f}/{:.1f} (BP = {:.3f} ratio = {:.3f} hyp_len = {} ref_len = {})",
                     bleu.signature(), bleu.score, decimals, p[0], p[1], p[2], p[3], bleu.brevity_penalty, ratio, bleu.hyp_length,
                     bleu.ref_length);
}

std::string format(const Chrf& chrf, int decimals) { return fmt::format("chrF2|{} = {:.{}f}", chrf.signature(), chrf.score, decimals); }

}  // namespace tern::text
