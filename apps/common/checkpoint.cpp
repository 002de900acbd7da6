#include "common/checkpoint.h"

#include <fmt/format.h>

#include "common/model.h"
#include "text/printable.h"

namespace tern::apps {

namespace {

/// Key of the metadata that marks a checkpoint; the value is the program's name.
constexpr const char* marker = "tern.checkpoint";
/// Key of the data's digest, named like those of files.
const std::string data_digest_key = std::string(io::checksum_key) + ":data";

}  // namespace

void add_checkpoint_options(CLI::App& command, CheckpointOptions& options) {
  command.add_flag("--resume", options.resume, "go on with the run in --out from its last checkpoint, with its options");
  command
      .add_option("--checkpoint-every", options.every,
                  "updates between checkpoints, 0 for once an epoch (default: 0, or as the run had it)")
      ->check(whole_number(0, 1'000'000'000))
      ->type_name("N");
  command
      .add_option("--keep", options.keep, "newest checkpoints that are kept, beside the best model's (default: 1, or as the run had it)")
      ->check(whole_number(1, 1'000'000))
      ->type_name("N");
}

io::Metadata to_metadata(const std::string& program, const CheckpointHead& head) {
  return {{"format", "pt"},
          {marker, program},
          {"config", head.config.dump()},
          {"numbers", head.numbers.dump()},
          {"data", head.data},
          {data_digest_key, head.data_digest},
          {"every", fmt::to_string(head.options.every.value_or(0))},
          {"keep", fmt::to_string(head.options.keep.value_or(1))}};
}

void require_size(const CheckpointHead& head, std::int64_t parameters) {
  std::error_code error;
  const auto bytes = static_cast<double>(std::filesystem::file_size(head.file.path, error)), elements = static_cast<double>(parameters);
  if (!error && bytes < 12 * elements)
    throw io::FileError(
        fmt::format("{}: does not fit the model that it names: {:.3g} elements with their moments do not fit in {:.0f} bytes",
                    head.file.path, elements, bytes));
}

std::string resumed_from(const CheckpointHead& head, std::int64_t total_updates) {
  return fmt::format("from update {} of {}: {}", head.file.update, total_updates, text::printable(head.file.path));
}

std::string changed_schedule(const CheckpointHead& head, std::int64_t total_updates) {
  const std::int64_t before = head.numbers.get_object("loop").get_int("updates");
  if (before == total_updates) return "";
  return fmt::format("\nschedule the rate fell to 0 by update {} and now falls to 0 by update {}, so that it jumps here", before,
                     total_updates);
}

void read_checkpoint(const std::filesystem::path& run, const std::function<void()>& read) {
  try {
    read();
  } catch (const io::DiskError&) {
    throw;
  } catch (const io::FileError& error) {
    const std::vector<io::CheckpointFile> files = io::RunDirectory::require_checkpoints(run);
    if (files.size() < 2) throw;
    throw io::FileError(fmt::format("{}; remove it, and --resume goes on from {}", error.what(),
                                    std::filesystem::path(files[files.size() - 2].path).filename().string()));
  }
}

CheckpointHead last_checkpoint(const std::string& program, const std::filesystem::path& run) {
  CheckpointHead head{.file = io::RunDirectory::require_checkpoints(run).back()};
  const std::string path = head.file.path;
  io::Metadata metadata;
  read_checkpoint(run, [&] { metadata = io::load_safetensors_metadata(head.file.path); });
  const auto text = [&](const std::string& key) -> const std::string& {
    const auto found = metadata.find(key);
    if (found == metadata.end()) throw io::FileError(fmt::format("{}: is no checkpoint: its metadata lacks the key \"{}\"", path, key));
    return found->second;
  };
  const auto number = [&](const std::string& key, const Check& check) -> std::int64_t {
    if (const std::string fault = check(text(key)); !fault.empty()) throw io::FileError(fmt::format("{}: {}: {}", path, key, fault));
    return std::stoll(text(key));
  };
  if (text(marker) != program)
    throw io::FileError(fmt::format("{}: expected a checkpoint of {} but got one of {}", path, program, text::printable(text(marker), 60)));
  text(io::checksum_key);  // required: without a checksum the loader could not detect damage
  head.config = io::JsonObject::parse(text("config"), path);
  head.numbers = io::JsonObject::parse(text("numbers"), path);
  head.data = text("data");
  head.data_digest = text(data_digest_key);
  head.options.every = number("every", whole_number(0, 1'000'000'000));
  head.options.keep = number("keep", whole_number(1, 1'000'000));
  return head;
}

}  // namespace tern::apps
