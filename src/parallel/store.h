#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tern::parallel {

/// A key-value store that all processes of a run share, by which they find each other before they form a group. A key is set once.
class Store {
 public:
  virtual ~Store() = default;
  /// Sets a key. Throws Error if the store cannot be reached.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until a process has set the key, and returns its value. Throws Error after `timeout` seconds.
  virtual std::string get(const std::string& key, double timeout) = 0;
};

/// A store of files in a directory that all processes share, one file for each key. Every run needs a directory of its own, as keys of an
/// earlier run would be read as this one's.
class FileStore final : public Store {
 public:
  /// Makes the directory if it is missing. Throws Error if it cannot.
  explicit FileStore(std::string directory);
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, double timeout) override;

 private:
  std::string directory_;
};

/// A store in the memory of one process, the server, which the others access over TCP. It lives as long as the server's TcpStore. It holds
/// keys of up to 4096 bytes and values of up to 1 MiB, 64 MiB in all, and at most as much of requests that are on their way. set() throws
/// Error for more, and for a key that has another value.
/// Any program may call its port, as nothing is encrypted and nobody has to prove who he is: strangers are refused, and delay no one.
class TcpStore final : public Store {
 public:
  /// Options of a TcpStore.
  struct Options {
    std::string host;        ///< name or address of the server, which listens on it
    std::uint16_t port = 0;  ///< port of the server; for the server itself 0 is any free port, see port()
    bool is_server = false;  ///< true in the process that serves the store
    double timeout = 30;     ///< seconds for the server to answer
  };
  /// Throws Error if the server cannot listen, or does not answer in time.
  explicit TcpStore(const Options& options);
  ~TcpStore() override;
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, double timeout) override;
  std::uint16_t port() const;  ///< the port that the server listens on

 private:
  class Server;
  class Client;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

/// A view of another store, whose keys get a prefix.
class PrefixStore final : public Store {
 public:
  /// Shares ownership of `store`.
  PrefixStore(std::string prefix, std::shared_ptr<Store> store) : prefix_(std::move(prefix)), store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(prefix_ + key, value); }
  std::string get(const std::string& key, double timeout) override { return store_->get(prefix_ + key, timeout); }

 private:
  std::string prefix_;
  std::shared_ptr<Store> store_;
};

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
/// address, within `timeout` seconds. Throws Error as those do.
std::shared_ptr<Store> open_store(const LaunchEnvironment& environment, double timeout);

}  // namespace tern::parallel
