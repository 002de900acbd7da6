// Searches beside those that are written out here, one hypothesis at a time, over a model without tensors.
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>

#include "message.h"
#include "nn/generate.h"
#include "nn/results.h"
#include "ops/factory.h"
#include "ops/pointwise.h"
#include "ops/view.h"

using namespace tern;

namespace {

/// The logarithm of the sum of exponentials.
double log_total(const std::vector<float>& logits) {
  double total = 0;
  for (float x : logits) total += std::exp(double(x));
  return std::log(total);
}

/// A model without tensors: some logits for each history of a row's tokens.
struct Toy {
  std::int64_t classes = 5;
  double sharpness = 2;

  std::vector<float> logits(std::int64_t row, const nn::TokenIds& history) const {
    std::uint64_t state = 977 * std::uint64_t(row + 1);
    for (std::int64_t id : history) state = state * 6364136223846793005u + std::uint64_t(id) + 1442695040888963407u;
    std::vector<float> result;
    for (std::int64_t i = 0; i < classes; ++i)
      result.push_back(float(sharpness * 2 * (unit_float(philox(state, std::uint64_t(i)).words[0]) - 0.5)));
    return result;
  }

  struct State {
    std::vector<std::int64_t> rows;
    std::vector<nn::TokenIds> histories;
    std::vector<std::size_t> batches;  // how many rows each step had
  };

  nn::Continuation read(const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& limits,
                        const std::shared_ptr<State>& state = std::make_shared<State>()) const {
    state->rows = rows;
    state->histories.resize(rows.size());
    const auto current = [state, toy = *this] {
      std::vector<float> all;
      for (std::size_t i = 0; i < state->rows.size(); ++i) {
        const std::vector<float> own = toy.logits(state->rows[i], state->histories[i]);
        all.insert(all.end(), own.begin(), own.end());
      }
      state->batches.push_back(state->rows.size());
      return Tensor::from(all, {std::int64_t(state->rows.size()), toy.classes});
    };
    nn::Continuation text;
    text.logits = current();
    text.limits = limits;
    text.numbers = rows;
    text.next = [=](const Tensor& ids) {
      const auto next = ids.to_vector<std::int64_t>();
      REQUIRE(next.size() == state->rows.size());
      for (std::size_t i = 0; i < next.size(); ++i) state->histories[i].push_back(next[i]);
      return current();
    };
    text.select = [state](const Tensor& chosen, bool keeps_sources) {
      State before = *state;
      state->rows.clear();
      state->histories.clear();
      for (std::int64_t i : chosen.to_vector<std::int64_t>()) {
        if (keeps_sources) CHECK(before.rows[std::size_t(i)] == before.rows[state->rows.size()]);
        state->rows.push_back(before.rows[std::size_t(i)]);
        state->histories.push_back(before.histories[std::size_t(i)]);
      }
      if (keeps_sources) CHECK(state->rows.size() == before.rows.size());
    };
    return text;
  }
};

struct Scored {
  nn::TokenIds tokens;
  double log_p = 0, score = 0;
};

bool is_better(const Scored& a, const Scored& b) { return a.score > b.score; }

/// Note [Beam search] for one row, with eos 0; `last` also ends a hypothesis, if it is not negative.
std::vector<Scored> reference_beam(const Toy& toy, std::int64_t row, std::int64_t most, std::size_t beam, double penalty,
                                   std::int64_t last) {
  std::vector<Scored> live(1), complete;
  for (std::int64_t step = 0; step < most && !live.empty(); ++step) {
    std::vector<Scored> candidates;
    const double length = std::pow(double(step + 1), penalty);
    for (const Scored& hypothesis : live) {
      const std::vector<float> logits = toy.logits(row, hypothesis.tokens);
      const double total = log_total(logits);
      for (std::int64_t id = 0; id < toy.classes; ++id) {
        candidates.push_back(hypothesis);
        candidates.back().tokens.push_back(id);
        candidates.back().log_p += logits[std::size_t(id)] - total;
        candidates.back().score = candidates.back().log_p / length;
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(), is_better);
    live.clear();
    for (std::size_t rank = 0; rank < candidates.size() && live.size() < beam; ++rank) {
      Scored& candidate = candidates[rank];
      const bool is_end = candidate.tokens.back() == 0;
      if (is_end) candidate.tokens.pop_back();
      if (!is_end) live.push_back(candidate);
      else if (rank < beam) complete.push_back(candidate);
    }
    std::vector<Scored> going;
    for (const Scored& hypothesis : live) (step + 1 == most || hypothesis.tokens.back() == last ? complete : going).push_back(hypothesis);
    live = going;
    std::stable_sort(complete.begin(), complete.end(), is_better);
    if (complete.size() > beam) complete.resize(beam);
    if (complete.size() == beam && !live.empty() && live[0].score <= complete.back().score) break;
  }
  return complete;
}

void check_against(const std::vector<nn::Hypothesis>& found, const std::vector<Scored>& expected, std::size_t n_best) {
  REQUIRE(found.size() == std::min(n_best, expected.size()));
  for (std::size_t n = 0; n < found.size(); ++n) {
    INFO("hypothesis " << n);
    CHECK(found[n].tokens == expected[n].tokens);
    CHECK(found[n].log_probability == Approx(expected[n].log_p).epsilon(1e-5).margin(1e-5));
    CHECK(found[n].score == Approx(expected[n].score).epsilon(1e-5).margin(1e-5));
  }
}

/// Chi-square of counts beside probabilities, some of which are 0; the counts there must be 0.
double chi_square(const std::map<std::int64_t, double>& counts, const std::vector<double>& probabilities, double samples) {
  double result = 0;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    const auto found = counts.find(std::int64_t(i));
    const double count = found == counts.end() ? 0 : found->second, expected = probabilities[i] * samples;
    if (probabilities[i] == 0) CHECK(count == 0);
    else result += (count - expected) * (count - expected) / expected;
  }
  return result;
}

}  // namespace

