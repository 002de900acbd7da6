#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "parallel/store.h"

namespace tern::parallel {

/// The rank of this process, and the address of rank 0.
struct LaunchEnvironment {
  int rank = 0;                              ///< rank among all processes, from 0
  int size = 1;                              ///< number of all processes
  int local_rank = 0;                        ///< rank among the processes of this machine; also the index of the process's GPU
  int local_size = 1;                        ///< number of processes on this machine
  std::string master_address = "127.0.0.1";  ///< address of rank 0's machine
  std::uint16_t master_port = 0;             ///< port that rank 0 listens on
};

/// The value of an environment variable; none if it is not set. Tests pass a table instead.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

/// Reads the environment variables of a launcher; none for a process that no launcher started. In this order:
///
///  1. tern-launch and torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
///  2. Open MPI's mpirun: OMPI_COMM_WORLD_RANK, .._SIZE, .._LOCAL_RANK, .._LOCAL_SIZE;
///  3. MPICH, Intel MPI and others of PMI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS;
///  4. Slurm's srun: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE; the address is the first host of
///     SLURM_STEP_NODELIST.
///
/// MASTER_ADDR and MASTER_PORT apply to all of them. The default port is 29500, and 20000 + job % 20000 under Slurm; the default address is
/// this machine. Throws Error if only a part of a launcher's variables is set, or if one is not a number in its range.
std::optional<LaunchEnvironment> launch_environment(const Variables& variables);
/// Reads the environment of this process.
std::optional<LaunchEnvironment> launch_environment();

/// The first host of a Slurm host list: "node[07-09,11],login" -> "node07".
std::string first_host(const std::string& hosts);

/// Opens the store of a run: a FileStore in the directory that TERN_STORE_DIR names, or else a TcpStore that rank 0 serves at the master
/// address. Throws Error as those do.
std::shared_ptr<Store> open_store(const LaunchEnvironment& environment, Milliseconds timeout);

}  // namespace tern::parallel
