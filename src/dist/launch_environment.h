#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "dist/store.h"

namespace tern::dist {

/// Which process of how many this one is, and where the process of rank 0 is found.
struct LaunchEnvironment {
  int rank = 0;                              ///< among all processes, from 0
  int size = 1;                              ///< number of all processes
  int local_rank = 0;                        ///< among those of this machine: the GPU that is this process's
  int local_size = 1;                        ///< processes of this machine
  std::string master_address = "127.0.0.1";  ///< of rank 0's machine
  std::uint16_t master_port = 0;             ///< that rank 0 listens on
};

/// Looks a variable up; nothing where it is not set. Tests give one of their own.
using Variables = std::function<std::optional<std::string>(const std::string& name)>;

/// The environment variables of a launcher; nothing where there is none, and a process is alone. In this order:
///
///  1. tern-launch and torchrun: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
///  2. Open MPI's mpirun: OMPI_COMM_WORLD_RANK, .._SIZE, .._LOCAL_RANK, .._LOCAL_SIZE;
///  3. MPICH, Intel MPI and others of PMI: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS;
///  4. Slurm's srun: SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE; the address is the first host of
///     SLURM_STEP_NODELIST.
///
/// MASTER_ADDR and MASTER_PORT count under each of them. Without a port Slurm's job makes one (20000 + job % 20000), and others have 29500;
/// without an address it is this machine. Throws Error for a variable that is missing beside another, or is no number in its range.
std::optional<LaunchEnvironment> launch_environment(const Variables& variables);
/// Of this process.
std::optional<LaunchEnvironment> launch_environment();

/// The first host of a list as Slurm writes it, "node[07-09,11],login" -> "node07".
std::string first_host(const std::string& hosts);

/// The store of a run: TERN_STORE_DIR names a directory for a FileStore; otherwise rank 0 serves a TcpStore at the master's address.
std::shared_ptr<Store> open_store(const LaunchEnvironment& environment, std::chrono::milliseconds timeout);

}  // namespace tern::dist
