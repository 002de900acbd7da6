// tern-launch: starts the processes of one training on this machine.
#include <fmt/format.h>

#include "backend/parse.h"
#include "common/launcher.h"
#include "common/program.h"

static std::string check_master(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  const std::optional<int> port =
      colon == std::string::npos ? std::nullopt : tern::backend::parse_number<int>(std::string_view(text).substr(colon + 1));
  return colon > 0 && port && *port > 0 && *port < 65536 ? "" : fmt::format("expected ADDRESS:PORT but got \"{}\"", text);
}
int main(int argc, char** argv) {
  using namespace tern;
  apps::LaunchOptions options;
  int code = 0;
  CLI::App app(
      "Start several processes of a program that compute together.\nEach has RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
      "MASTER_ADDR and MASTER_PORT in its environment, as from torchrun.",
      "tern-launch");
  std::string output = "merge";
  apps::add_option(app, "-n,--processes", options.processes, "processes on this machine", apps::whole_number(1, 4096), "N")->required();
  apps::add_value(app, "--machines", options.machines, "machines, each of which runs this command", apps::whole_number(1, 4096), "N");
  apps::add_value(app, "--machine", options.machine, "number of this machine, from 0", apps::whole_number(0, 4095), "N");
  apps::add_option(app, "--master", options.master, "where the first machine is reached, the same on all", check_master, "ADDRESS:PORT");
  apps::add_value(app, "--output", output, "merge: as the processes write it; prefix: each line with its rank",
                  apps::one_of({"merge", "prefix"}), "HOW");
  apps::add_value(app, "--grace", options.grace, "seconds until processes that are asked to end, since another has failed, are killed",
                  apps::real_number(0, 1e6), "SECONDS");
  app.prefix_command();
  app.footer("The program and its arguments follow the options: tern-launch -n 2 tern-translate train --out RUN ...");
  app.callback([&] {
    options.command = app.remaining();
    if (!options.command.empty() && options.command.front() == "--") options.command.erase(options.command.begin());
    if (options.command.empty()) throw apps::UsageError("expected a program to start: tern-launch -n 2 PROGRAM ...");
    if (options.machine >= options.machines)
      throw apps::UsageError(fmt::format("--machine: expected a number below --machines {} but got {}", options.machines, options.machine));
    if (options.machines > 1 && options.master.empty()) throw apps::UsageError("--master: expected the first machine's ADDRESS:PORT");
    options.prefixes_output = output == "prefix";
    code = apps::launch(options);
  });
  const int ended = apps::run(app, argc, argv, "start fewer processes");
  return code != 0 ? code : ended;
}
