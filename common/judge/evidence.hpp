// Reads the evidence back: records of programs, or the folder of an acceptance.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/judge/judge.hpp"

namespace shakedown::judge {

/// Calls `use` for the lines of a record that are of one of these kinds; the others are not parsed.
/// `cut`: the last line that is half a record, as a program that was killed leaves it; without it,
/// that is an error. Throws UsageError that names file and line: it cannot be read, is no record,
/// or `use` refuses it.
void for_lines(const std::string& path, const std::vector<const char*>& kinds,
               const std::function<void(const Json& line)>& use, std::size_t* cut = nullptr);

/// What was read, and from which file each observation is: relative to the folder that was named.
struct Read {
  Evidence evidence;
  std::vector<std::string> records;
};

/// Of files and folders. Of each record: `metric` lines, and `verdict` lines that are no rate's; a
/// record without an `end` line is a statement that it is incomplete. A folder with runs.jsonl is
/// an acceptance's: its `stage` lines name the records, its `node` lines the nodes and their hosts,
/// and its verdicts are the only statements. `stage`: of that one alone; "": of all. Throws
/// UsageError that names what cannot be read, or a line that is no record.
Read read(const std::vector<std::string>& paths, const std::string& stage = "");

}  // namespace shakedown::judge
