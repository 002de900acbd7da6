#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "bytes.h"
#include "files.h"
#include "message.h"
#include "paths.h"

namespace tern::text::test {

using tern::message_of;
using tern::test::gzip, tern::test::zstd, tern::test::slurp, tern::test::spill, tern::test::SplitMix64, tern::test::TempDirectory;
using Json = nlohmann::json;

inline std::filesystem::path fixture_path(const std::string& name) {
  return std::filesystem::path(tern::test::source_directory) / "tests/fixtures/text" / name;
}

inline Json fixture(const std::string& name) { return Json::parse(slurp(fixture_path(name))); }

// The polynomial hash of make_text_fixtures.py.
template <class Range>
std::uint64_t id_hash(const Range& ids) {
  std::uint64_t value = 0;
  for (const auto id : ids) value = value * 1000003 + static_cast<std::uint64_t>(id) + 1;
  return value;
}

}  // namespace tern::text::test
