// Strangers at the ports of a run: whoever connects, and whatever is said, the ranks meet, or end with one line that names who is wrong.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <thread>

#include "ops/factory.h"
#include "parallel/socket.h"
#include "ranks.h"

namespace tern::parallel {

using namespace std::chrono_literals;

namespace {

constexpr char here[] = "127.0.0.1";

Deadline soon() { return deadline_in(10s); }
Socket call(std::uint16_t port) { return Socket::connect(here, port, "a test", soon()); }
std::unique_ptr<TcpStore> client(const TcpStore& server) {
  return std::make_unique<TcpStore>(TcpStore::Options{.host = here, .port = server.port()});
}

/// One rank of two, over the server's store: meets the other, and adds with it. Gives its error, or "".
std::string run_rank(const TcpStore& server, int rank, double timeout = 20) {
  return message_of<std::exception>([&] {
    const LaunchEnvironment environment{.rank = rank, .size = 2, .local_rank = rank, .local_size = 2, .master_address = here};
    const auto group = make_process_group(environment, client(server), cpu, "world", {.timeout = timeout});
    const Tensor x = full({3}, rank + 1);
    group->all_reduce(x).wait();
    CHECK(x.to_vector<float>() == std::vector<float>{3, 3, 3});
  });
}

/// Both ranks meet, in less than `most`.
void check_meet(const TcpStore& server, std::chrono::milliseconds most = 8s) {
  const auto begin = std::chrono::steady_clock::now();
  std::string other;
  std::thread thread([&] { other = run_rank(server, 1); });
  CHECK(run_rank(server, 0) == "");
  thread.join();
  CHECK(other == "");
  CHECK(std::chrono::steady_clock::now() - begin < most);
}

/// A request in the store's words: a kind, and texts with their lengths.
std::string request(char kind, const std::vector<std::string>& texts) {
  std::string bytes(1, kind);
  for (const std::string& text : texts) {
    const auto size = static_cast<std::uint32_t>(text.size());
    bytes.append(reinterpret_cast<const char*>(&size), sizeof size);
    bytes += text;
  }
  return bytes;
}

/// A connection that has introduced itself as a client does.
Socket introduced(const TcpStore& server) {
  Socket socket = call(server.port());
  const std::string words = "tern-store 2\n";
  socket.send(words, soon());
  CHECK(socket.receive(words.size(), soon()) == words);
  return socket;
}

bool is_closed(Socket& socket, std::chrono::milliseconds within = 5s) {
  return !contains(message_of([&] { socket.receive(1 << 20, deadline_in(within)); }), "no answer in time");
}

double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// A process that runs f and then waits, until the scope ends. f calls its argument when the test may go on.
template <class F>
class Helper {
 public:
  explicit Helper(F&& f) {
    int done[2];
    REQUIRE(::pipe(done) == 0);
    const pid_t parent = ::getpid();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // if the test dies, of whose output it holds a copy
      if (::getppid() != parent) ::_exit(1);
      f([&] { [[maybe_unused]] const ssize_t said = ::write(done[1], "x", 1); });
      for (;;) ::pause();
    }
    char byte = 0;
    CHECK(::read(done[0], &byte, 1) == 1);
    ::close(done[0]), ::close(done[1]);
  }
  ~Helper() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

/// Scope with another limit of descriptors.
class Descriptors {
 public:
  explicit Descriptors(rlim_t count) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = std::min(count, before_.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~Descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST_CASE("Garbage at the store's port is turned away") {
  const TcpStore server({.host = here, .is_server = true});
  std::vector<Socket> strangers;
  for (int i = 0; i < 30; ++i) strangers.push_back(call(server.port()));
  std::string bytes(3000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  for (Socket& stranger : strangers) static_cast<void>(message_of([&] { stranger.send(bytes, soon()); }));
  strangers.resize(15);  // the others have closed
  check_meet(server);
  for (Socket& stranger : strangers) CHECK(is_closed(stranger));
}

TEST_CASE("Peers that say a byte or nothing delay nobody") {
  const TcpStore server({.host = here, .is_server = true});
  std::vector<Socket> slow;
  for (int i = 0; i < 40; ++i) {
    slow.push_back(i < 20 ? call(server.port()) : introduced(server));
    if (i % 2 == 1) slow.back().send(i < 20 ? "t" : "s", soon());
  }
  check_meet(server);
}

TEST_CASE("A store's memory is bounded") {
  TcpStore server({.host = here, .is_server = true});
  const auto peer = client(server);
  const std::string value(std::size_t{1} << 20, 'v');
  std::string error;
  int count = 0;
  while (count < 100 && (error = message_of([&] { peer->set("key" + std::to_string(count), value); })).empty()) ++count;
  CHECK(count == 63);
  CHECK(error ==
        "[parallel] the store at 127.0.0.1:" + std::to_string(server.port()) + " holds its 64 MiB: does another program write to it?");
  CHECK(server.get("key62", 5) == value);
  server.set("small", "fits");
  CHECK(peer->get("small", 5) == "fits");
  CHECK(contains(message_of([&] { server.set("large", value + "v"); }), "of at most 1048576 bytes but got one of 1048577"));
  CHECK(contains(message_of([&] { server.set(std::string(4097, 'k'), ""); }), "of at most 4096 bytes but got one of 4097"));

  // Requests that never end, and lengths that no text has.
  const std::string whole = request('s', {"key", value});
  std::vector<Socket> endless;
  for (int i = 0; i < 66; ++i) {
    endless.push_back(introduced(server));
    static_cast<void>(message_of([&] { endless.back().send(whole.substr(0, whole.size() - 1), soon()); }));
  }
  CHECK(std::count_if(endless.begin(), endless.end(), [](Socket& each) { return is_closed(each, 10ms); }) > 0);
  Socket long_key = introduced(server), long_value = introduced(server);
  long_key.send(request('g', {std::string(4097, 'k')}).substr(0, 10), soon());
  long_value.send(request('s', {"k", value + "v"}).substr(0, 10), soon());
  for (Socket* const each : {&long_key, &long_value}) CHECK(is_closed(*each));
  CHECK(server.get("small", 5) == "fits");
}

TEST_CASE("A key of a TCP store keeps its value") {
  TcpStore server({.host = here, .is_server = true});
  const auto peer = client(server);
  peer->set("key", "value");
  peer->set("key", "value");
  CHECK(message_of([&] { server.set("key", "other"); }) ==
        "[parallel] the store at 127.0.0.1:" + std::to_string(server.port()) +
            " has another value of \"key\": does another run, or another program, use its port?");
  CHECK(server.get("key", 5) == "value");
}

TEST_CASE("Strangers do not take the descriptors that a process needs") {
  const TcpStore server({.host = here, .is_server = true});
  const int next = ::dup(0);
  ::close(next);
  const Descriptors few(static_cast<rlim_t>(next) + 40);
  const Helper strangers([port = server.port()](const auto& go_on) {
    const Descriptors many(4096);
    std::vector<Socket> all;
    for (int i = 0; i < 200; ++i) all.push_back(call(port));
    go_on();
    for (;;) ::pause();
  });
  check_meet(server);
}

TEST_CASE("A store without descriptors waits for some, and does not spin") {
  TcpStore server({.host = here, .is_server = true});
  server.set("key", "value");
  const Descriptors few(256);
  const Helper peer([port = server.port()](const auto& go_on) {
    go_on();
    std::this_thread::sleep_for(200ms);
    const Socket socket = call(port);
    for (;;) ::pause();
  });
  std::vector<int> taken;
  for (int fd; (fd = ::dup(0)) >= 0;) taken.push_back(fd);
  const double before = cpu_seconds();
  std::this_thread::sleep_for(700ms);
  const double spent = cpu_seconds() - before;
  for (const int fd : taken) ::close(fd);  // before a check: UBSan opens a pipe to look at an object
  CHECK(spent < 0.02);                     // a loop that spins takes more, even on a busy machine
  CHECK(client(server)->get("key", 5) == "value");
}

TEST_CASE("A forged address in the store is one line that names the rank") {
  const auto forged = [](const std::string& address) {
    const TcpStore server({.host = here, .is_server = true});
    client(server)->set("world/ring/1", address);
    return run_rank(server, 0, 1);
  };
  const std::string expected = "[parallel] rank 1: expected its address and port in the store, as \"127.0.0.1 12345\", but got ";
  for (const char* const address : {"garbage", "", "127.0.0.1 99999999999999", "127.0.0.1 65536", "127.0.0.1 -1", "127.0.0.1 80 80"})
    CHECK(forged(address) == expected + "\"" + address + "\": does another program write to the store?");
  CHECK(forged("\x1b[31m\n") == expected + "\"?[31m?\": does another program write to the store?");
  // An address where nobody listens, and one that is no address.
  const std::uint16_t closed = Socket::listen(here, 0).port();
  CHECK(contains(forged("127.0.0.1 " + std::to_string(closed)), "does the process of rank 1 run there?"));
  CHECK(contains(forged("no.such.host.invalid 80"), "rank 1: expected the name or address of a machine but got \"no.such.host.invalid\""));
}

TEST_CASE("Strangers at a ring's port do not end the ranks") {
  const TcpStore server({.host = here, .is_server = true});
  std::string first;
  std::thread thread([&] { first = run_rank(server, 0); });
  const std::string address = client(server)->get("world/ring/0", 5);
  const auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.find(' ') + 1)));
  call(port).close();
  Socket garbage = call(port), other_rank = call(port), half = call(port), silent = call(port);
  garbage.send(std::string(100, 'x'), soon());
  other_rank.send("tern-ring        0\n", soon());
  half.send("tern-ring  ", soon());
  CHECK(run_rank(server, 1) == "");
  thread.join();
  CHECK(first == "");
}

TEST_CASE("A client of another program's port is told so") {
  const Socket listener = Socket::listen(here, 0);
  std::thread other([&] {
    bool lacks_descriptors = false;
    pollfd entry{listener.fd(), POLLIN, 0};
    ::poll(&entry, 1, 5000);
    Socket socket = listener.accept(lacks_descriptors);
    socket.send("SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", soon());
    std::this_thread::sleep_for(200ms);
  });
  CHECK(message_of([&] { TcpStore({.host = here, .port = listener.port(), .timeout = 5}); }) ==
        "[parallel] 127.0.0.1:" + std::to_string(listener.port()) +
            ": expected the store of a tern of this version but got another program");
  other.join();
}

}  // namespace tern::parallel
