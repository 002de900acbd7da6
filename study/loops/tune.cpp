#include "tune.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "backend/error.h"
#include "counts.h"
#include "interpret.h"

namespace study::loops {

namespace {

// Bounds of a candidate are in log2, as its features.
constexpr double gain_to_choose = 1.03, most_steps = 6, most_code = 7.5, least_difference = 0.5;
constexpr double of_cycles = 0.25;  // the share of the estimate that a prediction begins with; trees see it as well

std::size_t below(Random& random, std::size_t n) { return static_cast<std::size_t>(random() % n); }
template <class T>
const T& one_of(const std::vector<T>& all, Random& random) {
  return all[below(random, all.size())];
}
/// Another space than before.
Tensor::Kind other(Tensor::Kind space) { return space == Tensor::Kind::shared ? Tensor::Kind::registers : Tensor::Kind::shared; }

/// A line for a program, from the loops and tensors of one of its statements.
Line random_line(const Program& p, bool is_gpu, Random& random) {
  const std::vector<Site> sites = sites_of(p);
  const Site& site = one_of(sites, random);
  if (site.loops.empty()) return {.primitive = "unroll", .names = {p.loops[0].name}};
  const auto a_loop = [&] { return p.loops[static_cast<std::size_t>(one_of(site.loops, random))].name; };
  const auto innermost = [&] { return p.loops[static_cast<std::size_t>(site.loops.back())].name; };
  std::vector<std::string> tensors = {p.tensors[static_cast<std::size_t>(site.statement->to.tensor)].name};
  for_each_read(site.statement->value, [&](const Access& a) { tensors.push_back(p.tensors[static_cast<std::size_t>(a.tensor)].name); });
  const auto space = [&] { return below(random, 2) == 0 ? Tensor::Kind::shared : Tensor::Kind::registers; };
  switch (below(random, 10)) {
    case 0:
    case 1:
    case 2: {
      const std::string name = below(random, 2) == 0 ? innermost() : a_loop();
      std::string fresh = name;
      const auto is_taken = [&](const Loop& l) { return l.name == fresh; };
      for (int i = 1; std::any_of(p.loops.begin(), p.loops.end(), is_taken); ++i) fresh = fmt::format("{}{}", name, i);
      const bool is_inner = below(random, 2) == 0;
      return {.primitive = "split",
              .names = {name},
              .factors = {std::int64_t{2} << below(random, 7)},
              .results = {is_inner ? name : fresh, is_inner ? fresh : name}};
    }
    case 3:
    case 4: return {.primitive = "reorder", .names = {a_loop(), a_loop()}};
    case 5: return {.primitive = "vectorise", .names = {innermost()}};
    case 6: return {.primitive = "unroll", .names = {a_loop()}};
    case 7: return {.primitive = "keep", .names = {one_of(tensors, random)}, .place = space(), .loop = a_loop()};
    case 8:
      if (below(random, 2) == 0) return {.primitive = "part", .names = {tensors[0]}, .of = {a_loop()}, .place = space()};
      return {.primitive = "at", .names = {a_loop()}, .of = {tensors.back()}};
    default:
      return {.primitive = "bind",
              .names = {a_loop()},
              .binds = {!is_gpu                 ? Bind::cores
                        : below(random, 2) == 0 ? Bind::block
                                                : Bind::thread}};
  }
}

/// A line with another factor, name, place or order.
void change(Line& line, const Program& p, bool is_gpu, Random& random) {
  const auto a_loop = [&] { return p.loops[below(random, p.loops.size())].name; };
  const bool is_list = line.names.size() > 1;
  const std::size_t at = below(random, line.names.size());
  if (line.primitive == "split") {
    std::int64_t& factor = line.factors[below(random, line.factors.size())];
    std::int64_t next = below(random, 2) == 0 ? factor * 2 : factor / 2;
    if (below(random, 3) == 0) {  // one that divides the loop
      const auto l = std::find_if(p.loops.begin(), p.loops.end(), [&](const Loop& x) { return x.name == line.names[0]; });
      for (next = 2 + static_cast<std::int64_t>(below(random, 128)); next > 2 && l->extent % next != 0;) --next;
    }
    factor = std::clamp<std::int64_t>(next, 2, 1024);
  } else if (line.primitive == "reorder") std::swap(line.names[at], line.names[below(random, line.names.size())]);
  else if (line.primitive == "bind" && is_gpu && below(random, 2) == 0)
    line.binds[at] = line.binds[at] == Bind::block ? Bind::thread : Bind::block;
  else if (line.primitive == "bind" && is_list) {
    line.names.erase(line.names.begin() + static_cast<std::ptrdiff_t>(at));
    line.binds.erase(line.binds.begin() + static_cast<std::ptrdiff_t>(at));
  } else if (line.primitive == "keep" && !line.loop.empty()) {
    if (const std::size_t what = below(random, 4); what == 0) line.place = other(*line.place);
    else if (what == 1) line.pad = line.pad == 0 ? 1 + 3 * static_cast<std::int64_t>(below(random, 2)) : 0;
    else line.loop = a_loop();
  } else if (line.primitive == "part") {
    if (below(random, 3) == 0) line.place = other(*line.place);
    else if (line.of.size() > 1) line.of.erase(line.of.begin() + static_cast<std::ptrdiff_t>(below(random, line.of.size())));
    else line.of.push_back(a_loop());
  } else if (line.primitive == "vectorise" || line.primitive == "unroll") {
    if (is_list && below(random, 2) == 0) line.names.erase(line.names.begin() + static_cast<std::ptrdiff_t>(at));
    else line.names.push_back(a_loop());
  } else line.names[at] = a_loop();
}

/// Ranks from 0; equal values have the mean of theirs.
std::vector<double> ranks(const std::vector<double>& x) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return x[a] < x[b]; });
  std::vector<double> ranks(x.size());
  for (std::size_t i = 0, end = 0; i < order.size(); i = end) {
    while (end < order.size() && x[order[end]] == x[order[i]]) ++end;
    for (std::size_t j = i; j < end; ++j) ranks[order[j]] = static_cast<double>(i + end - 1) / 2;
  }
  return ranks;
}

