#include "common/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <tern/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <new>
#include <numeric>
#include <optional>
#include <string_view>

#include "backend/parse.h"
#include "io/files.h"
#include "parallel/store.h"
#include "text/data_error.h"
#include "text/unicode.h"
#include "trainer/ranks.h"
#include "trainer/terminal.h"

namespace tern::apps {

namespace {

/// Opens closed standard streams so that they fail at every use. Otherwise the next file to be opened would get the descriptor, and printed
/// text would go into it.
void fill_closed_streams() {
  for (int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0) static_cast<void>(::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY));
}

/// The Levenshtein distance of two words.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j)
      diagonal = std::exchange(row[j + 1], std::min({row[j] + 1, row[j + 1] + 1, diagonal + (a[i] != b[j])}));
  }
  return row.back();
}

/// The message for arguments that belong to no option.
std::string unexpected(const CLI::App& app) {
  const std::vector<CLI::App*> given = app.get_subcommands();
  const CLI::App& command = given.empty() ? app : *given.front();
  const std::vector<std::string> rest = app.remaining(true);
  const auto first = std::find_if(rest.begin(), rest.end(), [](const std::string& word) { return word.starts_with("-"); });
  if (first == rest.end()) return fmt::format("unexpected argument {}", rest.empty() ? "" : rest.front());
  const std::string word = first->substr(0, first->find('='));
  std::vector<std::string> options;
  for (const CLI::Option* option : command.get_options())
    if (!option->get_lnames().empty()) options.push_back("--" + option->get_lnames().at(0));  // positional options have no name
  return fmt::format("there is no option {}{}", word, suggestion(word, options));
}

void require_subcommand(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) names.push_back(command->get_name());
  const std::string word = argc > 1 ? argv[1] : "";
  if (names.empty() || word.starts_with("-") || contains(names, word)) return;
  throw UsageError(
      fmt::format("expected a subcommand ({}){}", fmt::join(names, ", "), argc > 1 ? " but got " + word + suggestion(word, names) : ""));
}

/// Throws UsageError for an option whose value is missing. CLI11 takes the next word for it: of "--out --preset quick" it would say that
/// quick is unexpected.
void require_values(const CLI::App& app, int argc, char** argv) {
  const std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const auto commands = app.get_subcommands([&](const CLI::App* command) { return !words.empty() && command->get_name() == words[0]; });
  if (commands.empty()) return;
  const auto option_of = [&](const std::string& word) { return word.starts_with("--") ? commands[0]->get_option_no_throw(word) : nullptr; };
  for (std::size_t i = 1; i + 1 < words.size() && words[i] != "--"; ++i)
    if (const CLI::Option* option = option_of(words[i]); option && option->get_items_expected_min() > 0 && option_of(words[i + 1]))
      throw UsageError(fmt::format("{}: expected a value but got {}", words[i], words[i + 1]));
}

/// The message for an error of CLI11.
std::string describe(const CLI::ParseError& error, const CLI::App& app) {
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ValidationError*>(&error)) return text;
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) return text.substr(0, text.find(':')) + ": expected a value";
  // CLI11 reports a missing required option before an unknown one, which may be its misspelling.
  const std::string message = app.remaining_size(true) > 0 ? unexpected(app) : text;
  const std::vector<CLI::App*> given = app.get_subcommands();
  return fmt::format("{} ({}{} --help lists the options)", message, app.get_name(), given.empty() ? "" : " " + given.front()->get_name());
}

/// A text for a message.
std::string quoted(const std::string& text) { return text.empty() ? "\"\"" : text::printable(text, 60); }

/// N of "cuda:N".
std::optional<int> cuda_index(const std::string& device) {
  constexpr std::string_view prefix = "cuda:";
  if (!device.starts_with(prefix)) return std::nullopt;
  const std::optional<int> index = backend::parse_number<int>(std::string_view(device).substr(prefix.size()));
  return index && *index >= 0 ? index : std::nullopt;
}

std::string device_name(const std::string& text) {
  static const std::vector<std::string> words = {"cpu", "cuda", "auto"};
  if (cuda_index(text) || contains(words, text)) return "";
  return fmt::format("expected cpu, cuda, cuda:N, auto but got {}{}", quoted(text), suggestion(text, words));
}

