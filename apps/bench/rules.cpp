// tern-bench rules: substitutions of graphs, found and judged (study/substitutions).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>

#include "backend/threads.h"
#include "bench/commands.h"
#include "bench/compile_models.h"
#include "bench/timing.h"
#include "common/program.h"
#include "compile/trace.h"
#include "io/files.h"
#include "substitutions/fingerprint.h"
#include "substitutions/firing.h"
#include "substitutions/search.h"
#include "tensor/context.h"
#include "text/unicode.h"

namespace tern::bench {
namespace {

using namespace substitutions;

struct Options {
  int ops = 3, threads = 0;
  std::int64_t examples = 8;
  std::string out, check, models;
};

/// Judges the rules of a file, and prints those that do not hold. The others, for what comes next.
std::vector<Rule> check(Terms& terms, const std::string& path) {
  std::vector<Rule> rules = read_rules(io::read_file(path), path, terms);
  const std::string file = text::printable(path);
  if (rules.empty()) throw apps::UsageError(fmt::format("{}: expected rules but got none: write one with --out", file));
  const Judge judge;
  std::vector<std::string> faults(rules.size());
  backend::run_parts(
      static_cast<int>(rules.size()),
      [&](int i) {
        const Rule& rule = rules[static_cast<std::size_t>(i)];
        const Judgement found = judge(terms, rule.left, rule.right);
        std::string& fault = faults[static_cast<std::size_t>(i)];
        if (found.verdict < rule.verdict)
          fault = found.verdict == Verdict::rejected ? "rejected: " + found.reason : fmt::format("{} and not exact", name(found.verdict));
        else if (rule.fingerprint != 0 &&
                 (fingerprint(terms, rule.left) != rule.fingerprint || fingerprint(terms, rule.right) != rule.fingerprint))
          fault = "its fingerprints are others";
      },
      true);
  std::size_t count = 0;
  for (std::size_t i = 0; i < rules.size(); ++i) {
    if (faults[i].empty()) continue;
    ++count;
    fmt::print("{}:{}: {} => {}: {}\n", file, rules[i].line, terms.text(rules[i].left), terms.text(rules[i].right), faults[i]);
  }
  if (count > 0) throw std::runtime_error(fmt::format("{} of {} rules of {} do not hold", count, rules.size(), file));
  fmt::print("{}: {} hold\n", file, apps::counted(static_cast<std::int64_t>(rules.size()), "rule"));
  return rules;
}

std::vector<Rule> find(Terms& terms, const Options& options) {
  Funnel found = search(terms, options.ops, 3);
  const auto print = [](const char* stage, std::size_t count, double seconds, const char* what) {
    fmt::print("{:<12} {:>9} {:>7.1f} s  {}\n", stage, count, seconds, what);
  };
  print("enumerate", found.graphs, found.enumerate, "graphs");
  print("fingerprint", found.equal, found.fingerprint, "graphs with an equal cheaper one");
  print("judge", found.pairs.size(), found.judge, "pairs whose parts have no cheaper form");
  for (const Verdict verdict : {Verdict::exact, Verdict::sound, Verdict::rejected})
    fmt::print("  {:<10} {:>9}\n", name(verdict), found.count(verdict));
  print("prune", found.kept.size(), found.prune, "rules kept");
  std::vector<const Pair*> rejected;
  for (const Pair& pair : found.pairs)
    if (pair.judgement.verdict == Verdict::rejected && terms.ops(pair.left) < 3) rejected.push_back(&pair);
  const std::size_t count = std::min(rejected.size(), static_cast<std::size_t>(options.examples));
  if (count > 0) fmt::print("Rejected, for example:\n");
  for (std::size_t i = 0; i < count; ++i) {
    const Pair& pair = *rejected[i * rejected.size() / count];
    fmt::print("  {} => {}\n    {}\n", terms.text(pair.left), terms.text(pair.right), pair.judgement.reason);
  }
  if (!options.out.empty()) {
    std::string text =
        "# Substitutions that `tern-bench rules --out` has found, and `tern-bench rules --check` judges: study/substitutions/judge.h\n";
    for (const Rule& rule : found.kept) text += text_of(terms, rule) + "\n";
    io::write_file_atomically(options.out, text);
  }
  return std::move(found.kept);
}

/// The program of a case, at sizes for which a step is short. Its kernels are those of any size.
compiler::Program trace(const CompileCase& c) {
  const train::PrecisionScope precision(c.precision);
  const Subject subject = make_written(c);
  const Tensors arguments = make_arguments(c, c.sizes.length);
  for (int i = 0; i < 2; ++i) subject.function(arguments);  // optimizers make their moments
  compiler::Trace trace(arguments, cpu, compiler::Grouping::none);
  return trace.finish({subject.function(trace.inputs())});
}

/// How often the left sides are found in the models' programs.
void count_firing(const Terms& terms, const std::vector<Rule>& rules, const Options& options) {
  std::map<std::string, std::map<std::size_t, std::size_t>> by_program;
  std::map<std::size_t, std::size_t> in_all;
  std::size_t changing = 0, programs = 0, kernels = 0;
  for (const train::Precision precision : {train::Precision::fp32, train::Precision::bf16}) {
    const Firing firing(terms, rules, train::dtype_of(precision));
    std::size_t count = 0;
    for (std::size_t i = 0; i < rules.size(); ++i) count += firing.changes_kernels(i);
    changing = std::max(changing, count);
    for (const std::string& model : apps::words(options.models))
      for (const bool is_step : {false, true})
        for (const CompileCase& c : cases_of(model, is_step, precision, {2, 8, 128, 2, 24})) {
          const compiler::Program program = trace(c);
          ++programs, kernels += program.size();
          const std::vector<std::size_t> counts = firing.count(program);
          for (std::size_t i = 0; i < rules.size(); ++i)
            if (counts[i] > 0)
              by_program[fmt::format("{} {} {}", c.model, is_step ? "step" : "forward", train::name(precision))][i] += counts[i],
                  in_all[i] += counts[i];
        }
  }
  fmt::print("{:<12} {:>9}            rules with other kernels on the two sides, of which {} fire in {} programs of {} kernels\n", "fire",
             changing, in_all.size(), programs, kernels);
  for (const auto& [rule, count] : in_all) {
    fmt::print("  {:>4}  {} => {}:", count, terms.text(rules[rule].left), terms.text(rules[rule].right));
    const char* separator = " ";
    for (const auto& [program, counts] : by_program)
      if (const auto at = counts.find(rule); at != counts.end()) fmt::print("{}{} {}", std::exchange(separator, ", "), program, at->second);
    fmt::print("\n");
  }
}

void rules(const Options& options) {
  if (options.threads > 0) set_num_threads(options.threads);
  Terms terms;
  const std::vector<Rule> rules = options.check.empty() ? find(terms, options) : check(terms, options.check);
  if (!options.models.empty()) count_firing(terms, rules, options);
}

}  // namespace

void add_rules(CLI::App& app) {
  auto* command = app.add_subcommand(
      "rules", "find graphs of up to 3 ops that may replace others, by fingerprints, and judge them in f32, bf16 and f16");
  const auto options = std::make_shared<Options>();
  apps::add_value(*command, "--ops", options->ops, "most ops of a graph", apps::whole_number(1, 3), "N");
  apps::add_value(*command, "--examples", options->examples, "rejected pairs to print, with the input that shows it",
                  apps::whole_number(0, 1000), "N");
  const auto out =
      command->add_option("--out", options->out, "write the rules that are kept, one a line with its certificate")->type_name("FILE");
  command->add_option("--check", options->check, "judge the rules of a file instead; exit code 1 if one does not hold")
      ->type_name("FILE")
      ->excludes(out);
  add_list(*command, "--models", options->models, compile_models(), ": count how often the rules fit their programs, in fp32 and bf16");
  apps::add_option(*command, "--threads", options->threads, "CPU threads (default: one for each processor)", apps::whole_number(1, 1024),
                   "N");
  command->callback([options] { rules(*options); });
}

}  // namespace tern::bench
