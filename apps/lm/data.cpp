#include "lm/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "backend/error.h"
#include "io/files.h"
#include "io/json_object.h"

namespace tern::lm {

namespace fs = std::filesystem;

void TokenList::add(data::TokenFile file) {
  ends_.push_back(size() + file.size());
  files_.push_back(std::move(file));
}

void TokenList::read(std::int64_t first, std::span<std::int64_t> to) const {
  const auto count = static_cast<std::int64_t>(to.size());
  if (first < 0 || first + count > size()) fail("TokenList", fmt::format("expected tokens below {} but got {}", size(), first + count));
  auto file = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), first) - ends_.begin());
  for (std::int64_t done = 0; done < count; ++file) {
    const std::int64_t begin = file == 0 ? 0 : ends_[file - 1], some = std::min(ends_[file] - first - done, count - done);
    files_[file].read(first + done - begin, to.subspan(static_cast<std::size_t>(done), static_cast<std::size_t>(some)));
    done += some;
  }
}

std::string shard_path(const std::string& directory, std::size_t index) {
  return (fs::path(directory) / fmt::format("train-{:05}.bin", index)).string();
}

PreparedData PreparedData::open(const std::string& path) {
  const fs::path directory = path;
  const std::string about = (directory / "data.json").string();
  const io::JsonObject json = io::read_json(about);
  if (!json.contains("tern_data")) throw io::FileError(fmt::format("{}: expected data that tern-lm prepare wrote", about));
  PreparedData data{.tokenizer = text::Tokenizer::load((directory / "tokenizer.json").string()),
                    .end_of_text = json.get_int("end_of_text"),
                    .train = {},
                    .valid = {},
                    .train_bytes = json.get_int("train_bytes"),
                    .valid_bytes = json.get_int("valid_bytes"),
                    .digest = json.get_string("digest")};
  bool fits = true;
  const std::vector<std::int64_t> shards = json.get_ints("shard_tokens");
  for (std::size_t i = 0; i < shards.size(); ++i) {
    data.train.add(data::TokenFile(shard_path(path, i)));
    fits =
        fits && data.train.size() == std::accumulate(shards.begin(), shards.begin() + static_cast<std::ptrdiff_t>(i) + 1, std::int64_t{0});
  }
  data.valid.add(data::TokenFile((directory / "valid.bin").string()));
  const auto vocab = static_cast<std::int64_t>(data.tokenizer.vocab_size());
  if (!fits || data.valid.size() != json.get_int("valid_tokens") || vocab != json.get_int("vocab") || data.end_of_text < -1 ||
      data.end_of_text >= vocab || data.train_bytes < 0 || data.valid_bytes < 0)
    throw io::FileError(fmt::format("{}: the files beside it are not those that it describes: prepare the data again", about));
  return data;
}

}  // namespace tern::lm
