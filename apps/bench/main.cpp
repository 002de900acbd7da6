// tern-bench: measures tern on this machine.
#include "bench/commands.h"
#include "common/program.h"

int main(int argc, char** argv) {
  using namespace tern::bench;
  return tern::apps::run("Measure tern on the machine at hand.", "tern-bench",
                         {add_step, add_compile, add_rules, add_loops, add_grade, add_memory, add_ops, add_attention, add_mixers, add_conv,
                          add_count, add_comm, add_accounting, add_report},
                         argc, argv, "use a smaller --batch, --length, --model or --size-mb");
}
