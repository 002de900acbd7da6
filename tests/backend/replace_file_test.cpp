// Files that are replaced whole.
#include "backend/file.h"
#include "catch.h"
#include "files.h"

namespace tern {

using test::slurp;

TEST_CASE("A file is replaced, and nothing else is left beside it") {
  const test::TempDirectory directory;
  const auto path = directory / "choices.txt";
  CHECK_FALSE(backend::replace_file(path, "a longer first text"));
  CHECK_FALSE(backend::replace_file(path, "second"));
  CHECK(slurp(path) == "second");
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("A file that cannot be replaced stays as it was") {
  const test::TempDirectory directory;
  CHECK(backend::replace_file(directory / "missing" / "file", "text"));
  const auto path = directory / "taken";
  std::filesystem::create_directories(path / "full");
  CHECK(backend::replace_file(path, "text"));
  CHECK(std::filesystem::is_directory(path / "full"));
  CHECK(std::distance(std::filesystem::directory_iterator(directory.path()), {}) == 1);
}

}  // namespace tern
