#include "dist/store.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "backend/error.h"
#include "backend/pipe.h"
#include "backend/replace_file.h"
#include "dist/socket.h"

namespace tern::dist {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t max_key = 4096, max_value = std::size_t{1} << 20;

[[noreturn]] void fail_wait(const std::string& key, std::chrono::milliseconds timeout) {
  fail("dist", fmt::format("no process has set \"{}\" within {:g} s: have all ranks been started, and do they all still run?", key,
                           static_cast<double>(timeout.count()) / 1e3));
}

/// The name of the file of a key.
std::string escaped(const std::string& key) {
  std::string name;
  for (const unsigned char c : key)
    name += std::isalnum(c) || c == '-' || c == '.' ? std::string(1, static_cast<char>(c)) : fmt::format("_{:02x}", c);
  return name;
}

}  // namespace

FileStore::FileStore(std::string directory) : directory_(std::move(directory)) {
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) fail("dist", fmt::format("{} cannot be made: {}", directory_, error.message()));
}

void FileStore::set(const std::string& key, const std::string& value) {
  const fs::path path = fs::path(directory_) / escaped(key);
  if (const std::error_code error = backend::replace_file(path, value))
    fail("dist", fmt::format("{} cannot be written: {}", path.string(), error.message()));
}

std::string FileStore::get(const std::string& key, Milliseconds timeout) {
  const fs::path path = fs::path(directory_) / escaped(key);
  const Deadline deadline = deadline_in(timeout);
  for (;;) {
    if (std::ifstream file(path, std::ios::binary); file) return {std::istreambuf_iterator<char>(file), {}};
    if (has_passed(deadline)) fail_wait(key, timeout);
    std::this_thread::sleep_for(5ms);
  }
}

// The protocol over TCP. A request is 's' (set), the key and the value, or 'g' (get) and the key. The answer is the value, or an empty one
// to 's'. Keys and values are sent as four bytes of length and their bytes. A get of a key that is not set is answered when it is.

namespace {

std::string encoded(const std::string& text) {
  const auto size = static_cast<std::uint32_t>(text.size());
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + text;
}

std::string receive_text(Socket& socket, std::size_t max_bytes, Deadline deadline) {
  std::uint32_t size = 0;
  const std::string bytes = socket.receive(sizeof size, deadline);
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size > max_bytes) fail("dist", fmt::format("expected a store's text of at most {} bytes but got one of {}", max_bytes, size));
  return socket.receive(size, deadline);
}

}  // namespace

class TcpStore::Server {
 public:
  Server(const std::string& host, std::uint16_t port) : listener_(Socket::listen(host, port)) {
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    stop_.to.close();  // the end of the pipe stops the thread
    thread_.join();
  }
  std::uint16_t port() const { return listener_.port(); }

 private:
  struct Peer {
    Socket socket;
    std::string wanted;  ///< the key of a get that has not been answered; empty if there is none
  };

  void serve() {
    for (;;) {
      std::vector<pollfd> entries{{stop_.from.get(), POLLIN, 0}, {listener_.fd(), POLLIN, 0}};
      for (const Peer& peer : peers_) entries.push_back({peer.socket.fd(), POLLIN, 0});
      if (::poll(entries.data(), entries.size(), -1) < 0) continue;
      if (entries[0].revents) return;
      for (std::size_t i = 2; i < entries.size(); ++i)
        if (entries[i].revents) answer(peers_[i - 2]);
      std::erase_if(peers_, [](const Peer& peer) { return !peer.socket.is_open(); });
      if (entries[1].revents)
        if (Socket socket = listener_.accept(); socket.is_open()) peers_.push_back({std::move(socket), {}});
    }
  }

  /// Reads a whole request. A peer that does not complete one is dropped after a while, as the others have to wait for it.
  void answer(Peer& peer) {
    const Deadline deadline = deadline_in(2s);
    try {
      const std::string kind = peer.socket.receive(1, deadline), key = receive_text(peer.socket, max_key, deadline);
      if (kind == "s") {
        values_[key] = receive_text(peer.socket, max_value, deadline);
        peer.socket.send(encoded(""), deadline);
        for (Peer& other : peers_)
          if (other.wanted == key) give(other, key);
      } else if (values_.count(key)) {
        give(peer, key);
      } else {
        peer.wanted = key;
      }
    } catch (const Error&) {
      peer.socket.close();
    }
  }

  void give(Peer& peer, const std::string& key) {
    peer.wanted.clear();
    try {
      peer.socket.send(encoded(values_[key]), deadline_in(2s));
    } catch (const Error&) {
      peer.socket.close();
    }
  }

  Socket listener_;
  backend::Pipe stop_;
  std::vector<Peer> peers_;
  std::map<std::string, std::string> values_;
  std::thread thread_;
};

class TcpStore::Client {
 public:
  Client(const std::string& host, std::uint16_t port, std::chrono::milliseconds timeout)
      : timeout_(timeout), socket_(Socket::connect(host, port, deadline_in(timeout))) {}

  void set(const std::string& key, const std::string& value) {
    const std::lock_guard lock(mutex_);
    const Deadline deadline = deadline_in(timeout_);
    socket_.send("s" + encoded(key) + encoded(value), deadline);
    receive_text(socket_, max_value, deadline);
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) {
    const std::lock_guard lock(mutex_);
    const Deadline deadline = deadline_in(timeout);
    socket_.send("g" + encoded(key), deadline);
    try {
      return receive_text(socket_, max_value, deadline);
    } catch (const Error&) {
      socket_.close();  // a late answer would be read as that of the next request
      if (has_passed(deadline)) fail_wait(key, timeout);
      throw;
    }
  }

 private:
  std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  Socket socket_;
};

TcpStore::TcpStore(const Options& options) {
  if (options.is_server) server_ = std::make_unique<Server>(options.host, options.port);
  client_ = std::make_unique<Client>(options.host, server_ ? server_->port() : options.port, options.timeout);
}
TcpStore::~TcpStore() = default;

void TcpStore::set(const std::string& key, const std::string& value) { client_->set(key, value); }
std::string TcpStore::get(const std::string& key, Milliseconds timeout) { return client_->get(key, timeout); }
std::uint16_t TcpStore::port() const { return server_ ? server_->port() : 0; }

}  // namespace tern::dist
