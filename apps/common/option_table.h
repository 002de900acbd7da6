#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "common/program.h"
#include "io/file_error.h"
#include "io/json_object.h"
#include "io/run_directory.h"
#include "text/printable.h"

namespace tern::apps {

/// An option that a run is remembered by. A program's one table of them serves the command line, its help, and config.json.
template <class Options>
struct Entry {
  std::string key;  ///< in config.json
  std::variant<std::string Options::*, bool Options::*, std::int64_t Options::*, double Options::*> member;
  Check check;             ///< of the value as text
  std::string help;        ///< "" for what has an option of its own kind
  bool may_lack = false;   ///< a run of an earlier version does not say it: the default is what it did
  std::string shown = "";  ///< as the default in the help, where it depends on more than the preset

  /// The same entry for a key that runs of an earlier version lack.
  Entry or_lacking() const {
    Entry result = *this;
    result.may_lack = true;
    return result;
  }

  /// "--batch-size" for "batch_size".
  std::string flag() const {
    std::string result = "--" + key;
    std::replace(result.begin(), result.end(), '_', '-');
    return result;
  }

  std::string text(const Options& options) const {
    return std::visit(
        [&](auto at) {
          if constexpr (std::is_same_v<decltype(at), bool Options::*>) return std::string(options.*at ? "True" : "False");
          else return fmt::format("{}", options.*at);
        },
        member);
  }

  /// Sets the value from a text that check() has passed.
  void set(Options& options, const std::string& text) const {
    std::visit(
        [&]<class T>(T Options::* at) {
          if constexpr (std::is_same_v<T, std::string>) options.*at = text;
          else if constexpr (std::is_same_v<T, bool>) options.*at = is_true(text);
          else if constexpr (std::is_same_v<T, double>) options.*at = std::stod(text);
          else options.*at = std::stoll(text);
        },
        member);
  }

