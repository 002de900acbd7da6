// The stores: values that wait for their readers, many readers at a time, time that runs out, and servers that are not there.
#include "parallel/store.h"

#include <chrono>
#include <limits>
#include <thread>
#include <type_traits>
#include <vector>

#include "catch.h"
#include "files.h"
#include "message.h"

namespace tern::parallel {

using namespace std::chrono_literals;

namespace {

/// A value that is set late reaches readers of all clients; a key that nobody sets is an error that names it.
void check_store(const std::function<std::unique_ptr<Store>(int)>& client) {
  constexpr int readers = 8;
  std::vector<std::unique_ptr<Store>> clients;
  for (int i = 0; i <= readers; ++i) clients.push_back(client(i));
  std::vector<std::string> found(readers);
  std::vector<std::thread> threads;
  for (int i = 0; i < readers; ++i)
    threads.emplace_back([&, i] {
      try {
        found[static_cast<std::size_t>(i)] = clients[static_cast<std::size_t>(i)]->get("late/key", 5);
      } catch (const Error& error) {
        found[static_cast<std::size_t>(i)] = error.what();
      }
    });
  std::this_thread::sleep_for(50ms);
  const std::string value("a\0b\n\xff", 5);
  clients[readers]->set("late/key", value);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& each : found) CHECK(each == value);
  clients[0]->set("empty", "");
  CHECK(clients[1]->get("empty", 1).empty());
  CHECK(clients[1]->get("empty", std::numeric_limits<double>::infinity()).empty());
  clients[2]->set("large", std::string(200'000, 'x'));
  CHECK(clients[3]->get("large", 1) == std::string(200'000, 'x'));
  CHECK(message_of([&] { clients[0]->get("nobody", 0.05); }) ==
        "[parallel] no process has set \"nobody\" within 0.05 s: have all ranks been started, and do they all still run?");
  PrefixStore part("a/", std::shared_ptr<Store>(std::move(clients[4])));
  part.set("b", "1");
  CHECK(clients[5]->get("a/b", 1) == "1");
}

}  // namespace

TEST_CASE("A directory is a store") {
  const tern::test::TempDirectory directory;
  check_store([&](int) { return std::make_unique<FileStore>(directory / "a" / "store"); });
  tern::test::spill(directory / "file", "");
  CHECK(message_of([&] { FileStore(directory / "file" / "store"); }).find("cannot be made") != std::string::npos);
}

TEST_CASE("A server is a store") {
  TcpStore server({.host = "127.0.0.1", .is_server = true});
  check_store([&](int) { return std::make_unique<TcpStore>(TcpStore::Options{.host = "127.0.0.1", .port = server.port()}); });
}

TEST_CASE("A client may begin before the server") {
  std::uint16_t port = 0;
  {
    const TcpStore free({.host = "127.0.0.1", .is_server = true});
    port = free.port();
  }
  std::string found;
  std::thread early([&] { found = TcpStore({.host = "127.0.0.1", .port = port, .timeout = 5}).get("key", 5); });
  std::this_thread::sleep_for(100ms);
  TcpStore server({.host = "127.0.0.1", .port = port, .is_server = true});
  server.set("key", "value");
  early.join();
  CHECK(found == "value");
}

TEST_CASE("A server that is not there, or whose place is taken, is an error") {
  std::uint16_t port = 0;
  {
    const TcpStore gone({.host = "127.0.0.1", .is_server = true});
    port = gone.port();
  }
  CHECK(message_of([&] { TcpStore({.host = "127.0.0.1", .port = port, .timeout = 0.1}); }).find("does not answer (Connection refused)") !=
        std::string::npos);
  const TcpStore server({.host = "127.0.0.1", .is_server = true});
  CHECK(message_of([&] { TcpStore({.host = "127.0.0.1", .port = server.port(), .is_server = true}); }).find("cannot be listened on") !=
        std::string::npos);
  CHECK(message_of([&] { TcpStore({.host = "no.such.machine.invalid", .port = 1, .timeout = 0.1}); }).find("no.such.machine.invalid") !=
        std::string::npos);
}

TEST_CASE("A server that ends makes a waiting client's call an error") {
  auto server = std::make_unique<TcpStore>(TcpStore::Options{.host = "127.0.0.1", .is_server = true});
  TcpStore client({.host = "127.0.0.1", .port = server->port()});
  std::string error;
  std::thread waiting([&] { error = message_of([&] { client.get("key", 5); }); });
  std::this_thread::sleep_for(50ms);
  server.reset();
  waiting.join();
  CHECK(error.find("the connection was closed") != std::string::npos);
}

}  // namespace tern::parallel
