#include "paths.h"

namespace tern::test {

const char* const source_directory = TERN_SOURCE_DIR;

}  // namespace tern::test
