#pragma once

#include <cstddef>
#include <string>
#include <string_view>

/// Text from outside, such as the name of an adapter, as each medium can hold it. All functions
/// take any bytes, give valid UTF-8, and are pure.
namespace loratory {

/// For a terminal and for messages. What could end the line, move the cursor, hide or reorder text
/// is spelled out: \n, \r, \t, other control characters and bytes that are not UTF-8 as \x1b,
/// invisible and bidirectional controls (Unicode's Cf, Zl, Zp) as \u202e. All else stays, also a
/// backslash, so that printable(printable(text)) == printable(text).
std::string printable(std::string_view text);

/// The longest start of `text` of at most `max_bytes` that does not cut a character in two.
std::string_view cut(std::string_view text, size_t max_bytes);

/// A JSON string with its quotes (RFC 8259). Bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

/// One CSV field (RFC 4180) of printable(text): quoted when it holds a comma or a quote. A
/// spreadsheet takes a cell that begins with = + - or @ for a formula, so such text gets a ' before
/// it (OWASP, CSV Injection). Not for numbers.
std::string csv_field(std::string_view text);

/// For an HTML body or a quoted attribute: printable(text), with & < > " ' as entities and a line
/// feed, which a tooltip may have, as &#10;.
std::string html_text(std::string_view text);

/// html_text for a body, isolated from the text around it: a right-to-left name does not reorder
/// it.
std::string html_name(std::string_view text);

/// For a label of Prometheus's text format 0.0.4, between its quotes: printable(text) but for line
/// feeds, which the format has an escape for.
std::string prometheus_label(std::string_view text);

}  // namespace loratory