TEST_CASE("Beam search is the one that is written out", "[generate]") {
  const std::vector<std::int64_t> rows{0, 1, 2, 3, 4, 5, 6}, limits{9, 3, 12, 1, 6, 12, 12};
  for (const std::int64_t classes : {2, 7, 40})
    for (const std::int64_t beam : {1, 2, 5, 40})
      for (const double penalty : {0.0, 1.0})
        for (const std::int64_t last : {-1, 1}) {
          CAPTURE(classes, beam, penalty, last);
          const Toy toy{classes, 3};
          nn::GenerateOptions options{.search = nn::Search::beam, .eos = 0, .length_penalty = penalty, .n_best = beam, .beam = beam};
          if (last >= 0) options.stop = [last](const Tensor& tokens) { return eq(select(tokens, 1, tokens.size(1) - 1), double(last)); };
          const Results found = nn::generate(toy.read(rows, limits), options);
          for (std::size_t i = 0; i < rows.size(); ++i) {
            INFO("row " << i);
            check_against(found[i], reference_beam(toy, rows[i], limits[i], std::size_t(beam), penalty, last), std::size_t(beam));
          }
        }
}

TEST_CASE("A beam of one is greedy, with the same probabilities", "[generate]") {
  const Toy toy{11, 4};
  const std::vector<std::int64_t> rows{0, 1, 2, 3, 4, 5, 6, 7}, limits(8, 20);
  const Results greedy = nn::generate(toy.read(rows, limits), {.eos = 0, .length_penalty = 0.5});
  const Results beam = nn::generate(toy.read(rows, limits), {.search = nn::Search::beam, .eos = 0, .length_penalty = 0.5, .beam = 1});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    CHECK(greedy[i][0].tokens == beam[i].at(0).tokens);
    CHECK(greedy[i][0].log_probability == Approx(beam[i][0].log_probability));
    CHECK(greedy[i][0].score == Approx(beam[i][0].score));
    double log_p = 0;
    nn::TokenIds history;
    nn::TokenIds read = greedy[i][0].tokens;
    if (read.size() < 20) read.push_back(0);
    for (std::int64_t id : read) {
      const std::vector<float> logits = toy.logits(rows[i], history);
      log_p += logits[std::size_t(id)] - log_total(logits);
      history.push_back(id);
    }
    CHECK(greedy[i][0].log_probability == Approx(log_p).epsilon(1e-5));
    CHECK(greedy[i][0].score == Approx(log_p / std::sqrt(double(read.size()))).epsilon(1e-5));
  }
}

