#pragma once
#include <filesystem>
#include <string>

#include "compile/overview.h"

namespace tern::bench {

/// The groups of a program as boxes, in columns by module, and what they hand to each other, as SVG.
std::string groups_picture(const ProgramOverview& program, const std::string& title);
/// Its arena: a rectangle for each block, from the group that uses it first to the last one, at its addresses, as SVG.
std::string memory_picture(const ProgramOverview& program, const std::string& title);

}  // namespace tern::bench
