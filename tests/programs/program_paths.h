#pragma once

namespace tern::programs::test {

extern const char* const translate_program;
extern const char* const bench_program;
extern const char* const recall_program;
extern const char* const launch_program;
extern const char* const lm_program;

}  // namespace tern::programs::test
