#include "python/overlay/landlock.h"

#include <cstdint>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/prctl.h>

#include "python/overlay/system.h"

namespace chameleon::overlay {

namespace {

constexpr std::uint64_t kChanges =
    LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
    LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
    LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
    LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
    LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
// Newer kernels' rights: to link or rename between folders, to truncate.
constexpr std::uint64_t kRefer = 1ULL << 13;
constexpr std::uint64_t kTruncate = 1ULL << 14;

void allow(int rules, const std::string& folder, std::uint64_t changes) {
  const int file = sys::openat(AT_FDCWD, folder, O_PATH);
  if (file < 0) return;
  landlock_path_beneath_attr below = {};
  below.allowed_access = changes;
  below.parent_fd = file;
  syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &below, 0U);
  sys::close(file);
}

} // namespace

bool refuseChangesOutside(const std::string& root) {
  const long version = syscall(SYS_landlock_create_ruleset, nullptr,
                               std::size_t{0}, LANDLOCK_CREATE_RULESET_VERSION);
  if (version < 1) return false;
  landlock_ruleset_attr all = {};
  all.handled_access_fs =
      kChanges | (version >= 2 ? kRefer : 0) | (version >= 3 ? kTruncate : 0);
  const int rules = static_cast<int>(
      syscall(SYS_landlock_create_ruleset, &all, sizeof all, 0U));
  if (rules < 0) return false;
  for (const std::string& folder :
       {root, std::string("/dev"), std::string("/proc")}) {
    allow(rules, folder, all.handled_access_fs);
  }
  const bool done = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                    syscall(SYS_landlock_restrict_self, rules, 0U) == 0;
  sys::close(rules);
  return done;
}

} // namespace chameleon::overlay
