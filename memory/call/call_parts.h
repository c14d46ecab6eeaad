// What an op call passes through on its way in and out.
//
// Thread safety: references only, which never change.
#pragma once

namespace chameleon::memory {

class BlockTable;
class CallMemory;
class InvariantWalker;
class KernelRoom;
class Meter;
class Mirror;
class Overwrites;
struct PagerCore;
class PlanRunner;
class Recomputer;
class Residency;
class RoomFinder;
class StressHooks;

struct CallParts {
  PagerCore& core;
  Meter& meter;
  PlanRunner& plans;
  StressHooks& stress;
  Recomputer& recomputer;
  Residency& residency;
  Mirror& mirror;
  BlockTable& table;
  RoomFinder& room;
  KernelRoom& kernel_room;
  CallMemory& memory;
  Overwrites& overwrites;
  InvariantWalker& walker;
};

} // namespace chameleon::memory
