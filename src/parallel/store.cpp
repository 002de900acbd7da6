#include "parallel/store.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/error.h"
#include "backend/file.h"
#include "backend/parse.h"
#include "parallel/socket.h"

namespace tern::parallel {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t max_key = 4096, max_value = std::size_t{1} << 20, max_bytes = std::size_t{64} << 20;

[[noreturn]] void fail_wait(const std::string& key, double timeout) {
  fail("parallel",
       fmt::format("no process has set \"{}\" within {:g} s: have all ranks been started, and do they all still run?", key, timeout));
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
  if (error) fail("parallel", fmt::format("{} cannot be made: {}", directory_, error.message()));
}

void FileStore::set(const std::string& key, const std::string& value) {
  const fs::path path = fs::path(directory_) / escaped(key);
  if (const std::error_code error = backend::replace_file(path, value))
    fail("parallel", fmt::format("{} cannot be written: {}", path.string(), error.message()));
}

std::string FileStore::get(const std::string& key, double timeout) {
  const fs::path path = fs::path(directory_) / escaped(key);
  const Deadline deadline = deadline_in(timeout);
  for (;;) {
    if (std::ifstream file(path, std::ios::binary); file) return {std::istreambuf_iterator<char>(file), {}};
    if (has_passed(deadline)) fail_wait(key, timeout);
    std::this_thread::sleep_for(5ms);
  }
}

// The protocol over TCP. A client introduces itself, and the server answers with the same words. A request is 's' (set), the key and the
// value, or 'g' (get) and the key. The answer is the value, an empty one to 's', or a refusal. Keys and values are sent as four bytes of
// length and their bytes, refusals as a length that no value has. A get of a key that is not set is answered when it is.

namespace {

constexpr char introduction[] = "tern-store 2\n";
constexpr std::uint32_t is_full = 0xffffffff, is_set_already = 0xfffffffe;

std::string four_bytes(std::uint32_t number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}
std::uint32_t number_of(std::string_view four_bytes) {
  std::uint32_t number = 0;
  std::memcpy(&number, four_bytes.data(), sizeof number);
  return number;
}
std::string encoded(const std::string& text) { return four_bytes(static_cast<std::uint32_t>(text.size())) + text; }

[[noreturn]] void fail_long(std::size_t most, std::size_t size) {
  fail("parallel", fmt::format("expected a store's text of at most {} bytes but got one of {}", most, size));
}

struct Request {
  bool is_set = false;
  std::string key, value;
};

/// The request that the bytes are, or nothing while they are the beginning of one. Throws Error for other bytes.
std::optional<Request> parse(std::string_view bytes) {
  Request request;
  if (bytes.empty()) return {};
  request.is_set = bytes[0] == 's';
  if (!request.is_set && bytes[0] != 'g') fail("parallel", "expected a request to a store");
  bytes.remove_prefix(1);
  const auto take = [&](std::string& text, std::size_t most) {
    if (bytes.size() < sizeof(std::uint32_t)) return false;
    const std::size_t size = number_of(bytes);
    if (size > most) fail_long(most, size);
    if (bytes.size() < sizeof(std::uint32_t) + size) return false;
    text = bytes.substr(sizeof(std::uint32_t), size);
    bytes.remove_prefix(sizeof(std::uint32_t) + size);
    return true;
  };
  if (!take(request.key, max_key) || (request.is_set && !take(request.value, max_value))) return {};
  if (!bytes.empty()) fail("parallel", "expected one request at a time");
  return request;
}

}  // namespace

/// Serves all clients from one thread, which waits for none of them: whoever is slow, or silent, delays only itself.
class TcpStore::Server {
 public:
  Server(const std::string& host, std::uint16_t port) : lobby_(Socket::listen(host, port), introduction) {
    thread_ = std::thread([this] { serve(); });
  }
  ~Server() {
    stop_.to.close();  // the end of the pipe stops the thread
    thread_.join();
  }
  std::uint16_t port() const { return lobby_.port(); }