/// True if the interpreter finds no fault at small odd sizes.
bool is_right(const std::string& name, const std::vector<Line>& lines) try {
  check_schedule(name, [&](const Program& plain) { return schedule(plain, lines, "schedule"); });
  return true;
} catch (const tern::Error&) {
  return false;
}

std::string name_of(const std::vector<std::int64_t>& sizes) { return fmt::format("{}", fmt::join(sizes, ",")); }

}  // namespace

std::string to_text(const std::vector<Line>& lines) {
  std::vector<std::string> parts;
  for (const Line& line : lines) parts.push_back(to_text(line));
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::vector<Line> lines_of(std::string text) {
  std::replace(text.begin(), text.end(), ';', '\n');
  return parse_schedule(text, "schedule");
}

std::vector<Line> mutate(const Program& plain, const std::vector<Line>& lines, bool is_gpu, Random& random) {
  std::vector<Line> result = lines;
  const std::size_t what = lines.empty() ? 9 : below(random, 10);
  const std::size_t at = below(random, lines.size() + (what > 6 ? 1 : 0));
  Program p = plain;
  for (std::size_t i = 0; i < at; ++i) p = apply(p, lines[i]);
  const auto place = result.begin() + static_cast<std::ptrdiff_t>(at);
  if (what == 0) result.erase(place);
  else if (what <= 6) change(*place, p, is_gpu, random);
  else result.insert(place, random_line(p, is_gpu, random));
  for (std::size_t i = 0; i < result.size(); ++i) result[i].number = static_cast<int>(i) + 1;
  return result;
}

// --- The model ---

Example example(const Timed& row) {
  const Program plain = kernel(row.kernel, row.sizes);
  Program p = plain;
  for (const Line& line : row.lines) p = apply(p, line);
  return {row.kernel, name_of(row.sizes), features(p, statements_run(plain)), row.ms};
}

Model::Model(const std::vector<Example>& examples) {
  const auto missed = [](const Example& e) { return std::log2(e.ms) - of_cycles * e.features[feature::cycles]; };
  std::map<std::pair<std::string, std::string>, std::pair<double, double>> kernels;  // sums and counts
  for (const Example& e : examples) {
    auto& [sum, count] = kernels[{e.kernel, e.sizes}];
    sum += missed(e), ++count;
  }
  std::vector<std::vector<double>> rows;
  std::vector<double> targets;
  for (const Example& e : examples) {
    const auto& [sum, count] = kernels.at({e.kernel, e.sizes});
    rows.push_back(e.features);
    targets.push_back(missed(e) - sum / count);
  }
  trees_ = Trees(rows, targets);
}
double Model::predict(const std::vector<double>& features) const {
  return of_cycles * features[feature::cycles] + trees_.predict(features);
}

double spearman(const std::vector<double>& x, const std::vector<double>& y) {
  const std::vector<double> a = ranks(x), b = ranks(y);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double ab = 0, aa = 0, bb = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    ab += (a[i] - mean) * (b[i] - mean);
    aa += (a[i] - mean) * (a[i] - mean);
    bb += (b[i] - mean) * (b[i] - mean);
  }
  return aa * bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

std::map<std::string, Ranking> rank(const std::vector<Example>& examples) {
  std::map<std::string, Ranking> result;
  std::map<std::string, std::set<std::string>> kernels;
  for (const Example& e : examples) kernels[e.kernel].insert(e.sizes);
  const auto without = [&](const std::function<bool(const Example&)>& is_left_out) {
    std::vector<Example> rest;
    std::copy_if(examples.begin(), examples.end(), std::back_inserter(rest), [&](const Example& e) { return !is_left_out(e); });
    return Model(rest);
  };
  for (const auto& [kernel, all_sizes] : kernels) {
    Ranking& r = result[kernel];
    const Model of_others = without([&](const Example& e) { return e.kernel == kernel; });
    for (const std::string& sizes : all_sizes) {
      const auto is_meant = [&](const Example& e) { return e.kernel == kernel && e.sizes == sizes; };
      const Model model = without(is_meant);
      std::vector<double> ms, by_model, by_others;
      for (const Example& e : examples)
        if (is_meant(e))
          ms.push_back(e.ms), by_model.push_back(model.predict(e.features)), by_others.push_back(of_others.predict(e.features));
      const double share = 1.0 / static_cast<double>(all_sizes.size());
      r.spearman += share * spearman(by_model, ms);
      r.spearman_of_kind += share * spearman(by_others, ms);
      std::vector<std::size_t> order(ms.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return by_model[a] < by_model[b]; });
      double best = ms[order[0]];
      for (std::size_t i = 0; i < std::min<std::size_t>(16, order.size()); ++i) best = std::min(best, ms[order[i]]);
      r.near_best += best <= 1.05 * *std::min_element(ms.begin(), ms.end());
      r.schedules += static_cast<int>(ms.size());
      ++r.sizes;
    }
  }
  return result;
}