TEST_CASE("Rows that have ended make place", "[generate]") {
  const Toy toy{6, 3};
  std::vector<std::int64_t> rows(16), limits(16, 4);
  std::iota(rows.begin(), rows.end(), 0);
  limits[5] = 40;
  for (const nn::Search search : {nn::Search::greedy, nn::Search::beam, nn::Search::sample}) {
    const auto state = std::make_shared<Toy::State>();
    // Without an end token each row goes to its limit.
    const Results found = nn::generate(toy.read(rows, limits, state), {.search = search, .eos = -1, .beam = 3});
    const std::size_t width = search == nn::Search::beam ? 3 : 1;
    CHECK(state->batches.back() == width);
    for (std::size_t i = 0; i < rows.size(); ++i) CHECK(found[i].at(0).tokens.size() == std::size_t(limits[i]));
  }
}

TEST_CASE("Samples come as often as they are probable", "[generate]") {
  const Toy toy{7, 2};
  constexpr std::int64_t samples = 20000;
  const std::vector<float> logits = toy.logits(3, {});
  std::vector<std::size_t> order(logits.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  struct Kind {
    double temperature;
    std::int64_t top_k;
    double top_p;
  };
  for (const Kind& kind : {Kind{1, 0, 1}, {0.5, 0, 1}, {2, 3, 1}, {1, 1, 1}, {1, 0, 0.6}, {1, 0, 1e-6}, {0.7, 4, 0.8}, {1, 100, 0.999}}) {
    CAPTURE(kind.temperature, kind.top_k, kind.top_p);
    std::vector<double> p(logits.size());
    std::size_t kept = kind.top_k > 0 ? std::min<std::size_t>(std::size_t(kind.top_k), order.size()) : order.size();
    double total = 0;
    for (std::size_t i = 0; i < kept; ++i) total += p[order[i]] = std::exp(double(logits[order[i]]) / kind.temperature);
    double before = 0, left = 0;
    for (std::size_t i = 0; i < kept; ++i) {
      double& own = p[order[i]];
      own /= total;
      const double share = own;
      if (before >= kind.top_p) own = 0;
      before += share;
      left += own;
    }
    std::size_t possible = 0;
    for (double& own : p) possible += (own /= left) > 0;
    const Results drawn = nn::generate(toy.read({3}, {1}), {.search = nn::Search::sample,
                                                            .eos = -1,
                                                            .n_best = samples,
                                                            .temperature = kind.temperature,
                                                            .top_k = kind.top_k,
                                                            .top_p = kind.top_p,
                                                            .seed = 11});
    REQUIRE(drawn[0].size() == std::size_t(samples));
    std::map<std::int64_t, double> counts;
    for (const nn::Hypothesis& sample : drawn[0]) ++counts[sample.tokens.at(0)];
    // The 99.99th percentile for six degrees of freedom is 27.9.
    CHECK(chi_square(counts, p, samples) < (possible > 1 ? 27.9 : 1e-6));
    // Of the model, whatever the choice was left.
    const std::int64_t id = drawn[0][0].tokens[0];
    CHECK(drawn[0][0].log_probability == Approx(logits[std::size_t(id)] - log_total(logits)).epsilon(1e-5));
  }
}

TEST_CASE("Draws belong to the number of a row and to a step", "[generate]") {
  const Toy toy{50, 1};
  const auto draw = [&](const std::vector<std::int64_t>& rows, std::uint64_t seed, std::int64_t n_best = 1, std::int64_t first = 0) {
    return nn::generate(toy.read(rows, std::vector<std::int64_t>(rows.size(), 40)),
                        {.search = nn::Search::sample, .eos = 0, .n_best = n_best, .seed = seed, .first_number = first});
  };
  const Results together = draw({0, 1, 2, 3, 4}, 1);
  for (std::int64_t row = 0; row < 5; ++row) CHECK(is_same({together[std::size_t(row)]}, draw({row}, 1)));
  CHECK_FALSE(is_same(together, draw({0, 1, 2, 3, 4}, 2)));
  CHECK_FALSE(is_same(together, draw({0, 1, 2, 3, 4}, 1, 1, 9)));
  const Results many = draw({0, 1, 2, 3, 4}, 1, 3);
  for (std::size_t row = 0; row < 5; ++row) {
    REQUIRE(many[row].size() == 3);
    CHECK(is_same({{many[row][0]}}, {together[row]}));
    CHECK(many[row][0].tokens != many[row][1].tokens);
    CHECK(many[row][1].tokens != many[row][2].tokens);
    // Steps draw anew: a run of one token is improbable.
    CHECK(std::set<std::int64_t>(many[row][2].tokens.begin(), many[row][2].tokens.end()).size() + 2 >= many[row][2].tokens.size() / 2);
  }
  // As the temperature goes to 0 the most probable token is left.
  for (const double temperature : {0.0, 1e-30})
    CHECK(best(nn::generate(toy.read({0, 1, 2}, {9, 9, 9}),
                            {.search = nn::Search::sample, .eos = 0, .temperature = temperature, .seed = 3})) ==
          best(nn::generate(toy.read({0, 1, 2}, {9, 9, 9}), {.eos = 0})));
}

TEST_CASE("A sample is the token at which the sum of probabilities passes a number of 53 bits", "[generate]") {
  // All tokens are equally probable, so that the token is the number's share of them. A number of 24 bits would miss some of these.
  constexpr std::int64_t tokens = 3 << 18, steps = 24, samples = 8;
  nn::Continuation text;
  text.logits = zeros({1, tokens});
  text.limits = {steps};
  text.numbers = {5};
  text.select = [](const Tensor&, bool) {};
  text.next = [](const Tensor& ids) { return zeros({ids.size(0), tokens}); };
  const Results drawn = nn::generate(text, {.search = nn::Search::sample, .eos = -1, .n_best = samples, .seed = 7});
  std::int64_t equal = 0;
  for (std::int64_t sample = 0; sample < samples; ++sample)
    for (std::int64_t step = 0; step < steps; ++step) {
      const PhiloxBlock block = philox(7, std::uint64_t(sample) << 32 | std::uint64_t(step), 5);
      const double u = double(block.words[0]) * 0x1p-32 + double(block.words[1] >> 11) * 0x1p-53;
      equal += drawn[0].at(std::size_t(sample)).tokens.at(std::size_t(step)) == std::int64_t(u * tokens);
    }
  CHECK(equal == samples * steps);
}

TEST_CASE("A repetition penalty is on the tokens of prompt and row, in greedy search and in samples", "[generate]") {
  const std::vector<nn::TokenIds> prompts = {{3, 4, 3}, {6}, {}, {1, 2, -7, 99}};  // ids that no logit has count for nothing
  /// A Toy whose logits are those that a row's penalty leaves.
  struct Penalized : Toy {
    std::vector<nn::TokenIds> prompts;
    double penalty = 1;
    nn::Continuation text(const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& limits) const {
      const auto state = std::make_shared<State>();
      nn::Continuation result = read(rows, limits, state);
      const auto penalized = [state, own = *this](const Tensor& logits) {
        std::vector<float> all = logits.to_vector<float>();
        for (std::size_t i = 0; i < state->rows.size(); ++i) {
          std::set<std::int64_t> seen(state->histories[i].begin(), state->histories[i].end());
          const nn::TokenIds& prompt = own.prompts[std::size_t(state->rows[i])];
          seen.insert(prompt.begin(), prompt.end());
          for (const std::int64_t id : seen) {
            if (id < 0 || id >= own.classes) continue;
            float& x = all[i * std::size_t(own.classes) + std::size_t(id)];
            x = x < 0 ? x * float(own.penalty) : x / float(own.penalty);
          }
        }
        return Tensor::from(all, logits.shape());
      };
      result.logits = penalized(result.logits);
      result.next = [next = result.next, penalized](const Tensor& ids) { return penalized(next(ids)); };
      return result;
    }
  };
  const std::vector<std::int64_t> rows = {0, 1, 2, 3}, limits = {30, 4, 9, 12};
  for (const double penalty : {1.0, 1.3, 4.0, 0.5}) {
    INFO("penalty " << penalty);
    const Penalized toy{{9, 2}, prompts, penalty};
    for (const auto& [search, n_best] : {std::pair(nn::Search::greedy, 1), {nn::Search::sample, 1}, {nn::Search::sample, 3}}) {
      nn::GenerateOptions options{.search = search, .eos = -1, .n_best = n_best, .seed = 5};
      const Results want = nn::generate(toy.text(rows, limits), options);
      options.repetition_penalty = penalty;
      nn::Continuation text = toy.read(rows, limits);
      text.prompts = prompts;
      const Results got = nn::generate(text, options);
      for (std::size_t i = 0; i < rows.size(); ++i)
        for (std::size_t n = 0; n < std::size_t(n_best); ++n) CHECK(got[i].at(n).tokens == want[i].at(n).tokens);
      // Of the model, whatever the penalty.
      double log_p = 0;
      nn::TokenIds history;
      for (const std::int64_t id : got[2][0].tokens) {
        const std::vector<float> logits = toy.logits(2, history);
        log_p += logits[std::size_t(id)] - log_total(logits);
        history.push_back(id);
      }
      CHECK(got[2][0].log_probability == Approx(log_p).epsilon(1e-5));
    }
  }
  nn::Continuation text = Toy().read({0}, {3});
  for (const double penalty : {0.0, -1.0, double(INFINITY), double(NAN)})
    CHECK(contains(message_of([&] { nn::generate(text, {.repetition_penalty = penalty}); }), "finite repetition_penalty > 0"));
  CHECK(contains(message_of([&] { nn::generate(text, {.search = nn::Search::beam, .repetition_penalty = 2}); }), "use greedy or sample"));
  text.prompts = {{1}, {2}};
  CHECK(contains(message_of([&] { nn::generate(text, {.repetition_penalty = 2}); }), "expected 1 prompts"));
}

TEST_CASE("A logit of +inf or NaN is one error in every search", "[generate]") {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const auto text = [](const std::vector<float>& logits) {
    const Tensor first = zeros({3, 4}), x = Tensor::from(logits, {1, 4});
    nn::Continuation result;
    result.logits = first;
    result.limits = {3, 3, 3};
    result.select = [](const Tensor&, bool) {};
    // Only the last row of the batch, at its second token.
    result.next = [x](const Tensor& ids) { return cat({zeros({ids.size(0) - 1, 4}), x}); };
    return result;
  };
  struct Kind {
    std::vector<float> logits;
    std::string found;
  };
  for (const Kind& kind : {Kind{{0, 0, infinity, 0}, "+inf at token 2"},
                           {{infinity, infinity, infinity, infinity}, "+inf at token 0"},
                           {{0, nan, 0, infinity}, "NaN at token 1"},
                           {{0, infinity, nan, -infinity}, "+inf at token 1"},
                           {{-infinity, -infinity, -infinity, -infinity}, "no token of a probability above 0"}})
    for (const nn::GenerateOptions& options : {nn::GenerateOptions{.search = nn::Search::greedy, .eos = -1},
                                               {.search = nn::Search::greedy, .eos = -1, .has_scores = false},
                                               {.search = nn::Search::beam, .eos = -1, .beam = 1},
                                               {.search = nn::Search::beam, .eos = -1, .beam = 2},
                                               {.search = nn::Search::sample, .eos = -1},
                                               {.search = nn::Search::sample, .eos = -1, .n_best = 2},
                                               {.search = nn::Search::sample, .eos = -1, .temperature = 0},
                                               {.search = nn::Search::sample, .eos = -1, .temperature = 1e-46},
                                               {.search = nn::Search::sample, .eos = -1, .top_k = 2},
                                               {.search = nn::Search::sample, .eos = -1, .top_p = 0.5}}) {
      const std::string message = "[generate] expected logits below +inf, none of them NaN and not all -inf, but row 2 has " + kind.found +
                                  " in those for its new token 1: AnomalyMode names the module";
      CHECK_THROWS_WITH(nn::generate(text(kind.logits), options), message);
      if (kind.found.front() == 'n') continue;  // the ensemble's softmax of -inf alone is NaN
      std::vector<nn::Continuation> parts;
      parts.push_back(text({0, 0, 0, 0}));
      parts.push_back(text(kind.logits));
      CHECK_THROWS_WITH(nn::generate(nn::ensemble(std::move(parts)), options), message);
    }
}

TEST_CASE("Every row has a hypothesis, whatever the numbers are", "[generate]") {
  constexpr float huge = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits :
       {std::vector<float>{huge, -huge, huge, 0}, {-huge, -huge, -infinity, -huge}, {-infinity, 0, -infinity, -infinity}})
    for (const nn::Search search : {nn::Search::greedy, nn::Search::beam, nn::Search::sample})
      for (const double temperature : {1e-46, 1.0, 1e38, 1e300}) {
        CAPTURE(temperature);
        nn::Continuation text;
        text.logits = Tensor::from(logits, {1, 4});
        text.limits = {3};
        text.select = [](const Tensor&, bool) {};
        text.next = [&](const Tensor& ids) { return broadcast_to(Tensor::from(logits, {1, 4}), {ids.size(0), 4}); };
        const Results found = nn::generate(text, {.search = search, .eos = -1, .beam = 2, .temperature = temperature});
        REQUIRE(found.at(0).size() == 1);
        for (std::int64_t id : found[0][0].tokens) CHECK(logits.at(std::size_t(id)) > -infinity);
      }
  const Toy toy;
  CHECK_THROWS_WITH(nn::generate(toy.read({0}, {9}), {.search = nn::Search::beam, .eos = 0, .length_penalty = -99}),
                    "[generate] expected a length_penalty whose power of 9 tokens is below 1e34 but got -99");
}

