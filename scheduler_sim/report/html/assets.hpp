#pragma once

namespace loratory::sim::report {

/// CSS of the page and its drawings.
extern const char* const kPageStyle;

/// Column sort and the read-out under the pointer; the page can be read without it.
extern const char* const kPageScript;

}  // namespace loratory::sim::report