 private:
  struct Peer {
    Socket socket;
    std::string received;   ///< the beginning of a request
    std::string wanted;     ///< the key of a get that waits for a set; empty if there is none
    std::string head;       ///< what is to be sent to it, and then
    std::string_view body;  ///< the rest of a value, which never changes
    Deadline until{};       ///< for the end of the request or answer

    bool is_answered() const { return head.empty() && body.empty(); }
    bool is_at_rest() const { return received.empty() && is_answered(); }
  };

  void serve() {
    for (;;) {
      std::vector<pollfd> entries{{stop_.from.get(), POLLIN, 0}};
      for (const Peer& peer : peers_) entries.push_back({peer.socket.fd(), static_cast<short>(peer.is_answered() ? POLLIN : POLLOUT), 0});
      const std::size_t first_caller = entries.size();
      lobby_.add_to(entries);
      if (::poll(entries.data(), entries.size(), patience()) < 0) {
        if (errno != EINTR) std::this_thread::sleep_for(100ms);  // memory is short
        continue;
      }
      if (entries[0].revents) return;
      for (std::size_t i = 1; i < first_caller; ++i) attend(peers_[i - 1], entries[i].revents != 0);
      for (Socket& socket : lobby_.admit(std::span(entries).subspan(first_caller))) {
        peers_.emplace_back().socket = std::move(socket);
        answer(peers_.back(), introduction);
      }
      std::erase_if(peers_, [](const Peer& peer) { return !peer.socket.is_open(); });
    }
  }

  /// Milliseconds until the next thing to do without a peer.
  int patience() const {
    int result = lobby_.patience();
    for (const Peer& peer : peers_)
      if (!peer.is_at_rest()) {
        const int left = poll_timeout(peer.until);
        result = result < 0 ? left : std::min(result, left);
      }
    return result;
  }

  /// Goes on with a peer's request or answer. Drops one that breaks the protocol, has gone, or is too slow.
  void attend(Peer& peer, bool is_ready) {
    try {
      if (is_ready && !peer.is_answered()) send(peer);
      else if (is_ready) receive(peer);
      if (!peer.is_at_rest() && has_passed(peer.until)) peer.socket.close();
    } catch (const Error&) {
      peer.socket.close();
    }
  }

  void receive(Peer& peer) {
    constexpr std::size_t at_once = 1 << 16;
    if (peer.received.empty()) peer.until = deadline_in(patience_with_peers);
    if (!peer.socket.receive_some(peer.received, at_once) || !peer.wanted.empty()) return peer.socket.close();
    std::optional<Request> request = parse(peer.received);
    if (!request) {
      std::size_t unfinished = 0;
      for (const Peer& each : peers_) unfinished += each.received.size();
      if (unfinished > max_bytes) peer.socket.close();
      return;
    }
    peer.received = {};
    if (request->is_set) return set(peer, std::move(*request));
    if (const auto found = values_.find(request->key); found != values_.end()) return give(peer, found->second);
    peer.wanted = std::move(request->key);
  }

  void set(Peer& peer, Request request) {
    constexpr std::size_t overhead = 128;  // of an entry
    const std::size_t bytes = request.key.size() + request.value.size() + overhead;
    const bool is_known = values_.contains(request.key);
    if (is_known && values_[request.key] != request.value) return answer(peer, four_bytes(is_set_already));
    if (!is_known && bytes_ + bytes > max_bytes) return answer(peer, four_bytes(is_full));
    answer(peer, encoded(""));
    if (is_known) return;
    bytes_ += bytes;
    const std::string& value = values_[request.key] = std::move(request.value);
    for (Peer& other : peers_)
      if (other.wanted == request.key) {
        other.wanted.clear();
        give(other, value);
      }
  }

