// A discrete-event model of a GPU's queues on a virtual clock: compute streams
// and two copy engines over one link. Exact and the same on every machine:
// integers only, times in picoseconds, rounded up where bytes do not divide.
//
// Lines are FIFO queues: kernels and waits on compute lines, copies and waits
// on the two copy lines, moves and waits on the move line, marks on all. A copy
// takes the link's latency first, during which no byte flows, then its bytes at
// the rate of its direction. When both directions flow, each gets half of the
// joint limit, or what the other cannot use of it; rates change at once when
// one of them begins or ends.
//
// Moves and kernels share the device memory's bandwidth. While both run,
// kernels have what they need of it, but no more than half where they need
// more: then they run as much slower. The move has the rest. (What two kernels
// take from each other is not modelled, nor what copies take.)
//
// An exchange with other GPUs runs on a compute line, beside kernels, of which
// it takes nothing. What of it goes over the link to the host flows both ways
// at once: in each direction it gets an equal share with the copies there, or
// what it can use of that, and they have the rest.
//
// The host: it is never the bottleneck, so submitting takes no time. now() is
// the host's clock, and the queues have run exactly up to it. It moves on only
// when the host waits: in await(), idle(), and in submitting to a line that
// already holds kAhead unfinished entries (as a launch queue is bounded). So
// the host sees events complete about kAhead entries late, and always the same
// ones.
//
// Thread safety: none; its owner locks. Threads of one process share this one
// host clock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace chameleon::runtime {

using Picoseconds = std::int64_t;

// Bytes per microsecond (MB/s), so that a picosecond moves whole micro-bytes.
struct LinkRates {
  std::uint64_t in;
  std::uint64_t out;
  std::uint64_t both; // max(in, out) <= both <= in + out
  Picoseconds latency;
};

class VirtualTime {
 public:
  static constexpr std::size_t kAhead = 1024;
  // Line numbers; compute lines come from addLine().
  using Line = std::size_t;
  static constexpr Line kIn = 0;
  static constexpr Line kOut = 1;
  static constexpr Line kMoves = 2;

  // Of the memory's bandwidth: so many of kWhole.
  using Share = std::uint32_t;
  static constexpr Share kWhole = 1024;

  // A point on a line, counted by reference: mark() gives one reference.
  using Mark = std::uint32_t;

  explicit VirtualTime(const LinkRates& link);

  Line addLine();

  // ---- submitting --------------------------------------------------------
  // A kernel; `share` is what it needs. REQUIRES: a compute line.
  void compute(Line line, Picoseconds duration, Share share = kWhole);
  // With other GPUs: a time in which it uses nothing that is modelled, then
  // bytes over the link to the host, so many each way, at `most` bytes per
  // microsecond each way. REQUIRES: a compute line, which from then on is one
  // of exchanges.
  void exchange(Line line, Picoseconds duration, std::uint64_t bytes = 0,
                std::uint64_t most = 1);
  // How long it takes alone. REQUIRES: the move line, or a compute line.
  void move(Line line, Picoseconds duration);
  // REQUIRES: kIn or kOut. Returns how many copies the line was given so far.
  std::uint64_t copy(Line line, std::uint64_t bytes);
  // Takes bytes of the `number`th copy back, with its latency where none are
  // left. False: it has begun.
  bool shrink(Line line, std::uint64_t number, std::uint64_t bytes);
  void wait(Line line, Mark mark); // `mark` may be released
  Mark mark(Line line);
  void release(Mark mark);

  // ---- the host ----------------------------------------------------------
  Picoseconds now() const noexcept { return now_; }
  bool passed(Mark mark) const { return marks_[mark].passed; }
  // REQUIRES: passed(mark).
  Picoseconds timeOf(Mark mark) const { return marks_[mark].time; }
  // computeTime() and stallTime() at that time. REQUIRES: passed(mark).
  Picoseconds computeTimeAt(Mark mark) const { return marks_[mark].computed; }
  Picoseconds stallTimeAt(Mark mark) const { return marks_[mark].stalled; }
  void await(Mark mark);           // the host waits
  void idle(Picoseconds duration); // the host does something else

  // Up to now(), of all compute lines: kernels ran, for as long as they take
  // alone / a line did nothing but wait for a mark of another kind of line,
  // moved bytes itself, or ran slower beside a move. Lines of exchanges do not
  // stall.
  Picoseconds computeTime() const;
  Picoseconds stallTime() const;

 private:
  enum class Kind : std::uint8_t {
    kCompute,
    kMove,
    kCopy,
    kExchange,
    kWait,
    kMark
  };
  struct Entry {
    Kind kind;
    Mark mark = 0;
    std::uint64_t amount = 0; // picoseconds, or bytes
    Share share = 0;          // kernels
    std::uint64_t most = 0;   // exchanges: bytes a microsecond
    Picoseconds before = 0;   // exchanges: until bytes flow
    bool taken_back = false;  // a copy without bytes, and without a latency
  };
  enum class Phase : std::uint8_t {
    kIdle,
    kLatency, // of a copy, or what an exchange begins with
    kFlowing, // its bytes
    kRunning, // a kernel or a move
    kBlocked
  };
  struct LineState {
    std::deque<Entry> queue;
    std::uint64_t copies = 0;    // submitted so far
    bool exchanges = false;      // had one
    Phase phase = Phase::kIdle;  // of the first entry
    Picoseconds began = 0;       // when the first entry did
    Picoseconds ends = 0;        // kLatency
    std::uint64_t remaining = 0; // kFlowing: micro-bytes; kRunning: picoseconds
                                 // at full speed, times kWhole
  };
  struct MarkState {
    Line line = 0;
    Picoseconds time = 0;
    Picoseconds computed = 0;
    Picoseconds stalled = 0;
    std::uint32_t references = 0;
    bool passed = false;
  };

  static bool isCopyLine(Line line) { return line <= kOut; }
  static bool isComputeLine(Line line) { return line > kMoves; }
  void submit(Line line, const Entry& entry);
  void settle();
  bool advance(Line line);
  std::uint64_t rate(Line line) const;
  std::uint64_t copyRate(Line line) const;
  std::uint64_t directionRate(Line line) const;
  std::uint64_t exchangeRate(const Entry& entry) const;
  std::size_t flowingExchanges() const;
  std::uint64_t speed(const Entry& entry) const;
  Picoseconds done(const LineState& line) const;
  void step();
  bool stepUntil(Picoseconds limit);

  const LinkRates link_;
  std::vector<LineState> lines_;
  std::vector<std::uint64_t> rates_; // scratch, by line
  std::deque<MarkState> marks_;
  std::vector<Mark> free_marks_;
  Picoseconds now_ = 0;
  Picoseconds computed_ = 0; // finished kernels
  Picoseconds stalled_ = 0;  // finished stalls
};

} // namespace chameleon::runtime