TEST_CASE("An ensemble has the mean of its models' probabilities", "[generate]") {
  const Toy one{6, 2}, other{6, 5};
  const auto text = [&] {
    std::vector<nn::Continuation> parts;
    parts.push_back(one.read({0, 1, 2}, {5, 5, 5}));
    parts.push_back(other.read({0, 1, 2}, {5, 4, 5}));
    return nn::ensemble(std::move(parts));
  };
  CHECK(text().limits == std::vector<std::int64_t>{5, 4, 5});
  for (const nn::Search search : {nn::Search::greedy, nn::Search::beam}) {
    const Results found = nn::generate(text(), {.search = search, .eos = 0, .length_penalty = 0, .beam = 2});
    for (std::size_t row = 0; row < 3; ++row) {
      nn::TokenIds read = found[row].at(0).tokens, history;
      if (read.size() < (row == 1 ? 4u : 5u)) read.push_back(0);
      double log_p = 0;
      for (std::int64_t id : read) {
        double p = 0, greatest = 0;
        for (std::int64_t i = 0; i < 6; ++i) {
          double mean = 0;
          for (const Toy& toy : {one, other}) {
            const std::vector<float> logits = toy.logits(std::int64_t(row), history);
            mean += std::exp(logits[std::size_t(i)] - log_total(logits)) / 2;
          }
          greatest = std::max(greatest, mean);
          if (i == id) p = mean;
        }
        if (search == nn::Search::greedy) CHECK(p == greatest);
        log_p += std::log(p);
        history.push_back(id);
      }
      CHECK(found[row][0].score == Approx(log_p).epsilon(1e-5));
    }
  }
  std::vector<nn::Continuation> odd;
  odd.push_back(one.read({0}, {5}));
  odd.push_back(Toy{7}.read({0}, {5}));
  CHECK_THROWS_WITH(nn::ensemble(std::move(odd)), "[ensemble] expected logits (1, 6) of every model but got (1, 7)");
  CHECK_THROWS_WITH(nn::ensemble({}), "[ensemble] expected one model or more");
}

TEST_CASE("Rows go on in halves on a GPU, and as they are on the CPU", "[generate]") {
  using nn::detail::rows_to_keep, nn::detail::places_of;
  CHECK(rows_to_keep(4, 4, cpu) == 4);
  CHECK(rows_to_keep(7, 8, cpu) == 8);
  CHECK(rows_to_keep(6, 8, cpu) == 6);
  for (const auto& [active, kept] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{100, 100}, {51, 100}, {50, 50}, {26, 50}, {1, 1}, {3, 3}})
    CHECK(rows_to_keep(active, 100, cuda()) == kept);
  const Tensor active = Tensor::from(std::vector<std::int64_t>{0, 1, 0, 1, 1, 0}, {6});
  CHECK(places_of(active).kept == std::vector<std::int64_t>{1, 3, 4});
  CHECK(places_of(active).dropped == std::vector<std::int64_t>{0, 2, 5});
  CHECK(places_of(active, 5).kept == std::vector<std::int64_t>{1, 3, 4, 5, 2});
  CHECK(places_of(active, 5).dropped == std::vector<std::int64_t>{0});
}