template <class T>
Check number(const char* kind, T low, T high) {
  return [=](const std::string& text) -> std::string {
    const std::optional<T> value = backend::parse_number<T>(text);
    bool is_valid = value && *value >= low && *value <= high;
    // A subnormal number such as 1e-320 is a mistake, and some functions that parse numbers refuse it.
    if constexpr (!std::is_integral_v<T>) is_valid = is_valid && (*value == 0 || std::isnormal(*value));
    if (is_valid) return "";
    return fmt::format("expected a {} from {} to {} but got {}", kind, low, high, quoted(text));
  };
}

}  // namespace

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const auto nearest =
      std::min_element(known.begin(), known.end(), [&](const auto& a, const auto& b) { return distance(word, a) < distance(word, b); });
  return nearest != known.end() && distance(word, *nearest) <= 3 ? fmt::format("; did you mean {}?", *nearest) : "";
}

int run(CLI::App& app, int argc, char** argv, const std::string& memory_hint) {
  fill_closed_streams();
  train::ignore_write_signals();
  app.set_version_flag(
      "--version", fmt::format("{} {}, built {} CUDA, {}", app.get_name(), version(), built_with_cuda ? "with" : "without", cpu_variant()),
      "Print the version and exit");
  const auto complain = [&](const std::string& message, int code) {
    std::fflush(stdout);
    train::write_message(fmt::format("{}: {}\n", app.get_name(), text::printable(message)));
    return code;
  };
  const auto end_output = [&] {
    const std::string fault = train::output_fault();
    return fault.empty() ? 0 : complain("the output could not be written: " + fault, 1);
  };
  try {
    require_subcommand(app, argc, argv);
    require_values(app, argc, argv);
    app.parse(argc, argv);
    return end_output();
  } catch (const CLI::Success& help) {
    app.exit(help);
    return end_output();
  } catch (const CLI::ParseError& error) {
    return complain(describe(error, app), 2);
  } catch (const train::Stopped& stop) {
    if (train::is_muted()) return 128 + stop.signal;  // rank 0 prints the message
    return complain(stop.what(), 128 + stop.signal);
  } catch (const io::DiskError& error) {
    return complain(error.what(), 1);
  } catch (const text::DataError& error) {
    return complain(error.what(), 2);
  } catch (const UsageError& error) {
    return complain(error.what(), 2);
  } catch (const OutOfMemory& error) {
    return complain(fmt::format("out of memory: {}: {}", memory_hint, error.what()), 1);
  } catch (const Error& error) {
    return complain(error.what(), train::is_failure_of_other_rank(error) ? 1 : 2);
  } catch (const std::bad_alloc&) {
    return complain("out of memory: " + memory_hint, 1);
  } catch (const std::exception& error) {
    return complain(error.what(), 1);
  }
}

int run(const std::string& description, const std::string& name, const std::vector<void (*)(CLI::App&)>& commands, int argc, char** argv,
        const std::string& memory_hint) {
  CLI::App app(description, name);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  for (const auto add : commands) add(app);
  return run(app, argc, argv, memory_hint);
}

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Check whole_number(std::int64_t low, std::int64_t high) { return number("whole number", low, high); }
Check real_number(double low, double high) { return number("number", low, high); }

Check one_of(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& text) -> std::string {
    if (contains(words, text)) return "";
    return fmt::format("expected {} but got {}{}", fmt::join(words, ", "), quoted(text), suggestion(text, words));
  };
}

