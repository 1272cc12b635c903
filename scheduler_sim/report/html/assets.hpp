#pragma once

namespace loratory::sim::report {

extern const char* const kPageStyle;    ///< CSS of the page and its drawings
extern const char* const kPageScript;   ///< column sort and hover read-out; the page reads without it

}  // namespace loratory::sim::report