  void give(Peer& peer, const std::string& value) { answer(peer, four_bytes(static_cast<std::uint32_t>(value.size())), value); }

  void answer(Peer& peer, std::string head, std::string_view body = {}) {
    peer.head = std::move(head);
    peer.body = body;
    peer.until = deadline_in(patience_with_peers);
  }

  void send(Peer& peer) {
    std::size_t sent = 0;
    if (!peer.socket.send_some(peer.head.empty() ? peer.body : peer.head, sent)) return peer.socket.close();
    if (peer.head.empty()) peer.body.remove_prefix(sent);
    else peer.head.erase(0, sent);
  }

  static constexpr auto patience_with_peers = 30s;  ///< time for a request or an answer

  Lobby lobby_;
  backend::Pipe stop_;
  std::vector<Peer> peers_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;  ///< of all keys and values
  std::thread thread_;
};

class TcpStore::Client {
 public:
  Client(const std::string& host, std::uint16_t port, double timeout)
      : timeout_(timeout), socket_(Socket::connect(host, port, "rank 0", deadline_in(timeout))) {
    const Deadline deadline = deadline_in(timeout);
    socket_.send(introduction, deadline);
    if (socket_.receive(sizeof introduction - 1, deadline) != introduction)
      fail("parallel", fmt::format("{}: expected the store of a tern of this version but got another program", socket_.peer()));
  }

  void set(const std::string& key, const std::string& value) {
    if (key.size() > max_key) fail_long(max_key, key.size());
    if (value.size() > max_value) fail_long(max_value, value.size());
    const std::lock_guard lock(mutex_);
    const Deadline deadline = deadline_in(timeout_);
    socket_.send("s" + encoded(key) + encoded(value), deadline);
    receive_answer(key, deadline);
  }

  std::string get(const std::string& key, double timeout) {
    if (key.size() > max_key) fail_long(max_key, key.size());
    const std::lock_guard lock(mutex_);
    const Deadline deadline = deadline_in(timeout);
    socket_.send("g" + encoded(key), deadline);
    try {
      return receive_answer(key, deadline);
    } catch (const Error&) {
      socket_.close();  // a late answer would be read as that of the next request
      if (has_passed(deadline)) fail_wait(key, timeout);
      throw;
    }
  }

 private:
  std::string receive_answer(const std::string& key, Deadline deadline) {
    const std::uint32_t size = number_of(socket_.receive(sizeof size, deadline));
    if (size == is_full)
      fail("parallel", fmt::format("the store at {} holds its {} MiB: does another program write to it?", socket_.peer(), max_bytes >> 20));
    if (size == is_set_already)
      fail("parallel", fmt::format("the store at {} has another value of \"{}\": does another run, or another program, use its port?",
                                   socket_.peer(), key));
    if (size > max_value) fail_long(max_value, size);
    return socket_.receive(size, deadline);
  }

  double timeout_;
  std::mutex mutex_;
  Socket socket_;
};

TcpStore::TcpStore(const Options& options) {
  if (options.is_server) server_ = std::make_unique<Server>(options.host, options.port);
  client_ = std::make_unique<Client>(options.host, server_ ? server_->port() : options.port, options.timeout);
}
TcpStore::~TcpStore() = default;

void TcpStore::set(const std::string& key, const std::string& value) { client_->set(key, value); }
std::string TcpStore::get(const std::string& key, double timeout) { return client_->get(key, timeout); }
std::uint16_t TcpStore::port() const { return server_ ? server_->port() : 0; }

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

std::shared_ptr<Store> open_store(const LaunchEnvironment& environment, double timeout) {
  if (const char* const directory = std::getenv("TERN_STORE_DIR")) return std::make_shared<FileStore>(directory);
  return std::make_shared<TcpStore>(TcpStore::Options{
      .host = environment.master_address, .port = environment.master_port, .is_server = environment.rank == 0, .timeout = timeout});
}

}  // namespace tern::parallel
