#pragma once

/// Paths that a build is told. They differ from checkout to checkout, and stand in sources of their own, so that a compiler cache has the
/// objects of all the others.
namespace tern::test {

extern const char* const source_directory;

}  // namespace tern::test
