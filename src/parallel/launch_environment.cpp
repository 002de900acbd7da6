#include "parallel/launch_environment.h"

#include <fmt/format.h>

#include <cstdlib>

#include "backend/error.h"
#include "backend/parse.h"

namespace tern::parallel {

namespace {

constexpr int max_ranks = 1 << 20;
constexpr std::uint16_t default_port = 29'500;  // torchrun's

int number(const std::string& name, const std::string& text, int least, int most) {
  const std::optional<int> value = backend::parse_number<int>(text);
  if (!value || *value < least || *value > most)
    fail("parallel", fmt::format("{}: expected a number from {} to {} but got \"{}\"", name, least, most, text));
  return *value;
}

/// Names of a launcher's variables.
struct Names {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr Names launchers[] = {{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
                               {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                               {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
                               {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"}};

}  // namespace

std::string first_host(const std::string& hosts) {
  const std::size_t end = hosts.find_first_of(",[");
  if (end == std::string::npos || hosts[end] == ',') return hosts.substr(0, end);
  const std::size_t number_end = hosts.find_first_of("-,]", end);
  const std::size_t bracket = hosts.find(']', end), rest = std::min(hosts.find(',', bracket), hosts.size());
  if (number_end == std::string::npos || bracket == std::string::npos)
    fail("parallel", fmt::format("SLURM_STEP_NODELIST: expected a list of hosts but got \"{}\"", hosts));
  return hosts.substr(0, end) + hosts.substr(end + 1, number_end - end - 1) + hosts.substr(bracket + 1, rest - bracket - 1);
}

std::optional<LaunchEnvironment> launch_environment(const Variables& variables) {
  for (const Names& names : launchers) {
    const std::optional<std::string> rank = variables(names.rank), size = variables(names.size);
    const bool is_slurm = names.rank == launchers[3].rank;
    // A shell in a Slurm job has these variables, too, so that srun's own have to be set as well.
    if (!rank && !size) continue;
    if (is_slurm && (!rank || !variables("SLURM_STEP_NODELIST"))) continue;
    if (!rank || !size)
      fail("parallel", fmt::format("expected both {} and {} in the environment, or none, but {} is missing", names.rank, names.size,
                                   rank ? names.size : names.rank));
    LaunchEnvironment result;
    result.size = number(names.size, *size, 1, max_ranks);
    result.rank = number(names.rank, *rank, 0, result.size - 1);
    result.local_rank = result.rank;
    result.local_size = result.size;
    if (const auto text = variables(names.local_rank)) result.local_rank = number(names.local_rank, *text, 0, max_ranks - 1);
    if (const auto text = variables(names.local_size)) result.local_size = number(names.local_size, *text, 1, max_ranks);
    result.master_port = default_port;
    if (is_slurm) {
      result.master_address = first_host(*variables("SLURM_STEP_NODELIST"));
      if (const auto job = variables("SLURM_JOB_ID"))
        result.master_port = static_cast<std::uint16_t>(20'000 + number("SLURM_JOB_ID", *job, 0, 2'000'000'000) % 20'000);
    }
    if (const auto address = variables("MASTER_ADDR")) result.master_address = *address;
    if (const auto port = variables("MASTER_PORT"))
      result.master_port = static_cast<std::uint16_t>(number("MASTER_PORT", *port, 1, 65'535));
    return result;
  }
  return {};
}

std::optional<LaunchEnvironment> launch_environment() {
  return launch_environment([](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

std::shared_ptr<Store> open_store(const LaunchEnvironment& environment, Milliseconds timeout) {
  if (const char* const directory = std::getenv("TERN_STORE_DIR")) return std::make_shared<FileStore>(directory);
  return std::make_shared<TcpStore>(TcpStore::Options{
      .host = environment.master_address, .port = environment.master_port, .is_server = environment.rank == 0, .timeout = timeout});
}

}  // namespace tern::parallel
