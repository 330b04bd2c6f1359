// Files of cases that people read: what is given, and what comes of it.
#pragma once

#include <functional>
#include <string>

namespace shakedown::test {

/// Of a file in which
///
///     # a line for people
///     what is given
///      whose further lines are indented
///     > what came of it, in as many lines
///
/// each case: that `answer` of the lines that are given is still what came of it. After a change
/// that is meant: UPDATE_GOLDEN=1, and read the difference. `path` is of the tree.
void check_transcript(const std::string& path,
                      const std::function<std::string(const std::string& given)>& answer);

}  // namespace shakedown::test