Check positive_count() { return whole_number(1, 1'000'000); }
Check count_or_none() { return whole_number(0, 1'000'000'000); }
Check seed_value() { return whole_number(0, std::int64_t{1} << 53); }

Check truth_value() {
  return [](const std::string& text) -> std::string {
    for (const char* known : {"", "true", "false", "1", "0", "yes", "no", "on", "off"})
      if (CLI::detail::to_lower(text) == known) return "";
    return fmt::format("expected True or False but got {}", quoted(text));
  };
}

bool is_true(const std::string& text) {
  const std::string word = CLI::detail::to_lower(text);
  return word != "false" && word != "0" && word != "no" && word != "off";
}

void add_processor_options(CLI::App& command, Processors& processors) {
  add_value(command, "--device", processors.device, "cpu, cuda, cuda:N for the GPU of that index, or auto: cuda where a GPU answers",
            device_name, "NAME");
  add_option(command, "--threads", processors.threads, "CPU threads (default: one for each processor)", whole_number(1, 1024), "N");
}

Device use(const Processors& processors) {
  if (processors.threads > 0) set_num_threads(processors.threads);
  const std::string& device = processors.device;
  const int gpus = cuda_device_count();
  if (device.starts_with("cuda") && gpus == 0) {
    const char* const why = built_with_cuda ? "no GPU answers; use --device cpu, or check nvidia-smi"
                                            : "this program was built without CUDA; configure with -DTERN_CUDA=ON, or use --device cpu";
    throw UsageError(fmt::format("--device {}: {}", device, why));
  }
  if (device == "cpu" || gpus == 0) return cpu;
  const std::optional<parallel::LaunchEnvironment> ranks = parallel::launch_environment();
  if (ranks && ranks->local_size > 1) {
    if (cuda_index(device))
      throw UsageError(fmt::format("--device {}: expected cuda, of which each of {} processes takes one", device, ranks->local_size));
    if (ranks->local_size > gpus)
      throw UsageError(fmt::format("--device {}: expected a GPU for each of {} processes of this machine, but {}", device,
                                   ranks->local_size, gpus == 1 ? "one GPU answers" : fmt::format("{} GPUs answer", gpus)));
    return cuda(ranks->local_rank);
  }
  const int index = cuda_index(device).value_or(0);
  if (index >= gpus)
    throw UsageError(fmt::format("--device {}: expected an index below {}, as {} here", device, gpus,
                                 gpus == 1 ? "one GPU answers" : fmt::format("{} GPUs answer", gpus)));
  return cuda(index);
}

std::string describe(Device device) {
  if (device.type == DeviceType::cpu) return counted(num_threads(), "CPU thread");
  return to_string(device);
}

std::string describe_step(bool use_fused_kernel, Device device, bool compile) {
  return fmt::format("{} kernels{}", use_fused_kernel ? "fused" : "plain",
                     compile                           ? ", each step compiled"
                     : device.type == DeviceType::cuda ? ", each step one CUDA graph"
                                                       : "");
}

CLI::Option* add_switch(CLI::App& command, const std::string& name, const std::string& help, const std::function<void(bool)>& set) {
  return command.add_option_function<std::string>(
                    name, [set](const std::string& text) { set(is_true(text)); }, help)
      ->expected(0, 1)
      ->type_name("[True|False]")
      ->check(truth_value());
}

void require_named(const std::string& option, const std::string& directory) {
  if (directory.empty()) throw UsageError(option + ": expected a directory but got \"\"");
}

void make_directory(const std::string& option, const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw UsageError(fmt::format("{}: {} could not be made: {}", option, directory.string(), error.message()));
}

std::string duration(double seconds) {
  const auto whole = static_cast<long>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

std::string counted(std::int64_t count, const std::string& noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

std::vector<std::string> words(const std::string& list) {
  if (list.empty()) return {};
  std::vector<std::string> result(1);
  for (const char c : list)
    if (c == ',') result.emplace_back();
    else result.back() += c;
  return result;
}

std::vector<std::int64_t> numbers(const std::string& list) {
  std::vector<std::int64_t> result;
  for (const std::string& word : words(list)) result.push_back(std::stoll(word));
  return result;
}

std::vector<double> reals(const std::string& list) {
  std::vector<double> result;
  for (const std::string& word : words(list)) result.push_back(std::stod(word));
  return result;
}

Check list_of(Check check) {
  return [check = std::move(check)](const std::string& text) {
    if (text.empty()) return check(text);
    for (const std::string& word : words(text))
      if (const std::string fault = check(word); !fault.empty()) return fault;
    return std::string();
  };
}

}  // namespace tern::apps
