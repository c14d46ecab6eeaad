// The C library's functions that take paths, over the overlay. This library is
// loaded before all others (LD_PRELOAD), so every program and library of the
// process tree that is linked to the C library calls these instead.
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <utime.h>

#include "python/overlay/landlock.h"
#include "python/overlay/operations.h"
#include "python/overlay/system.h"

using namespace chameleon::overlay;

namespace {

// `mode` without "x": placeToOpen() has made the file.
std::string withoutExclusive(std::string mode) {
  std::erase(mode, 'x');
  return mode;
}

// What open() is told where fopen() has a mode.
int flagsOf(const char* mode) {
  if (std::strpbrk(mode, "wa+") == nullptr) return O_RDONLY;
  return O_WRONLY | (*mode == 'r' ? 0 : O_CREAT) |
         (*mode == 'w' ? O_TRUNC : 0) |
         (std::strchr(mode, 'x') != nullptr ? O_EXCL : 0);
}

// Null, and names that the loader searches for, are as they are. Libraries that
// were written here are few: their paths stay allocated.
const char* pathToLoad(const char* path) {
  if (path == nullptr || std::strchr(path, '/') == nullptr) return path;
  std::string place;
  const char* const real = pathToRun(path, place);
  return real == path ? path : ::strdup(real);
}

} // namespace

#define EXPORT __attribute__((visibility("default")))

// NOLINTBEGIN: the C library's own names and parameters
extern "C" {

// Called once, by the first process of the tree: 0 if nothing is kept away, 1
// if what calls this library is, 2 if the kernel refuses what does not.
EXPORT int torch_chameleon_overlay_start() {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) return 0;
  return refuseChangesOutside(overlay->root()) ? 2 : 1;
}

// ---- open

#define OPEN(name)                                          \
  EXPORT int name(const char* path, int flags, ...) {       \
    std::va_list rest;                                      \
    va_start(rest, flags);                                  \
    const int file = openWith(AT_FDCWD, path, flags, rest); \
    va_end(rest);                                           \
    return file;                                            \
  }
