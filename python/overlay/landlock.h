// What calls.cpp cannot see must not write to the user's files either: programs
// that are not linked to the C library, or that call the kernel themselves.
// The kernel's Landlock (Linux 5.13 and newer) refuses them.
#pragma once

#include <string>

namespace chameleon::overlay {

// From now on this process and its children change nothing outside of `root`,
// /dev and /proc: they get EACCES. False: this kernel has no Landlock, or its
// use is forbidden here. Cannot be taken back.
bool refuseChangesOutside(const std::string& root);

} // namespace chameleon::overlay