// --- The search ---

Candidates::Candidates(const std::string& name, const std::vector<std::int64_t>& sizes, const std::vector<Line>& first)
    : plain_(kernel(name, sizes)), work_(statements_run(plain_)) {
  Program p = schedule(plain_, first, "schedule");
  texts_.insert(to_text(p));
  all.push_back({first, p, features(p, work_)});
}

bool Candidates::add(const std::vector<Line>& lines) try {
  Program p = schedule(plain_, lines_of(to_text(lines)), "schedule");
  const std::vector<double> x = features(p, work_), &first = all[0].features;
  if (x[feature::steps_a_thread] > first[feature::steps_a_thread] + most_steps ||
      x[feature::code] > std::max(first[feature::code], most_code))
    tern::fail("loops", "expected fewer steps and less code");
  if (!texts_.insert(to_text(p)).second) return false;
  all.push_back({lines, std::move(p), x});
  return true;
} catch (const tern::Error&) {
  ++refused;
  return false;
}

std::vector<std::vector<Line>> draw(const std::string& name, const std::vector<std::vector<std::int64_t>>& sizes,
                                    const std::vector<Line>& first, std::size_t count, bool is_gpu, std::uint64_t seed) {
  Random random(seed);
  std::vector<Candidates> at;
  for (const std::vector<std::int64_t>& s : sizes) at.emplace_back(name, s, first);
  std::vector<std::vector<Line>> drawn = {first};
  std::vector<std::vector<double>> seen = {at[0].all[0].features};
  for (std::size_t tries = 0; drawn.size() < count && tries < 100 * count; ++tries) {
    // Some are near the first, some near the kernel without a schedule, some between.
    const std::size_t from = below(random, 3);
    std::vector<Line> lines = from == 0 ? first : from == 1 ? std::vector<Line>{} : one_of(drawn, random);
    for (std::size_t i = 0, n = 1 + below(random, 8); i < n; ++i) {
      const std::vector<Line> next = mutate(at[0].plain(), lines, is_gpu, random);
      try {
        schedule(at[0].plain(), next, "schedule");
        lines = next;
      } catch (const tern::Error&) {
      }
    }
    bool is_new = true;
    for (Candidates& c : at) is_new = is_new && c.add(lines);
    if (!is_new) continue;
    const std::vector<double>& x = at[0].all.back().features;
    const auto is_alike = [&](const std::vector<double>& y) {
      double most = 0;
      for (std::size_t f = 0; f < x.size(); ++f) most = std::max(most, std::abs(x[f] - y[f]));
      return most < least_difference;
    };
    if (std::any_of(seen.begin(), seen.end(), is_alike) || !is_right(name, lines)) continue;
    seen.push_back(x);
    drawn.push_back(lines);
  }
  return drawn;
}

