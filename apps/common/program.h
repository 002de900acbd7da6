#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensor/tensor.h"
#include "trainer/terminal.h"

namespace tern::apps {

/// Parses the arguments, runs the subcommand's callback, and returns the exit code: 0, 2 for a mistake of the user's
/// (an unknown option, a bad file, an impossible size), 1 for other errors (no memory, a full disk, a bug), and
/// 128 + N for an orderly stop by signal N. `--version` prints the program's name and version, if CUDA is built in, and the processors that
/// the kernels are for. An error is one line on stderr that starts with the program's name; `memory_hint` is appended if memory ran out.
int run(CLI::App& app, int argc, char** argv, const std::string& memory_hint);

/// The same for a program of subcommands, each of which a function adds with its options. Of an option that is given twice the last value
/// counts.
int run(const std::string& description, const std::string& name, const std::vector<void (*)(CLI::App&)>& commands, int argc, char** argv,
        const std::string& memory_hint);

/// True if a word is among others.
bool contains(const std::vector<std::string>& words, const std::string& word);

/// The text "; did you mean --epochs?" with the closest of the known words; "" if none is close.
std::string suggestion(const std::string& word, const std::vector<std::string>& known);

/// A fault in the user's options, found before any work is done.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The argument of CLI11's check(). Returns "" for a valid text, else a message with the expected and the given text.
using Check = std::function<std::string(const std::string&)>;
Check whole_number(std::int64_t low, std::int64_t high);
Check real_number(double low, double high);
Check one_of(std::vector<std::string> words);
/// @{
/// Checks of counts, from 1 and from 0. The upper bounds only keep absurd values from arithmetic and allocation.
Check positive_count();
Check count_or_none();
/// @}
/// Check of a seed: up to 2^53, which every reader of JSON represents exactly.
Check seed_value();
/// Check of a boolean: True, False and synonyms in any case, or "", which CLI11 passes for `--name` without a value.
Check truth_value();
bool is_true(const std::string& text);

/// @{
/// Adds an option, without its default in the help and with it.
template <class T>
CLI::Option* add_option(CLI::App& command, const char* name, T& value, const std::string& help, const Check& check, const char* type) {
  return command.add_option(name, value, help)->check(check)->type_name(type);
}
template <class T>
CLI::Option* add_value(CLI::App& command, const char* name, T& value, const std::string& help, const Check& check, const char* type) {
  return add_option(command, name, value, help, check, type)->capture_default_str();
}
/// @}

/// The device and the threads of a command.
struct Processors {
  std::string device = "auto";  ///< text of --device
  int threads = 0;              ///< of --threads; 0: one for each processor
};
/// Adds `--device cpu|cuda|cuda:N|auto` and `--threads N`.
void add_processor_options(CLI::App& command, Processors& processors);
/// The device of the options, with their number of threads from now on. A process of a launcher uses the GPU of its local rank. Throws
/// UsageError for a GPU that does not respond.
Device use(const Processors& processors);
/// A device as text: "cuda:0" or "2 CPU threads".
std::string describe(Device device);
/// The execution of a step as text: "fused kernels", and ", each step compiled", or on a GPU ", each step one CUDA graph".
std::string describe_step(bool use_fused_kernel, Device device, bool compile = false);

/// Adds a switch with an optional value: `--name`, `--name True`, `--name=false`.
CLI::Option* add_switch(CLI::App& command, const std::string& name, const std::string& help, const std::function<void(bool)>& set);

/// Throws UsageError if an option that names a directory is empty.
void require_named(const std::string& option, const std::string& directory);
/// Makes the directory that an option names, and its parents. Throws UsageError.
void make_directory(const std::string& option, const std::filesystem::path& directory);

/// Writes to stdout by train::write_output().
template <class... Values>
void say(fmt::format_string<Values...> format, Values&&... values) {
  train::write_output(fmt::format(format, std::forward<Values>(values)...));
}

/// A duration as text: "1 h 05 min", "3 min 20 s", "45 s".
std::string duration(double seconds);
/// A count as text: "1 layer", "2 layers".
std::string counted(std::int64_t count, const std::string& noun);

// Flags that take several values: --dtype bf16,fp32.

/// The words of a list, split at commas; none for an empty text.
std::vector<std::string> words(const std::string& list);
/// The integers of a list that list_of(whole_number()) has checked.
std::vector<std::int64_t> numbers(const std::string& list);
/// The numbers of a list that list_of(real_number()) has checked.
std::vector<double> reals(const std::string& list);

/// A check of a list: it has at least one word, and each passes `check`.
Check list_of(Check check);

/// The quantile of values for a share in [0, 1], without interpolation: the sorted value nearest to index share * (n - 1), the upper of two
/// equally near. 0.5 is the median. 0 for no values.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

/// Bounds of a share.
struct Interval {
  double low = 0, high = 1;
};
/// The 95% confidence interval of a share, `correct` of `answers`, by Wilson (1927), which is valid also near 0 and 1.
inline Interval wilson(std::int64_t correct, std::int64_t answers) {
  constexpr double z = 1.959963984540054;
  const auto n = static_cast<double>(answers);
  const double p = static_cast<double>(correct) / n, shrunk = 1 + z * z / n;
  const double middle = (p + z * z / (2 * n)) / shrunk;
  const double half = z / shrunk * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  return {std::max(middle - half, 0.0), std::min(middle + half, 1.0)};  // clamps rounding errors
}

}  // namespace tern::apps
