#pragma once
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "files.h"

namespace tern::test {

/// The objects of a log, one a line.
inline std::vector<nlohmann::json> json_lines(const fs::path& path) {
  std::vector<nlohmann::json> result;
  std::istringstream text(slurp(path));
  for (std::string line; std::getline(text, line);) result.push_back(nlohmann::json::parse(line));
  return result;
}

}  // namespace tern::test
