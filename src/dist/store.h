#pragma once
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

namespace tern::dist {

/// Small values by name that every process of a run can read: how processes find each other before they are a group. A key is set once.
class Store {
 public:
  virtual ~Store() = default;
  /// Throws Error where the store cannot be reached.
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits until a process has set the key. Throws Error after `timeout`.
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

/// Files in a directory that all processes share, a file a key. The directory belongs to one run: what an earlier one left there would be
/// taken for this one's.
class FileStore final : public Store {
 public:
  /// Makes the directory. Throws Error where it cannot be made.
  explicit FileStore(std::filesystem::path directory);
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;

 private:
  std::filesystem::path directory_;
};

/// A table in the memory of one process, the server, which the others ask over TCP. The server's lives as long as its TcpStore.
class TcpStore final : public Store {
 public:
  /// The server's place, and whether this process is it.
  struct Options {
    std::string host;                           ///< of the server, a name or an address, on which it listens
    std::uint16_t port = 0;                     ///< 0 for the server: any that is free, see port()
    bool is_server = false;                     ///< this process has the table
    std::chrono::milliseconds timeout{30'000};  ///< for the server to answer
  };
  /// Throws Error where the server cannot listen, or does not answer in time.
  explicit TcpStore(const Options& options);
  ~TcpStore() override;
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::uint16_t port() const;  ///< that the server listens on

 private:
  class Server;
  class Client;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
};

/// A part of another store, whose keys begin with a prefix.
class PrefixStore final : public Store {
 public:
  /// Shares the other store, and keeps it alive.
  PrefixStore(std::string prefix, std::shared_ptr<Store> store) : prefix_(std::move(prefix)), store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(prefix_ + key, value); }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override { return store_->get(prefix_ + key, timeout); }

 private:
  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace tern::dist
