// The variables of each launcher, and faults in them.
#include <map>

#include "catch.h"
#include "message.h"
#include "parallel/store.h"

namespace tern::parallel {

namespace {

using Values = std::map<std::string, std::string>;

std::optional<LaunchEnvironment> of(const Values& values) {
  return launch_environment([&](const std::string& name) {
    const auto place = values.find(name);
    return place == values.end() ? std::nullopt : std::optional<std::string>(place->second);
  });
}

std::string message_from(const Values& values) {
  return message_of([&] { of(values); });
}

void check(const Values& values, int rank, int size, int local_rank, int local_size, const std::string& address, int port) {
  const auto found = of(values);
  REQUIRE(found.has_value());
  CHECK(found->rank == rank);
  CHECK(found->size == size);
  CHECK(found->local_rank == local_rank);
  CHECK(found->local_size == local_size);
  CHECK(found->master_address == address);
  CHECK(found->master_port == port);
}

}  // namespace

TEST_CASE("Each launcher's variables are understood") {
  CHECK(!of({}).has_value());
  CHECK(!of({{"MASTER_ADDR", "a"}}).has_value());
  check(
      {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "node"}, {"MASTER_PORT", "77"}},
      3, 8, 1, 2, "node", 77);
  check({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, 1, 2, 1, 2, "127.0.0.1", 29500);
  check({{"OMPI_COMM_WORLD_RANK", "5"},
         {"OMPI_COMM_WORLD_SIZE", "6"},
         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
         {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}},
        5, 6, 2, 3, "127.0.0.1", 29500);
  check({{"PMI_RANK", "0"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "4"}, {"MASTER_ADDR", "10.0.0.1"}}, 0, 4, 0, 4,
        "10.0.0.1", 29500);
  const Values slurm{{"SLURM_PROCID", "9"},          {"SLURM_NTASKS", "16"},      {"SLURM_LOCALID", "1"},
                     {"SLURM_NTASKS_PER_NODE", "8"}, {"SLURM_JOB_ID", "1234567"}, {"SLURM_STEP_NODELIST", "gpu[03-04]"}};
  check(slurm, 9, 16, 1, 8, "gpu03", 20'000 + 1234567 % 20'000);
  // A shell within a job, where srun started nothing.
  CHECK(!of({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).has_value());
  // torchrun within a Slurm job.
  Values both = slurm;
  both.insert({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  check(both, 0, 2, 0, 2, "127.0.0.1", 29500);
}

TEST_CASE("Variables that are missing or wrong are errors that name them") {
  CHECK(message_from({{"RANK", "1"}}) ==
        "[parallel] expected both RANK and WORLD_SIZE in the environment, or none, but WORLD_SIZE is missing");
  CHECK(message_from({{"WORLD_SIZE", "1"}}).find("RANK is missing") != std::string::npos);
  CHECK(message_from({{"RANK", "2"}, {"WORLD_SIZE", "2"}}) == "[parallel] RANK: expected a number from 0 to 1 but got \"2\"");
  CHECK(message_from({{"RANK", "0"}, {"WORLD_SIZE", "0"}}).find("WORLD_SIZE: expected a number from 1") != std::string::npos);
  CHECK(message_from({{"RANK", "0x"}, {"WORLD_SIZE", "2"}}).find("\"0x\"") != std::string::npos);
  CHECK(message_from({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}).find("MASTER_PORT: ") != std::string::npos);
  CHECK(message_from({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "-1"}}).find("LOCAL_RANK: ") != std::string::npos);
}

TEST_CASE("The first host of a list is found") {
  CHECK(first_host("node") == "node");
  CHECK(first_host("a,b") == "a");
  CHECK(first_host("node[07-09,11],login") == "node07");
  CHECK(first_host("node[3]") == "node3");
  CHECK(first_host("rack[1,2]-gpu,x") == "rack1-gpu");
  CHECK_THROWS_AS(first_host("node[1"), Error);
}

}  // namespace tern::parallel