  /// Throws UsageError, which names the option, for a value out of range.
  void require_valid(const Options& options) const {
    if (const std::string fault = check(text(options)); !fault.empty()) throw UsageError(fmt::format("{}: {}", flag(), fault));
  }
};

/// Throws UsageError for an option that is out of range, or for `conflict`, the fault of options that are each in their range and do not
/// fit together, "heads: expected ..."; "" if there is none.
template <class Options>
void require_valid(const std::vector<Entry<Options>>& entries, const Options& options, std::string (*conflict)(const Options&)) {
  for (const auto& entry : entries) entry.require_valid(options);
  if (const std::string fault = conflict(options); !fault.empty()) throw UsageError("--" + fault);
}

/// Options that the user gives change single values of a preset, which is known only when all are parsed.
template <class Options>
using Given = std::vector<std::pair<const Entry<Options>*, std::string>>;

/// "64", or "quick 64, classic 256" where presets differ. Their first member is the preset's name.
template <class Options>
std::string preset_values(const Entry<Options>& entry, const std::vector<Options>& presets) {
  std::vector<std::string> named;
  bool is_one = true;
  for (const Options& options : presets) {
    named.push_back(fmt::format("{} {}", options.preset, entry.text(options)));
    is_one = is_one && entry.text(options) == entry.text(presets.front());
  }
  return is_one ? entry.text(presets.front()) : fmt::format("{}", fmt::join(named, ", "));
}

/// Adds an option that keeps what the user writes in `given`, which outlives the parsing.
template <class Options>
void add_entry(CLI::App& command, const Entry<Options>& entry, const std::vector<Options>& presets, Given<Options>& given) {
  const std::string help = fmt::format("{} ({})", entry.help, entry.shown.empty() ? preset_values(entry, presets) : entry.shown);
  const auto keep = [&given, &entry](const std::string& text) { given.emplace_back(&entry, text); };
  CLI::Option* option = std::holds_alternative<bool Options::*>(entry.member)
                            ? add_switch(command, entry.flag(), help, [keep](bool value) { keep(value ? "True" : "False"); })
                            : command.add_option_function<std::string>(entry.flag(), keep, help)->check(entry.check);
  option->group("The preset's values, and options that change them");
  if (std::holds_alternative<std::int64_t Options::*>(entry.member)) option->type_name("N");
  if (std::holds_alternative<double Options::*>(entry.member)) option->type_name("X");
  if (std::holds_alternative<std::string Options::*>(entry.member)) option->type_name("NAME");
}

template <class Options>
io::JsonObject to_json(const std::vector<Entry<Options>>& entries, const Options& options) {
  io::JsonObject json;
  for (const auto& entry : entries) std::visit([&](auto at) { json.set(entry.key, options.*at); }, entry.member);
  return json;
}

/// Sets an option to the value that a configuration has for it. Throws FileError, which begins with the file's name, for a value that is
/// missing, of another type or out of range.
template <class Options>
void set_from_json(Options& options, const Entry<Options>& entry, const io::JsonObject& config, const std::filesystem::path& file) {
  std::visit(
      [&]<class T>(T Options::* at) {
        if constexpr (std::is_same_v<T, std::string>) options.*at = config.get_string(entry.key);
        else if constexpr (std::is_same_v<T, bool>) options.*at = config.get_bool(entry.key);
        else if constexpr (std::is_same_v<T, double>) options.*at = config.get_double(entry.key);
        else options.*at = config.get_int(entry.key);
      },
      entry.member);
  if (const std::string fault = entry.check(entry.text(options)); !fault.empty())
    throw io::FileError(fmt::format("{}: {}: {}", file.string(), entry.key, fault));
}

/// The options of an earlier run. Throws FileError as set_from_json().
template <class Options>
Options from_json(const std::vector<Entry<Options>>& entries, const io::JsonObject& config, const std::filesystem::path& file) {
  Options options;
  for (const auto& entry : entries)
    if (!entry.may_lack || config.contains(entry.key)) set_from_json(options, entry, config, file);
  return options;
}

/// `--config FILE`: options that come between the preset's and those of the command line.
inline void add_config_option(CLI::App& command, std::string& file) {
  command
      .add_option("--config", file,
                  "config.json of a run, or a JSON object of some of its keys: values that change the preset's, and that options change")
      ->type_name("FILE");
}

/// Options given by a configuration: a JSON object with any of the table's keys, as RUN/config.json is one; nothing for "". For a directory
/// its config.json is read. Throws UsageError for a key that is no option, FileError for a file that cannot be read and as set_from_json().
template <class Options>
Given<Options> read_config(const std::vector<Entry<Options>>& entries, std::filesystem::path file) {
  Given<Options> given;
  if (file.empty()) return given;
  if (std::error_code ignored; std::filesystem::is_directory(file, ignored)) file /= "config.json";
  const io::JsonObject config = io::read_json(file);
  std::vector<std::string> known;
  for (const auto& entry : entries) known.push_back(entry.key);
  for (const std::string& key : config.keys()) {
    if (key == "tern_run") continue;  // which a run's config.json is known by
    const auto entry = std::find_if(entries.begin(), entries.end(), [&](const auto& each) { return each.key == key; });
    if (entry == entries.end())
      throw UsageError(fmt::format("{}: there is no option \"{}\"{}", file.string(), text::printable(key, 60), suggestion(key, known)));
    Options options;
    set_from_json(options, *entry, config, file);
    given.emplace_back(&*entry, entry->text(options));
  }
  return given;
}

/// The value that was given last for a key.
template <class Options>
std::optional<std::string> find_given(const Given<Options>& given, const std::string& key) {
  const auto found = std::find_if(given.rbegin(), given.rend(), [&](const auto& each) { return each.first->key == key; });
  return found != given.rend() ? std::optional(found->second) : std::nullopt;
}

}  // namespace tern::apps
