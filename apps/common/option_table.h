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
#include "io/files.h"
#include "io/json_object.h"
#include "io/run_directory.h"
#include "text/unicode.h"

namespace tern::apps {

/// An option that is stored with a run. A program has one table of entries for the command line, its help and config.json.
template <class Options>
struct Entry {
  std::string key;  ///< key in config.json
  std::variant<std::string Options::*, bool Options::*, std::int64_t Options::*, double Options::*> member;
  Check check;             ///< check of the value's text
  std::string help;        ///< "" if the option is added by a function of its own
  bool may_lack = false;   ///< config.json of an earlier version may lack the key, which then means the default
  std::string shown = "";  ///< the default in the help, if it depends on more than the preset

  /// The same entry with may_lack.
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

  /// Sets the value from a text that `check` accepts.
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

/// The entry of a key that is in the table.
template <class Options>
const Entry<Options>& entry_of(const std::vector<Entry<Options>>& entries, const std::string& key) {
  return *std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.key == key; });
}

/// Throws UsageError for an option that is out of range, and if `conflict` returns the fault of options that do not fit together, such as
/// "heads: expected ...", and not "".
template <class Options>
void require_valid(const std::vector<Entry<Options>>& entries, const Options& options, std::string (*conflict)(const Options&)) {
  for (const auto& entry : entries) entry.require_valid(options);
  if (const std::string fault = conflict(options); !fault.empty()) throw UsageError("--" + fault);
}

template <class Options>
std::vector<std::string> preset_names(const std::vector<Options>& presets) {
  std::vector<std::string> names;
  for (const Options& options : presets) names.push_back(options.preset);
  return names;
}

/// The preset of that name. Throws UsageError for an unknown one.
template <class Options>
Options find_preset(const std::vector<Options>& presets, const std::string& name) {
  for (const Options& options : presets)
    if (options.preset == name) return options;
  throw UsageError("--preset: " + one_of(preset_names(presets))(name));
}

/// The options that the user has given, with their texts. They are applied after parsing, when the preset is known.
template <class Options>
using Given = std::vector<std::pair<const Entry<Options>*, std::string>>;

/// The default in the help: "64", or "quick 64, classic 256" if presets differ.
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

/// Adds an option that appends the user's text to `given`, which has to outlive the parsing.
template <class Options>
CLI::Option* add_entry(CLI::App& command, const Entry<Options>& entry, const std::string& help, Given<Options>& given) {
  const auto keep = [&given, &entry](const std::string& text) { given.emplace_back(&entry, text); };
  CLI::Option* option = std::holds_alternative<bool Options::*>(entry.member)
                            ? add_switch(command, entry.flag(), help, [keep](bool value) { keep(value ? "True" : "False"); })
                            : command.add_option_function<std::string>(entry.flag(), keep, help)->check(entry.check);
  if (std::holds_alternative<std::int64_t Options::*>(entry.member)) option->type_name("N");
  if (std::holds_alternative<double Options::*>(entry.member)) option->type_name("X");
  if (std::holds_alternative<std::string Options::*>(entry.member)) option->type_name("NAME");
  return option;
}

/// Adds the entries that have a help, which then shows their defaults, except those with a key in `without`.
template <class Options>
void add_entries(CLI::App& command, const std::vector<Entry<Options>>& entries, const std::vector<Options>& presets, Given<Options>& given,
                 const std::vector<std::string>& without = {}) {
  for (const Entry<Options>& entry : entries) {
    if (entry.help.empty() || contains(without, entry.key)) continue;
    const std::string values = entry.shown.empty() ? preset_values(entry, presets) : entry.shown;
    add_entry(command, entry, fmt::format("{} ({})", entry.help, values), given)
        ->group("The preset's values, and options that change them");
  }
}

template <class Options>
io::JsonObject to_json(const std::vector<Entry<Options>>& entries, const Options& options) {
  io::JsonObject json;
  for (const auto& entry : entries) std::visit([&](auto at) { json.set(entry.key, options.*at); }, entry.member);
  return json;
}

/// Sets an option from a configuration. Throws FileError, which begins with the file's name, for a value that is missing, of another type
/// or out of range.
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

/// Adds `--config FILE`, whose options override the preset's and are overridden by those of the command line.
inline void add_config_option(CLI::App& command, std::string& file) {
  command
      .add_option("--config", file,
                  "config.json of a run, or a JSON object of some of its keys: values that change the preset's, and that options change")
      ->type_name("FILE");
}

/// Reads options from a JSON object with some of the table's keys, such as RUN/config.json; for a directory, from its config.json. None if
/// `file` is "". Throws UsageError for an unknown key, FileError for a file that cannot be read and as set_from_json().
template <class Options>
Given<Options> read_config(const std::vector<Entry<Options>>& entries, std::filesystem::path file) {
  Given<Options> given;
  if (file.empty()) return given;
  if (std::error_code ignored; std::filesystem::is_directory(file, ignored)) file /= "config.json";
  const io::JsonObject config = io::read_json(file);
  std::vector<std::string> known;
  for (const auto& entry : entries) known.push_back(entry.key);
  for (const std::string& key : config.keys()) {
    if (key == "tern_run") continue;  // the mark of a run's config.json
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
