#include "program_paths.h"

namespace tern::programs::test {

const char* const translate_program = TERN_TRANSLATE;
const char* const bench_program = TERN_BENCH;
const char* const recall_program = TERN_RECALL;
const char* const launch_program = TERN_LAUNCH;
const char* const lm_program = TERN_LM;

}  // namespace tern::programs::test
