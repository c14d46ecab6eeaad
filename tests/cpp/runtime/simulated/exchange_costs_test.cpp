#include "backend/runtime/simulated/exchange_costs.h"

#include <gtest/gtest.h>
#include <string>

namespace chameleon::runtime {
namespace {

using enum ExchangePattern;

GpuProfile gpu(const char* text) { return parse_gpu_profile(text).value(); }

double seconds(const ExchangeCost& cost) {
  return (cost.latency_ns + cost.flow_ns) / 1e9;
}

// As nccl-tests has it: bytes a second of the tensor, and by the number of
// ranks what each link carries.
double bus_gb_per_s(ExchangePattern pattern, double bytes, int ranks,
                    int machines, const char* card) {
  const ExchangeCost cost =
      cost_of_exchange({pattern, bytes, ranks, machines}, gpu(card));
  const double others = ranks - 1;
  const double factor = pattern == kAllReduce ? 2 * others / ranks
                        : pattern == kAllGather || pattern == kReduceScatter ||
                                pattern == kAllToAll
                            ? others / ranks
                            : 1;
  return bytes / seconds(cost) * factor / 1e9;
}

constexpr double kLarge = 8e9;

TEST(ExchangeCosts, PublishedBusBandwidths) {
  // 8 H100 and H200, NVLink SHARP: 480 (nccl-tests, issue 212), 475 (272).
  EXPECT_NEAR(bus_gb_per_s(kAllReduce, kLarge, 8, 1, "h100"), 480, 10);
  // What is no all-reduce: 370 (212).
  EXPECT_NEAR(bus_gb_per_s(kAllGather, kLarge, 8, 1, "h100"), 370, 5);
  EXPECT_NEAR(bus_gb_per_s(kReduceScatter, kLarge, 8, 1, "h100"), 370, 5);
  // 8 A100: "close to 240" (nccl, issue 1712).
  EXPECT_NEAR(bus_gb_per_s(kAllReduce, kLarge, 8, 1, "a100-80gb"), 240, 5);
  // Hundreds of machines with 8 H200 and 8 x 400 Gbit/s: 350 (nccl-tests, 283).
  EXPECT_NEAR(bus_gb_per_s(kAllReduce, kLarge, 1984, 248, "h200"), 350, 25);
  // 4 and 8 RTX 5090 without peer access: 35 and 28 (nccl, issue 1639).
  EXPECT_NEAR(bus_gb_per_s(kAllReduce, kLarge, 4, 1, "rtx5090"), 35, 1);
  EXPECT_NEAR(bus_gb_per_s(kAllReduce, kLarge, 8, 1, "rtx5090"), 28, 1);
}

TEST(ExchangeCosts, SmallOnesAreLatency) {
  // A ring's or a tree's in one machine: tens of microseconds.
  const GpuProfile h100 = gpu("h100");
  const double us =
      seconds(cost_of_exchange({kAllReduce, 8, 8, 1}, h100)) * 1e6;
  EXPECT_NEAR(us, 6.6 + 14 * 0.6, 1e-3);
  const double between =
      seconds(cost_of_exchange({kAllReduce, 8, 16, 2}, h100)) * 1e6;
  EXPECT_GT(between, us + 5);
  EXPECT_LT(between, 60);
}

TEST(ExchangeCosts, MoreNeverTakesLess) {
  for (const char* card : {"h100", "a100-40gb", "v100-16gb", "rtx4090", "t4"}) {
    for (const auto pattern : {kAllReduce, kReduce, kBroadcast, kAllGather,
                               kReduceScatter, kAllToAll, kGather, kScatter}) {
      double before = 0;
      for (double bytes = 1; bytes < 1e11; bytes *= 3) {
        const double now =
            seconds(cost_of_exchange({pattern, bytes, 8, 1}, gpu(card)));
        EXPECT_GE(now, before) << card << " " << bytes;
        before = now;
        EXPECT_LE(now,
                  seconds(cost_of_exchange({pattern, bytes, 16, 2}, gpu(card))))
            << card << " " << bytes;
      }
    }
  }
}

TEST(ExchangeCosts, ARingCarriesItsPartOnce) {
  // 10 GB/s each way through peers: an all-gather of n parts, n - 1 times.
  const GpuProfile mine =
      gpu("base=l4, link_in=10e9, link_out=10e9, link_both=20e9");
  const ExchangeCost gather = cost_of_exchange({kAllGather, 8e9, 4, 1}, mine);
  EXPECT_DOUBLE_EQ(gather.flow_ns, 0.6e9);
  EXPECT_DOUBLE_EQ(gather.host_link_bytes, 6e9);
  const ExchangeCost send = cost_of_exchange({kSend, 1e9, 2, 1}, mine);
  EXPECT_DOUBLE_EQ(send.flow_ns, 0.1e9);
  const ExchangeCost all = cost_of_exchange({kAllToAll, 4e9, 4, 1}, mine);
  EXPECT_DOUBLE_EQ(all.flow_ns, 0.3e9);
}

TEST(ExchangeCosts, OnlyNvlinkLeavesTheHostsLinkAlone) {
  const Exchange here{kAllReduce, 8e9, 8, 1};
  EXPECT_EQ(cost_of_exchange(here, gpu("h100")).host_link_bytes, 0);
  // A ring has 2 * 7 / 8 of it on each link, with peer access and without.
  EXPECT_DOUBLE_EQ(cost_of_exchange(here, gpu("l40s")).host_link_bytes, 14e9);
  EXPECT_DOUBLE_EQ(cost_of_exchange(here, gpu("rtx4090")).host_link_bytes,
                   14e9);
  // Without, it is slower.
  EXPECT_GT(cost_of_exchange(here, gpu("rtx4090")).flow_ns,
            cost_of_exchange(here, gpu("l40s")).flow_ns);
  // What goes through a GPU's network card does so by its link: an eighth.
  EXPECT_DOUBLE_EQ(
      cost_of_exchange({kAllGather, 16e9, 16, 2}, gpu("h100")).host_link_bytes,
      15e9 / 8);
}

TEST(ExchangeCosts, TheNetworkIsWhatIsSlowBetweenMachines) {
  const Exchange both{kAllGather, 16e9, 16, 2};
  const double fast = cost_of_exchange(both, gpu("a100-80gb")).flow_ns;
  const double slow =
      cost_of_exchange(both, gpu("base=a100-80gb, network=1.25GB/s")).flow_ns;
  EXPECT_NEAR(slow, 15e9 / (8 * 1.25 * 0.94), 1);
  EXPECT_LT(fast, slow);
  // One rank on each machine has one card's.
  EXPECT_NEAR(cost_of_exchange({kAllGather, 2e9, 2, 2}, gpu("h100")).flow_ns,
              1e9 / (50 * 0.94), 1);
}

TEST(ExchangeCosts, OneRankCopies) {
  const ExchangeCost cost =
      cost_of_exchange({kAllReduce, 4e9, 1, 1}, gpu("h200"));
  EXPECT_EQ(cost.host_link_bytes, 0);
  EXPECT_DOUBLE_EQ(cost.flow_ns, 2e6);
}

} // namespace
} // namespace chameleon::runtime
