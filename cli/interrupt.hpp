#pragma once

namespace loratory::cli {

/// Lets Ctrl-C, SIGTERM and a closed terminal end the process as they would (a shell shows 130 for
/// Ctrl-C), but not before the progress bar is wiped, the case of a kernel that runs is named and
/// temporary files are gone. Call first thing in main(): threads that exist before would still die
/// at once.
void clean_up_on_signals();

}  // namespace loratory::cli
