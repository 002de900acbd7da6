#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "common/training_settings.h"
#include "trainer/trainer.h"

namespace tern::apps {

/// The command line of a training, beside what its program adds.
template <class Options>
struct TrainingArguments : RunSettings {
  std::string config;    ///< of --config
  Given<Options> given;  ///< options of the table on the command line

  /// The given options of --config and the command line, which come last.
  Given<Options> all(const std::vector<Entry<Options>>& entries) const {
    Given<Options> result = read_config(entries, config);
    result.insert(result.end(), given.begin(), given.end());
    return result;
  }

  /// The options of the resumed run: those of its checkpoint, except for given ones that `may_change` lists. Throws UsageError for another
  /// given option whose value differs from the checkpoint's, FileError for a checkpoint with invalid options.
  Options resumed(const std::string& program, const std::vector<Entry<Options>>& entries,
                  const std::vector<std::string>& may_change) const {
    const train::CheckpointHead head = train::last_checkpoint(program, out);
    const Options before = from_json(entries, head.config, head.file.path);
    Options options = before;
    for (const auto& [entry, text] : all(entries)) {
      Options changed = before;
      entry->set(changed, text);
      if (!contains(may_change, entry->key) && entry->text(changed) != entry->text(before))
        throw UsageError(fmt::format("{} {}: the run has {}, and goes on with it; leave the option out, or train anew without --resume",
                                     entry->flag(), entry->text(changed), entry->text(before)));
      entry->set(options, text);
    }
    static_cast<RunSettings&>(options) = *this;
    if (data.empty()) options.data = head.data;
    return options;
  }
};

/// The trainer's options that are settings. `per_epoch` is the number of an epoch's updates.
train::TrainerOptions trainer_options(const TrainingSettings& settings, std::int64_t per_epoch);

/// A training that writes a run: its processes and files, and the words that it begins and ends with.
class Session {
 public:
  /// Connects the processes, and opens the run in settings.out, whose configuration is `config`. An earlier run in it stays until this one
  /// has a model. `started` is the time at which the program began. Throws as train::Ranks and train::Run do.
  Session(const char* program, const TrainingSettings& settings, Device device, const io::JsonObject& config, double started);

  /// Sets the directory of the data and their checksum. Throws UsageError unless all processes have the same options and data.
  void set_data(const std::string& path, const std::string& digest);
  /// Prints how many updates the trainer makes, of what, such as "2048 tokens", and how; `rule` is that of the optimizer, if it is said.
  void say_training(const train::Trainer& trainer, const std::string& batch, const std::string& rule = "") const;
  /// The numbers of a training that has ended; those per second are of `unit`.
  io::JsonObject summary(const train::Trainer& trainer, std::int64_t parameters, const std::string& unit) const;
  /// Finishes the run with those numbers and a program's own, and prints the last line.
  void finish(const io::JsonObject& summary);

  train::Ranks ranks;                ///< the processes
  const train::StopSignals signals;  ///< caught from the beginning
  train::Run run;                    ///< the files

 private:
  const TrainingSettings settings_;
  const Device device_;
  const std::string config_;
  const double started_;
};

}  // namespace tern::apps