Tuned tune(const std::string& name, const std::vector<std::int64_t>& sizes, const std::vector<Line>& first,
           const std::vector<Timed>& database, const Measure& measure, const TuneOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const auto is_over = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > options.seconds; };
  Random random(options.seed);
  Candidates candidates(name, sizes, first);
  std::vector<Candidate>& all = candidates.all;
  Tuned result;

  std::vector<Example> examples;
  std::map<std::string, double> known;
  for (const Timed& row : database) {
    if (row.kernel == name && row.sizes == sizes) known.try_emplace(to_text(row.lines), row.ms);
    else examples.push_back(example(row));
  }
  candidates.add({});
  for (const Timed& row : database)
    if (row.kernel == name && row.sizes != sizes && static_cast<int>(all.size()) < options.population) candidates.add(row.lines);

  const auto take = [&](Candidate& c, std::optional<double> ms, bool is_known) {
    c.ms = ms;
    c.is_out = !ms;
    ++(!ms ? result.wrong : is_known ? result.known : result.measured);
    if (!ms) return;
    if (!is_known) result.rows.push_back({name, sizes, c.lines, *ms});
    examples.push_back({name, name_of(sizes), c.features, *ms});
  };
  const auto ranked = [&] {
    std::vector<std::size_t> order(all.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return all[a].score < all[b].score; });
    return order;
  };
  for (int round = 1; round <= options.rounds && (round == 1 || !is_over()); ++round) {
    const Model model(examples);
    const double offset = all[0].ms ? std::log2(*all[0].ms) - model.predict(all[0].features) : 0;
    const auto score = [&](Candidate& c) { c.score = c.ms ? std::log2(*c.ms) : model.predict(c.features) + offset; };
    std::for_each(all.begin(), all.end(), score);
    const int enough = options.candidates * round / options.rounds;
    for (int tries = 0; static_cast<int>(all.size()) < enough && tries < 20 * options.candidates && !is_over();) {
      const std::vector<std::size_t> order = ranked();
      const std::size_t parents = std::min<std::size_t>(order.size(), static_cast<std::size_t>(options.population));
      for (int child = 0; child < options.population && static_cast<int>(all.size()) < enough; ++child, ++tries)
        if (candidates.add(mutate(candidates.plain(), all[order[below(random, parents)]].lines, options.is_gpu, random))) score(all.back());
    }

    std::vector<std::size_t> batch;  // the best that were not measured yet
    for (const std::size_t i : ranked()) {
      if (static_cast<int>(batch.size()) == options.measured / options.rounds) break;
      if (i == 0 || all[i].ms || all[i].is_out) continue;
      if (is_right(name, all[i].lines)) batch.push_back(i);
      else take(all[i], {}, false);
    }
    const auto known_ms = [&](std::size_t i) {
      const auto found = known.find(to_text(all[i].lines));
      return found == known.end() ? std::optional<double>() : found->second;
    };
    if (const auto ms = known_ms(0); ms && round == 1) take(all[0], ms, true);
    std::vector<Candidate> asked = {all[0]};
    for (const std::size_t i : batch)
      if (!known_ms(i)) asked.push_back(all[i]);
    std::vector<std::optional<double>> measured(1);
    if (asked.size() > 1 || !all[0].ms) measured = measure(asked);
    if (!all[0].ms && !measured[0]) tern::fail("loops", "expected the schedule to start from to run but it does not");
    if (!all[0].ms) take(all[0], measured[0], false);
    const double pace = *all[0].ms / measured[0].value_or(*all[0].ms);
    for (std::size_t next = 1; const std::size_t i : batch)
      if (const auto ms = known_ms(i)) take(all[i], ms, true);
      else if (const auto now = measured[next++]) take(all[i], pace * *now, false);
      else take(all[i], {}, false);
  }
  const auto best = std::min_element(
      all.begin(), all.end(), [](const Candidate& a, const Candidate& b) { return a.ms.value_or(HUGE_VAL) < b.ms.value_or(HUGE_VAL); });
  result.first_ms = *all[0].ms;
  const Candidate& chosen = *best->ms * gain_to_choose <= result.first_ms ? *best : all[0];
  result.lines = chosen.lines;
  result.ms = *chosen.ms;
  result.candidates = static_cast<int>(all.size());
  result.refused = candidates.refused;
  return result;
}

}  // namespace study::loops
