#pragma once
#include <optional>
#include <random>
#include <set>

#include "schedule.h"
#include "trees.h"

namespace study::loops {

/// A line of a database: a kernel of some sizes, a schedule, and its time.
struct Timed {
  std::string kernel;
  std::vector<std::int64_t> sizes;
  std::vector<Line> lines;
  double ms;
};
/// The same as the model sees it.
struct Example {
  std::string kernel, sizes;
  std::vector<double> features;
  double ms;
};
/// Throws Error where the lines cannot be applied to the kernel.
Example example(const Timed& row);
/// Predicts log2 of a schedule's time, but for what all schedules of a kernel have in common: by trees, and where there are few examples by
/// the estimated cycles.
class Model {
 public:
  explicit Model(const std::vector<Example>& examples);
  double predict(const std::vector<double>& features) const;

 private:
  Trees trees_;
};

/// Quality of the order of schedules that the model has not seen: of a kernel and sizes, fitted to all others; of a kernel, fitted to
/// others.
struct Ranking {
  int sizes = 0, schedules = 0;
  double spearman = 0, spearman_of_kind = 0;  ///< means of the rank correlation within a kernel and sizes
  int near_best = 0;  ///< of `sizes`, those whose fastest of the 16 ranked first take at most 5% more than the fastest
};
/// By kernel.
std::map<std::string, Ranking> rank(const std::vector<Example>& examples);
/// Spearman's rank correlation; ties have their mean rank.
double spearman(const std::vector<double>& x, const std::vector<double>& y);

using Random = std::mt19937_64;
/// Lines that can be applied to a kernel, with one of them changed, one more or one less: names are those that the program has, but the
/// result need not make sense.
std::vector<Line> mutate(const Program& plain, const std::vector<Line>& lines, bool is_gpu, Random& random);
/// @{
/// A schedule's text in one line, with semicolons, and back. Throws Error.
std::string to_text(const std::vector<Line>& lines);
std::vector<Line> lines_of(std::string text);
/// @}

struct Candidate {
  std::vector<Line> lines;
  Program program;
  std::vector<double> features = {};
  std::optional<double> ms = {};
  double score = 0;     ///< log2 of its time, as measured or predicted
  bool is_out = false;  ///< it computes something else, or does not run
};
/// Different schedules of a kernel, each proved, with at most 64 times the steps of the first, and code of a bounded size.
class Candidates {
 public:
  /// Throws Error where the first schedule is refused.
  Candidates(const std::string& kernel, const std::vector<std::int64_t>& sizes, const std::vector<Line>& first);
  /// False where the schedule is refused, or its program is there.
  bool add(const std::vector<Line>& lines);
  const Program& plain() const { return plain_; }

  std::vector<Candidate> all;
  int refused = 0;

 private:
  Program plain_;
  double work_;
  std::set<std::string> texts_;
};

/// So many schedules, drawn by mutations of the first, of none and of each other, that can be applied to the kernel at each of these sizes,
/// and that the interpreter has checked; the model sees a difference between any two.
std::vector<std::vector<Line>> draw(const std::string& kernel, const std::vector<std::vector<std::int64_t>>& sizes,
                                    const std::vector<Line>& first, std::size_t count, bool is_gpu, std::uint64_t seed);

struct TuneOptions {
  bool is_gpu = false;
  std::uint64_t seed = 1;
  double seconds = 60;
  int candidates = 200, population = 32, rounds = 4, measured = 16;
};
struct Tuned {
  std::vector<Line> lines;  ///< the fastest, or the first where none takes 3% less
  double ms = 0, first_ms = 0;
  int candidates = 0, refused = 0, wrong = 0, measured = 0, known = 0;
  std::vector<Timed> rows;  ///< of what was measured
};
/// ms of schedules' programs; nothing for one that could not be run, or computes something else. The first of them is always the same.
using Measure = std::function<std::vector<std::optional<double>>(const std::vector<Candidate>&)>;

/// Evolution of schedules: the population, the best by the model, has children by mutation; the model is fitted to rows of the database,
/// and to what was measured so far. What is measured is checked by the interpreter before. Rows of the same kernel and sizes are times that
/// need not be measured again, and nothing else: so that the same seed and database give the same schedule, also with the rows that the
/// first search adds, unless time runs out. Times follow the first schedule's, which each measurement repeats.
Tuned tune(const std::string& kernel, const std::vector<std::int64_t>& sizes, const std::vector<Line>& first,
           const std::vector<Timed>& database, const Measure& measure, const TuneOptions& options);

}  // namespace study::loops
