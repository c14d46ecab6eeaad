// The kernel's own calls. calls.cpp replaces the C library's functions of the
// same names, so the overlay must not use those itself.
//
// All return what the kernel does: -1 and errno on failure.
#pragma once

#include <climits>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace chameleon::overlay::sys {

static_assert(sizeof(long) == 8, "struct stat is the kernel's on LP64 only");

inline int openat(int folder, const std::string& path, int flags,
                  mode_t mode = 0) {
  return static_cast<int>(
      syscall(SYS_openat, folder, path.c_str(), flags | O_CLOEXEC, mode));
}

inline int stat(int folder, const char* path, struct stat* out, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, out, flags));
}

// Nothing at `path`: a mode of 0.
inline mode_t modeOf(const std::string& path) {
  struct stat found = {};
  return stat(AT_FDCWD, path.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0
             ? found.st_mode
             : 0;
}

inline bool mayWrite(const std::string& path) {
  return syscall(SYS_faccessat, AT_FDCWD, path.c_str(), W_OK) == 0;
}

inline bool mayRead(const std::string& path) {
  return syscall(SYS_faccessat, AT_FDCWD, path.c_str(), R_OK) == 0;
}

inline int mkdir(const std::string& path, mode_t mode) {
  return static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path.c_str(), mode));
}

inline int mknod(const std::string& path, mode_t mode, dev_t device) {
  return static_cast<int>(
      syscall(SYS_mknodat, AT_FDCWD, path.c_str(), mode, device));
}

inline int unlink(const std::string& path, int flags) {
  return static_cast<int>(syscall(SYS_unlinkat, AT_FDCWD, path.c_str(), flags));
}

inline int rename(const std::string& from, const std::string& to) {
  return static_cast<int>(
      syscall(SYS_renameat2, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0U));
}

inline int link(const std::string& from, const std::string& to) {
  return static_cast<int>(
      syscall(SYS_linkat, AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), 0));
}

inline int symlink(const std::string& target, const std::string& path) {
  return static_cast<int>(
      syscall(SYS_symlinkat, target.c_str(), AT_FDCWD, path.c_str()));
}

inline int chmod(const std::string& path, mode_t mode) {
  return static_cast<int>(syscall(SYS_fchmodat, AT_FDCWD, path.c_str(), mode));
}

inline int chown(const std::string& path, uid_t user, gid_t group) {
  return static_cast<int>(syscall(SYS_fchownat, AT_FDCWD, path.c_str(), user,
                                  group, AT_SYMLINK_NOFOLLOW));
}

// `times`: access and change; null: now.
inline int setTimes(const std::string& path, const struct timespec* times) {
  return static_cast<int>(syscall(SYS_utimensat, AT_FDCWD, path.c_str(), times,
                                  AT_SYMLINK_NOFOLLOW));
}

inline std::string linkTarget(const std::string& path) {
  char target[PATH_MAX];
  const long bytes =
      syscall(SYS_readlinkat, AT_FDCWD, path.c_str(), target, sizeof target);
  return {target, bytes < 0 ? 0 : static_cast<std::size_t>(bytes)};
}

inline std::string currentFolder() {
  char folder[PATH_MAX];
  const long bytes = syscall(SYS_getcwd, folder, sizeof folder);
  return bytes < 0 ? std::string() : std::string(folder);
}

inline void close(int file) { syscall(SYS_close, file); }

} // namespace chameleon::overlay::sys
