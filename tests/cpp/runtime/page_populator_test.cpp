// Most tests see what is populated, and hold it up, rather than populate.
#include "backend/runtime/page_populator.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <gtest/gtest.h>
#include <latch>
#include <mutex>
#include <semaphore>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "backend/runtime/address_space.h"

namespace chameleon::runtime {
namespace {

constexpr std::size_t kPiece = PagePopulator::kPieceBytes;

// Addresses that nobody uses.
std::byte* at(std::size_t pieces) {
  return reinterpret_cast<std::byte*>(pieces * kPiece);
}

struct Piece {
  std::byte* address;
  std::size_t bytes;
  bool operator==(const Piece&) const = default;
};

// What was populated, in the order of its beginnings.
class Record {
 public:
  void add(std::byte* address, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    pieces_.push_back({address, bytes});
  }
  std::vector<Piece> pieces() const {
    const std::lock_guard lock(mutex_);
    return pieces_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Piece> pieces_;
};

// Whoever populates the piece at `address` waits there for open().
class Gate {
 public:
  explicit Gate(std::byte* address) : address_(address) {}
  void pass(std::byte* address) {
    if (address != address_) return;
    reached_.release();
    open_.acquire();
  }
  void awaitSomebody() { reached_.acquire(); }
  void open() { open_.release(); }

