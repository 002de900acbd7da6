// tern-bench: measures tern on this machine.
#include "bench/commands.h"
#include "common/program.h"

int main(int argc, char** argv) {
  CLI::App app("Measure tern on the machine at hand.", "tern-bench");
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  tern::bench::add_step(app);
  tern::bench::add_compile(app);
  tern::bench::add_rules(app);
  tern::bench::add_loops(app);
  tern::bench::add_memory(app);
  tern::bench::add_ops(app);
  tern::bench::add_attention(app);
  tern::bench::add_mixers(app);
  tern::bench::add_conv(app);
  tern::bench::add_count(app);
  tern::bench::add_comm(app);
  tern::bench::add_accounting(app);
  tern::bench::add_report(app);
  return tern::apps::run(app, argc, argv, "use a smaller --batch, --length, --model or --size-mb");
}
