// A copy-on-write overlay over the whole file system, for one tree of
// processes, in user space: what they write goes to a folder of ours, the
// *upper* tree, and is found there when they read. The *lower* tree, the user's
// files, is never changed. It needs no privilege, no mount and no daemon.
//
// It is the state on disk and nothing else, so that all processes of the tree
// agree. `ROOT/upper/a/b` stands for `/a/b`:
//
//   folder with the sticky bit     complete: what is not in it does not exist
//   folder without                 changed further down: its names are those of
//                                  the lower folder
//   folder with sticky and setgid  untouched: stands for the lower folder
//   file with the sticky bit       untouched: its text is the lower file's path
//   any other file, or link        written here, or a copy
//   nothing, in no complete folder untouched
//
// A folder becomes complete when a name in it is made or removed: it then lists
// the lower names, each untouched, so that readdir() needs no merging.
//
// Paths below /dev (but for /dev/shm), /proc, /sys and ROOT itself mean what
// they always do.
//
// Thread safety: all methods may be called from any thread and process of the
// tree; changes are made under one lock, a file's. Nothing is held over a
// fork(). Allocates.
//
// Errors: methods that return int return -1 and set errno, as the C library's
// functions do that they serve.
#pragma once

#include <string>
#include <sys/types.h>

namespace chameleon::overlay {

enum class Follow : bool { kNo, kYes }; // a symbolic link at the path's end

// What a path means at the moment.
struct Place {
  std::string logical; // absolute, without symbolic links before its end
  std::string real;    // where to look for it; nothing is there if mode == 0
  std::string folder;  // real place of the folder that has it, or would
  mode_t mode = 0;     // 0: nothing is there
  int error = 0;      // errno of looking for it; 0 or ENOENT: its folder exists
  bool upper = false; // `real` may be changed
  bool outside = false; // not overlaid: `real` is the path as it is
};

class Overlay {
 public:
  // The one that the environment names, or null. Never destroyed.
  static const Overlay* instance();

  // Throws nothing; `root` has the folders `upper` and `work`.
  explicit Overlay(std::string root);

  // What `path` means, relative to an open folder as for openat(). Never fails:
  // see Place::error.
  Place find(int folder, const char* path, Follow follow) const;
  Place find(const std::string& absolute, Follow follow) const;

  // A path without the place of the upper tree: what the program calls it.
  std::string logical(const std::string& real) const;

  // Makes what is there ours, so that its bytes, times and rights can be
  // changed. `bytes_too`: false if its bytes will be thrown away.
  int copyUp(Place& place, bool bytes_too = true) const;

  // Lets a name be made in its folder; afterwards it is to be made at
  // upperPath(place).
  int prepareName(const Place& place) const;

  int makeFolder(const Place& place, mode_t mode) const;
  int remove(const Place& place, bool folder) const;
  int rename(const Place& from, const Place& to, unsigned flags) const;
  int link(Place& from, const Place& to) const;

  std::string upperPath(const Place& place) const {
    return upper_ + place.logical;
  }
  const std::string& root() const { return root_; }
  // Of the same file system as the upper tree.
  std::string workFolder() const { return root_ + "/work"; }
  // A name in it that nobody else uses.
  std::string scratchName() const;
  bool isOurs(const std::string& real) const;

 private:
  class Lock;
  struct Folder;

  bool isOutside(const std::string& logical) const;
  void lookUp(const Folder& folder, const std::string& name, Place& out) const;
  int connect(const std::string& logical) const;
  int complete(const std::string& logical) const;
  int completeAll(const std::string& logical) const;
  int standIn(const std::string& lower, const std::string& upper) const;
  bool isEmpty(const Place& place) const;

  const std::string root_;
  const std::string upper_;
};

} // namespace chameleon::overlay