#define OPENAT(name)                                              \
  EXPORT int name(int folder, const char* path, int flags, ...) { \
    std::va_list rest;                                            \
    va_start(rest, flags);                                        \
    const int file = openWith(folder, path, flags, rest);         \
    va_end(rest);                                                 \
    return file;                                                  \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
EXPORT int __open_2(const char* path, int flags) {
  return openAt(AT_FDCWD, path, flags, 0);
}
EXPORT int __open64_2(const char* path, int flags) {
  return openAt(AT_FDCWD, path, flags, 0);
}
EXPORT int __openat_2(int folder, const char* path, int flags) {
  return openAt(folder, path, flags, 0);
}
EXPORT int __openat64_2(int folder, const char* path, int flags) {
  return openAt(folder, path, flags, 0);
}
EXPORT int creat(const char* path, mode_t mode) {
  return openAt(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
EXPORT int creat64(const char* path, mode_t mode) { return creat(path, mode); }

#define FOPEN(name)                                                   \
  EXPORT FILE* name(const char* path, const char* mode) {             \
    const std::string place = placeToOpen(path, flagsOf(mode), 0666); \
    if (place.empty()) return nullptr;                                \
    return NEXT(name)(place.c_str(), withoutExclusive(mode).c_str()); \
  }
#define FREOPEN(name)                                                       \
  EXPORT FILE* name(const char* path, const char* mode, FILE* file) {       \
    if (path == nullptr) return NEXT(name)(path, mode, file);               \
    const std::string place = placeToOpen(path, flagsOf(mode), 0666);       \
    if (place.empty()) return nullptr;                                      \
    return NEXT(name)(place.c_str(), withoutExclusive(mode).c_str(), file); \
  }
FOPEN(fopen)
FOPEN(fopen64)
FREOPEN(freopen)
FREOPEN(freopen64)

EXPORT FILE* tmpfile() {
  if (Overlay::instance() == nullptr) return NEXT(tmpfile)();
  const int file = openAt(AT_FDCWD, P_tmpdir, O_TMPFILE | O_RDWR, 0600);
  return file < 0 ? nullptr : ::fdopen(file, "w+");
}
EXPORT FILE* tmpfile64() { return tmpfile(); }

EXPORT int mkstemp(char* pattern) { return makeTemporaryFile(pattern, 0, 0); }
EXPORT int mkstemp64(char* pattern) { return makeTemporaryFile(pattern, 0, 0); }
EXPORT int mkostemp(char* pattern, int flags) {
  return makeTemporaryFile(pattern, 0, flags);
}
EXPORT int mkostemp64(char* pattern, int flags) {
  return makeTemporaryFile(pattern, 0, flags);
}
EXPORT int mkstemps(char* pattern, int suffix) {
  return makeTemporaryFile(pattern, suffix, 0);
}
EXPORT int mkostemps(char* pattern, int suffix, int flags) {
  return makeTemporaryFile(pattern, suffix, flags);
}
EXPORT char* mkdtemp(char* pattern) {
  return makeTemporaryFolder(pattern) == 0 ? pattern : nullptr;
}

// ---- look

EXPORT int stat(const char* path, struct stat* out) {
  return statAt(AT_FDCWD, path, out, 0);
}
EXPORT int lstat(const char* path, struct stat* out) {
  return statAt(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
EXPORT int fstatat(int folder, const char* path, struct stat* out, int flags) {
  return statAt(folder, path, out, flags);
}
// The same layout as struct stat where off_t has 64 bits.
EXPORT int stat64(const char* path, struct stat64* out) {
  return statAt(AT_FDCWD, path, reinterpret_cast<struct stat*>(out), 0);
}
EXPORT int lstat64(const char* path, struct stat64* out) {
  return statAt(AT_FDCWD, path, reinterpret_cast<struct stat*>(out),
                AT_SYMLINK_NOFOLLOW);
}
EXPORT int fstatat64(int folder, const char* path, struct stat64* out,
                     int flags) {
  return statAt(folder, path, reinterpret_cast<struct stat*>(out), flags);
}
// What programs call that were built with a C library before 2.33.
EXPORT int __xstat(int, const char* path, struct stat* out) {
  return statAt(AT_FDCWD, path, out, 0);
}
EXPORT int __lxstat(int, const char* path, struct stat* out) {
  return statAt(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
EXPORT int __fxstatat(int, int folder, const char* path, struct stat* out,
                      int flags) {
  return statAt(folder, path, out, flags);
}
EXPORT int __xstat64(int, const char* path, struct stat* out) {
  return statAt(AT_FDCWD, path, out, 0);
}
EXPORT int __lxstat64(int, const char* path, struct stat* out) {
  return statAt(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
EXPORT int __fxstatat64(int, int folder, const char* path, struct stat* out,
                        int flags) {
  return statAt(folder, path, out, flags);
}
EXPORT int statx(int folder, const char* path, int flags, unsigned mask,
                 struct statx* out) {
  const Seen seen(folder, path, followUnless(flags & AT_SYMLINK_NOFOLLOW));
  const int status = static_cast<int>(
      syscall(SYS_statx, seen.folder(), seen.path(), flags, mask, out));
  if (status == 0) out->stx_mode = seen.mode(out->stx_mode);
  return status;
}

EXPORT int access(const char* path, int mode) {
  return accessAt(AT_FDCWD, path, mode, 0);
}
EXPORT int faccessat(int folder, const char* path, int mode, int flags) {
  return accessAt(folder, path, mode, flags);
}
EXPORT int euidaccess(const char* path, int mode) {
  return accessAt(AT_FDCWD, path, mode, AT_EACCESS);
}
EXPORT int eaccess(const char* path, int mode) {
  return accessAt(AT_FDCWD, path, mode, AT_EACCESS);
}

EXPORT ssize_t readlink(const char* path, char* out, std::size_t bytes) {
  return readlinkAt(AT_FDCWD, path, out, bytes);
}
EXPORT ssize_t readlinkat(int folder, const char* path, char* out,
                          std::size_t bytes) {
  return readlinkAt(folder, path, out, bytes);
}
EXPORT ssize_t __readlink_chk(const char* path, char* out, std::size_t bytes,
                              std::size_t) {
  return readlinkAt(AT_FDCWD, path, out, bytes);
}
EXPORT ssize_t __readlinkat_chk(int folder, const char* path, char* out,
                                std::size_t bytes, std::size_t) {
  return readlinkAt(folder, path, out, bytes);
}

EXPORT char* realpath(const char* path, char* out) {
  return resolve(path, out);
}
EXPORT char* __realpath_chk(const char* path, char* out, std::size_t) {
  return realpath(path, out);
}
EXPORT char* canonicalize_file_name(const char* path) {
  return realpath(path, nullptr);
}

EXPORT char* getcwd(char* out, std::size_t bytes) {
  const Overlay* const overlay = Overlay::instance();
  if (overlay == nullptr) return NEXT(getcwd)(out, bytes);
  const std::string folder = overlay->logical(sys::currentFolder());
  if (folder.empty()) return nullptr;
  if (out == nullptr) return ::strdup(folder.c_str());
  if (folder.size() >= bytes) {
    errno = ERANGE;
    return nullptr;
  }
  return std::strcpy(out, folder.c_str());
}
EXPORT char* __getcwd_chk(char* out, std::size_t bytes, std::size_t) {
  return getcwd(out, bytes);
}
EXPORT char* get_current_dir_name() { return getcwd(nullptr, 0); }

EXPORT int chdir(const char* path) {
  const Seen seen(path, Follow::kYes);
  return static_cast<int>(syscall(SYS_chdir, seen.path()));
}

EXPORT DIR* opendir(const char* path) {
  return NEXT(opendir)(Seen(path, Follow::kYes).path());
}
EXPORT DIR* fdopendir(int folder) {
  // Opened before a name in it was made or removed: the upper one has both.
  const Overlay* const overlay = Overlay::instance();
  const std::string was = overlay == nullptr ? "" : pathOf(folder);
  if (was.starts_with('/')) {
    const Place place = overlay->find(overlay->logical(was), Follow::kNo);
    const int now = !S_ISDIR(place.mode) || place.real == was
                        ? -1
                        : sys::openat(AT_FDCWD, place.real, O_RDONLY);
    if (now >= 0) {
      ::dup3(now, folder, O_CLOEXEC);
      sys::close(now);
    }
  }
  return NEXT(fdopendir)(folder);
}
#define SCANDIR(name, entry)                                                  \
  EXPORT int name(                                                            \
      const char* path, struct entry*** out,                                  \
      int (*select)(const struct entry*),                                     \
      int (*compare)(const struct entry**, const struct entry**)) {           \
    return NEXT(name)(Seen(path, Follow::kYes).path(), out, select, compare); \
  }
SCANDIR(scandir, dirent)
SCANDIR(scandir64, dirent64)

#define STATFS(name, out_type)                               \
  EXPORT int name(const char* path, struct out_type* out) {  \
    return NEXT(name)(Seen(path, Follow::kYes).path(), out); \
  }
STATFS(statfs, statfs)
STATFS(statfs64, statfs64)
STATFS(statvfs, statvfs)
STATFS(statvfs64, statvfs64)

EXPORT ssize_t getxattr(const char* path, const char* name, void* value,
                        std::size_t bytes) {
  return NEXT(getxattr)(Seen(path, Follow::kYes).path(), name, value, bytes);
}
EXPORT ssize_t lgetxattr(const char* path, const char* name, void* value,
                         std::size_t bytes) {
  return NEXT(lgetxattr)(Seen(path, Follow::kNo).path(), name, value, bytes);
}
EXPORT ssize_t listxattr(const char* path, char* names, std::size_t bytes) {
  return NEXT(listxattr)(Seen(path, Follow::kYes).path(), names, bytes);
}
EXPORT ssize_t llistxattr(const char* path, char* names, std::size_t bytes) {
  return NEXT(llistxattr)(Seen(path, Follow::kNo).path(), names, bytes);
}

// ---- start and load programs

EXPORT int execve(const char* path, char* const arguments[],
                  char* const environment[]) {
  std::string place;
  const Kept kept(environment);
  return static_cast<int>(syscall(SYS_execve, pathToRun(path, place), arguments,
                                  kept.environment()));
}
EXPORT int execv(const char* path, char* const arguments[]) {
  return execve(path, arguments, environ);
}
EXPORT int execvpe(const char* name, char* const arguments[],
                   char* const environment[]) {
  if (std::strchr(name, '/') != nullptr) {
    return execve(name, arguments, environment);
  }
  return NEXT(execvpe)(name, arguments, Kept(environment).environment());
}
EXPORT int execvp(const char* name, char* const arguments[]) {
  return execvpe(name, arguments, environ);
}
EXPORT int posix_spawn(pid_t* process, const char* path,
                       const posix_spawn_file_actions_t* actions,
                       const posix_spawnattr_t* attributes,
                       char* const arguments[], char* const environment[]) {
  std::string place;
  const Kept kept(environment);
  return NEXT(posix_spawn)(process, pathToRun(path, place), actions, attributes,
                           arguments, kept.environment());
}
EXPORT int posix_spawnp(pid_t* process, const char* name,
                        const posix_spawn_file_actions_t* actions,
                        const posix_spawnattr_t* attributes,
                        char* const arguments[], char* const environment[]) {
  if (std::strchr(name, '/') != nullptr) {
    return posix_spawn(process, name, actions, attributes, arguments,
                       environment);
  }
  const Kept kept(environment);
  return NEXT(posix_spawnp)(process, name, actions, attributes, arguments,
                            kept.environment());
}
EXPORT int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t* actions,
                                            int file, const char* path,
                                            int flags, mode_t mode) {
  const std::string place = placeToOpen(path, flags, mode);
  if (place.empty()) return errno;
  return NEXT(posix_spawn_file_actions_addopen)(actions, file, place.c_str(),
                                                flags & ~O_EXCL, mode);
}
// The loader looks along the path of who calls it, so this must end in a jump.
EXPORT void* dlopen(const char* path, int flags) {
  return NEXT(dlopen)(pathToLoad(path), flags);
}

// ---- make, move, remove

EXPORT int mkdir(const char* path, mode_t mode) {
  return makeFolderAt(AT_FDCWD, path, mode);
}
EXPORT int mkdirat(int folder, const char* path, mode_t mode) {
  return makeFolderAt(folder, path, mode);
}
EXPORT int mkfifo(const char* path, mode_t mode) {
  return makeNodeAt(AT_FDCWD, path, mode | S_IFIFO, 0);
}
EXPORT int mkfifoat(int folder, const char* path, mode_t mode) {
  return makeNodeAt(folder, path, mode | S_IFIFO, 0);
}
EXPORT int mknod(const char* path, mode_t mode, dev_t device) {
  return makeNodeAt(AT_FDCWD, path, mode, device);
}
EXPORT int mknodat(int folder, const char* path, mode_t mode, dev_t device) {
  return makeNodeAt(folder, path, mode, device);
}
EXPORT int symlinkat(const char* target, int folder, const char* path) {
  return makeLinkAt(target, folder, path);
}
EXPORT int symlink(const char* target, const char* path) {
  return symlinkat(target, AT_FDCWD, path);
}
EXPORT int link(const char* from, const char* to) {
  return linkAt(AT_FDCWD, from, AT_FDCWD, to, 0);
}
EXPORT int linkat(int from_folder, const char* from, int to_folder,
                  const char* to, int flags) {
  return linkAt(from_folder, from, to_folder, to, flags);
}
EXPORT int rename(const char* from, const char* to) {
  return renameAt(AT_FDCWD, from, AT_FDCWD, to, 0);
}
EXPORT int renameat(int from_folder, const char* from, int to_folder,
                    const char* to) {
  return renameAt(from_folder, from, to_folder, to, 0);
}
EXPORT int renameat2(int from_folder, const char* from, int to_folder,
                     const char* to, unsigned flags) {
  return renameAt(from_folder, from, to_folder, to, flags);
}
EXPORT int unlink(const char* path) { return removeAt(AT_FDCWD, path, 0); }
EXPORT int unlinkat(int folder, const char* path, int flags) {
  return removeAt(folder, path, flags);
}
EXPORT int rmdir(const char* path) {
  return removeAt(AT_FDCWD, path, AT_REMOVEDIR);
}
EXPORT int remove(const char* path) {
  const int status = unlink(path);
  return status != 0 && errno == EISDIR ? rmdir(path) : status;
}

// ---- change

EXPORT int truncate(const char* path, off_t bytes) {
  const int file = openAt(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
  if (file < 0) return -1;
  const int status = ::ftruncate(file, bytes);
  sys::close(file);
  return status;
}
EXPORT int truncate64(const char* path, off_t bytes) {
  return truncate(path, bytes);
}
EXPORT int chmod(const char* path, mode_t mode) {
  return chmodAt(AT_FDCWD, path, mode, 0);
}
EXPORT int lchmod(const char* path, mode_t mode) {
  return chmodAt(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW);
}
EXPORT int fchmodat(int folder, const char* path, mode_t mode, int flags) {
  return chmodAt(folder, path, mode, flags);
}
EXPORT int fchmod(int file, mode_t mode) { return chmodOpen(file, mode); }
EXPORT int chown(const char* path, uid_t user, gid_t group) {
  return chownAt(AT_FDCWD, path, user, group, Follow::kYes);
}
EXPORT int lchown(const char* path, uid_t user, gid_t group) {
  return chownAt(AT_FDCWD, path, user, group, Follow::kNo);
}
EXPORT int fchownat(int folder, const char* path, uid_t user, gid_t group,
                    int flags) {
  return chownAt(folder, path, user, group,
                 followUnless(flags & AT_SYMLINK_NOFOLLOW));
}
EXPORT int fchown(int file, uid_t user, gid_t group) {
  if (isLower(file)) return chown(pathOf(file).c_str(), user, group);
  return NEXT(fchown)(file, user, group);
}
EXPORT int utimensat(int folder, const char* path, const struct timespec* times,
                     int flags) {
  return setTimesAt(folder, path, times,
                    followUnless(flags & AT_SYMLINK_NOFOLLOW));
}
EXPORT int futimens(int file, const struct timespec* times) {
  if (isLower(file)) {
    return setTimesAt(AT_FDCWD, pathOf(file).c_str(), times, Follow::kYes);
  }
  return NEXT(futimens)(file, times);
}
EXPORT int utimes(const char* path, const struct timeval* times) {
  return setTimesAt(AT_FDCWD, path, times, Follow::kYes);
}
EXPORT int lutimes(const char* path, const struct timeval* times) {
  return setTimesAt(AT_FDCWD, path, times, Follow::kNo);
}
EXPORT int futimesat(int folder, const char* path,
                     const struct timeval* times) {
  return setTimesAt(folder, path, times, Follow::kYes);
}
EXPORT int utime(const char* path, const struct utimbuf* times) {
  if (times == nullptr) return utimes(path, nullptr);
  const struct timeval both[] = {{times->actime, 0}, {times->modtime, 0}};
  return utimes(path, both);
}
EXPORT int setxattr(const char* path, const char* name, const void* value,
                    std::size_t bytes, int flags) {
  const Changed changed(AT_FDCWD, path, Follow::kYes);
  return changed ? NEXT(setxattr)(changed.text(), name, value, bytes, flags)
                 : -1;
}
EXPORT int lsetxattr(const char* path, const char* name, const void* value,
                     std::size_t bytes, int flags) {
  const Changed changed(AT_FDCWD, path, Follow::kNo);
  return changed ? NEXT(lsetxattr)(changed.text(), name, value, bytes, flags)
                 : -1;
}
EXPORT int fsetxattr(int file, const char* name, const void* value,
                     std::size_t bytes, int flags) {
  if (isLower(file)) {
    return setxattr(pathOf(file).c_str(), name, value, bytes, flags);
  }
  return NEXT(fsetxattr)(file, name, value, bytes, flags);
}
EXPORT int removexattr(const char* path, const char* name) {
  const Changed changed(AT_FDCWD, path, Follow::kYes);
  return changed ? NEXT(removexattr)(changed.text(), name) : -1;
}
EXPORT int lremovexattr(const char* path, const char* name) {
  const Changed changed(AT_FDCWD, path, Follow::kNo);
  return changed ? NEXT(lremovexattr)(changed.text(), name) : -1;
}
EXPORT int fremovexattr(int file, const char* name) {
  if (isLower(file)) return removexattr(pathOf(file).c_str(), name);
  return NEXT(fremovexattr)(file, name);
}

EXPORT ssize_t write(int file, const void* data, std::size_t bytes) {
  if (leavesHole(file, data, bytes)) return static_cast<ssize_t>(bytes);
  return NEXT(write)(file, data, bytes);
}
EXPORT ssize_t writev(int file, const struct iovec* pieces, int count) {
  // A short write is allowed: a large last piece is left to the next call.
  constexpr std::size_t kLarge = 64 << 10;
  if (count > 1 && pieces[count - 1].iov_len >= kLarge) {
    return NEXT(writev)(file, pieces, count - 1);
  }
  if (count == 1) return write(file, pieces[0].iov_base, pieces[0].iov_len);
  return NEXT(writev)(file, pieces, count);
}

} // extern "C"
// NOLINTEND
