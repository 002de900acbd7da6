#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/option_table.h"
#include "io/json_object.h"
#include "io/run_directory.h"
#include "nn/decoder_lm.h"

namespace tern::apps {

/// Options of checkpoints. They do not affect the results of a training.
struct CheckpointOptions {
  bool resume = false;                ///< continue the run in --out
  std::optional<std::int64_t> every;  ///< updates between checkpoints; 0: one at the end of each epoch
  std::optional<std::int64_t> keep;   ///< number of newest checkpoints to keep
};
/// Adds --resume, --checkpoint-every and --keep.
void add_checkpoint_options(CLI::App& command, CheckpointOptions& options);

/// The metadata of a checkpoint: configuration, counts and position in the data. They are read before the file's checksum is verified, so
/// that users of a value have to check it.
struct CheckpointHead {
  io::CheckpointFile file;
  io::JsonObject config;   ///< the run's configuration at that time
  io::JsonObject numbers;  ///< epoch, update and position in the data
  std::string data;        ///< directory of the data; "" if there is none
  std::string data_digest;
  CheckpointOptions options;
};
/// Calls `read`, which reads the newest checkpoint of a run: a FileError that it throws says which older one is left, if there is one.
void read_checkpoint(const std::filesystem::path& run, const std::function<void()>& read);

/// Reads the metadata of a run's newest checkpoint. Throws FileError if there is none, or if it is another program's.
CheckpointHead last_checkpoint(const std::string& program, const std::filesystem::path& run);

/// Throws FileError unless the file is large enough for a float32 model of `parameters` parameters with two moments each, before memory is
/// allocated for the model that a damaged configuration may describe.
void require_size(const CheckpointHead& head, std::int64_t parameters);
/// The text "from update 120 of 400: RUN/checkpoints/...".
std::string resumed_from(const CheckpointHead& head, std::int64_t total_updates);
/// A warning that a changed number of updates changes a schedule that ends with the training; "" if it does not.
std::string changed_schedule(const CheckpointHead& head, std::int64_t total_updates);

io::Metadata to_metadata(const std::string& program, const CheckpointHead& head);

/// The options of a resumed run: those of its checkpoint, except for given ones that `may_change` lists. Throws UsageError for another
/// given option whose value differs from the checkpoint's, FileError for a checkpoint with invalid options.
template <class Options>
Options resumed_options(const std::vector<Entry<Options>>& entries, const CheckpointHead& head, const Given<Options>& given,
                        const std::vector<std::string>& may_change) {
  const Options before = from_json(entries, head.config, head.file.path);
  Options options = before;
  for (const auto& [entry, text] : given) {
    Options changed = before;
    entry->set(changed, text);
    const bool may = std::find(may_change.begin(), may_change.end(), entry->key) != may_change.end();
    if (!may && entry->text(changed) != entry->text(before))
      throw UsageError(fmt::format("{} {}: the run has {}, and goes on with it; leave the option out, or train anew without --resume",
                                   entry->flag(), entry->text(changed), entry->text(before)));
    entry->set(options, text);
  }
  return options;
}

}  // namespace tern::apps
