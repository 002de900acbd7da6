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

/// Options of checkpoints, which results do not depend on.
struct CheckpointOptions {
  bool resume = false;                ///< the run in --out goes on
  std::optional<std::int64_t> every;  ///< updates between checkpoints; 0: once an epoch
  std::optional<std::int64_t> keep;   ///< the newest ones that are kept
};
/// --resume, --checkpoint-every and --keep.
void add_checkpoint_options(CLI::App& command, CheckpointOptions& options);

/// Configuration, counts and place in the data of a checkpoint, without its tensors. The metadata of a file whose checksum has not been
/// read yet: values are checked by who uses them.
struct CheckpointHead {
  io::CheckpointFile file;
  io::JsonObject config;   ///< of the run when it was written
  io::JsonObject numbers;  ///< epoch, update and place in the data
  std::string data;        ///< the directory that it read, "" where there is none
  std::string data_digest;
  CheckpointOptions options;
};
/// Calls `read`, which reads the newest checkpoint of a run: a FileError that it throws says which older one is left, if there is one.
void read_checkpoint(const std::filesystem::path& run, const std::function<void()>& read);

/// Of the newest checkpoint of a run. Throws FileError where there is none, or another program's.
CheckpointHead last_checkpoint(const std::string& program, const std::filesystem::path& run);

/// Throws FileError unless the file is large enough for a model of so many parameters with their two moments, in float32: memory is taken
/// as its configuration says.
void require_size(const CheckpointHead& head, std::int64_t parameters);
/// "from update 120 of 400: RUN/checkpoints/...".
std::string resumed_from(const CheckpointHead& head, std::int64_t total_updates);
/// For a schedule that ends with the training: what another end of it changes, or "".
std::string changed_schedule(const CheckpointHead& head, std::int64_t total_updates);

io::Metadata to_metadata(const std::string& program, const CheckpointHead& head);

/// The options of a run that goes on: those of its checkpoint, but for the given ones of `may_change`. The others may be given as they
/// are. Throws UsageError for one that differs, FileError for a checkpoint whose options are not valid.
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