 private:
  std::byte* const address_;
  std::binary_semaphore reached_{0};
  std::binary_semaphore open_{0};
};

TEST(PagePopulator, WithoutThreadsWhoAwaitsPopulates) {
  Record record;
  PagePopulator populator(0, [&](std::byte* address, std::size_t bytes) {
    record.add(address, bytes);
  });
  std::byte* const base = at(8) + 4096;
  populator.add(base, 3 * kPiece);
  EXPECT_EQ(record.pieces(), std::vector<Piece>{});
  // Pieces end at multiples of their size; none is begun that nobody wants.
  EXPECT_TRUE(populator.await(base, kPiece - 4096));
  std::vector<Piece> expected{{base, kPiece - 4096}};
  EXPECT_EQ(record.pieces(), expected);
  EXPECT_TRUE(populator.await(base, kPiece));
  expected.push_back({at(9), kPiece});
  EXPECT_EQ(record.pieces(), expected);
  EXPECT_TRUE(populator.await(base, 3 * kPiece));
  expected.push_back({at(10), kPiece});
  expected.push_back({at(11), 4096});
  EXPECT_EQ(record.pieces(), expected);
  EXPECT_TRUE(populator.await(base, 3 * kPiece));
  EXPECT_EQ(record.pieces(), expected);
}

TEST(PagePopulator, WhatWasNotAddedIsNotPopulated) {
  PagePopulator populator(0, [](std::byte*, std::size_t) { FAIL(); });
  EXPECT_FALSE(populator.await(at(8), kPiece));
  populator.add(at(8), kPiece);
  populator.remove(at(8));
  populator.remove(at(8));
  EXPECT_FALSE(populator.await(at(8), kPiece));
}

TEST(PagePopulator, SeveralThreadsPopulateOneRange) {
  constexpr std::size_t kThreads = 3;
  std::latch all_there(kThreads);
  Record record;
  PagePopulator populator(kThreads, [&](std::byte* address, std::size_t bytes) {
    record.add(address, bytes);
    if (address < at(8 + kThreads)) all_there.arrive_and_wait();
  });
  populator.add(at(8), 20 * kPiece);
  all_there.wait();
  EXPECT_TRUE(populator.await(at(8), 20 * kPiece));
  std::vector<Piece> pieces = record.pieces();
  std::ranges::sort(pieces, {}, &Piece::address);
  ASSERT_EQ(pieces.size(), 20u); // each once
  for (std::size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(pieces[i], (Piece{at(8 + i), kPiece}));
  }
}

TEST(PagePopulator, RangesArePopulatedInTheOrderAdded) {
  const std::vector<Piece> expected{{at(50), kPiece},
                                    {at(51), kPiece},
                                    {at(20), kPiece},
                                    {at(21), kPiece},
                                    {at(10), kPiece}};
  std::latch done(static_cast<std::ptrdiff_t>(expected.size()));
  Record record;
  Gate gate(at(50));
  PagePopulator populator(1, [&](std::byte* address, std::size_t bytes) {
    record.add(address, bytes);
    gate.pass(address);
    done.count_down();
  });
  populator.add(at(50), 2 * kPiece);
  gate.awaitSomebody();
  populator.add(at(20), 2 * kPiece);
  populator.add(at(80), kPiece);
  populator.add(at(10), kPiece);
  populator.remove(at(80));
  gate.open();
  done.wait();
  EXPECT_EQ(record.pieces(), expected);
}

// Pieces above may be done earlier.
TEST(PagePopulator, WhoAwaitsWaitsForAllBelow) {
  Gate gate(at(8));
  std::atomic<bool> lowest_done = false;
  PagePopulator populator(1, [&](std::byte* address, std::size_t) {
    gate.pass(address); // the thread
    if (address == at(8)) lowest_done = true;
    if (address == at(10)) gate.open(); // who awaits
  });
  populator.add(at(8), 3 * kPiece);
  gate.awaitSomebody();
  EXPECT_TRUE(populator.await(at(8), 3 * kPiece));
  EXPECT_TRUE(lowest_done);
}

TEST(PagePopulator, RemovingWaitsForItsOwnPiecesOnly) {
  Record record;
  Gate gate(at(8));
  bool opened = false;
  PagePopulator populator(1, [&](std::byte* address, std::size_t bytes) {
    record.add(address, bytes);
    gate.pass(address);
  });
  populator.add(at(8), 5 * kPiece);
  gate.awaitSomebody();
  populator.add(at(20), 5 * kPiece);
  populator.remove(at(20)); // does not wait
  std::thread other([&] {
    opened = true;
    gate.open();
  });
  populator.remove(at(8));
  EXPECT_TRUE(opened);
  other.join();
  for (const Piece& piece : record.pieces()) EXPECT_LT(piece.address, at(20));
}

TEST(PagePopulator, WhoAwaitsIsToldOfARemoval) {
  Gate gate(at(8));
  PagePopulator populator(
      1, [&](std::byte* address, std::size_t) { gate.pass(address); });
  populator.add(at(8), kPiece);
  gate.awaitSomebody();
  std::thread waiter([&] {
    EXPECT_FALSE(populator.await(at(8), kPiece));
    gate.open(); // so it did not wait for the piece
  });
  populator.remove(at(8));
  waiter.join();
}

TEST(PagePopulator, StopsWhileBusy) {
  Record record;
  Gate gate(at(8));
  {
    PagePopulator populator(1, [&](std::byte* address, std::size_t bytes) {
      record.add(address, bytes);
      gate.pass(address);
    });
    populator.add(at(8), kPiece);
    gate.awaitSomebody();
    populator.add(at(9), 100 * kPiece);
    std::thread waiter([&] {
      EXPECT_FALSE(populator.await(at(8), kPiece));
      gate.open();
    });
    populator.stop();
    waiter.join();
    EXPECT_FALSE(populator.await(at(9), kPiece));
  }
  EXPECT_EQ(record.pieces(), (std::vector<Piece>{{at(8), kPiece}}));
}

TEST(PagePopulator, MemoryHasItsPages) {
  const auto page = static_cast<std::size_t>(getpagesize());
  constexpr std::size_t kBytes = 5 * kPiece;
  PagePopulator populator(3);
  std::byte* const memory = map_memory(kBytes).value();
  populator.add(memory, kBytes);
  EXPECT_TRUE(populator.await(memory, kBytes));
  std::vector<unsigned char> pages(kBytes / page);
  ASSERT_EQ(mincore(memory, kBytes, pages.data()), 0);
  for (const unsigned char each : pages) ASSERT_TRUE(each & 1);
  populator.remove(memory);
  unmap_memory(memory, kBytes);
}

// Addresses come again at once, as mmap() gives them.
TEST(PagePopulator, RangesComeAndGoFromSeveralThreads) {
  PagePopulator populator(3);
  std::vector<std::thread> users;
  for (std::size_t user = 0; user < 3; ++user) {
    users.emplace_back([&, user] {
      for (std::size_t round = 0; round < 40; ++round) {
        const std::size_t bytes = (1 + (round + user) % 3) * kPiece / 2;
        std::byte* const memory = map_memory(bytes).value();
        populator.add(memory, bytes);
        if (round % 4 != 0) {
          EXPECT_TRUE(populator.await(memory, round % 2 != 0 ? bytes : 1));
        }
        populator.remove(memory);
        unmap_memory(memory, bytes);
      }
    });
  }
  for (std::thread& user : users) user.join();
}

} // namespace
} // namespace chameleon::runtime
