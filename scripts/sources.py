"""What the checks of sources share: which files there are, what they include, how they compile."""
import hashlib
import json
import pathlib
import re
import shlex

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ("reference", "scheduler_sim", "check", "gpu", "cli")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
INCLUDES_CUDA = re.compile(r"^\s*#\s*include\s*<cuda", re.MULTILINE)


def closure(files):
    """The files and every file of the project that they include, directly or not."""
    seen, todo = set(), list(files)
    while todo:
        path = todo.pop()
        if path not in seen and path.is_file():
            seen.add(path)
            todo += [ROOT / name for name in INCLUDE.findall(path.read_text())]
    return sorted(seen)


def digest(files, settings):
    """Of all that decides what comes of the files."""
    text = hashlib.sha256(settings.encode())
    for path in closure(files):
        text.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return text.hexdigest()


def needs_cuda(path):
    return any(INCLUDES_CUDA.search(file.read_text()) for file in closure([path]))


def _include_flags(command):
    words = shlex.split(command)
    return [tuple(words[i:i + 2]) if word == "-isystem" else (word,)
            for i, word in enumerate(words) if word.startswith(("-D", "-I", "-isystem"))]


class Build:
    """What a build folder knows of compiling."""

    def __init__(self, folder):
        self.folder = folder.resolve()
        entries = json.loads((self.folder / "compile_commands.json").read_text())
        # The assembler of another library has the system's own headers as a flag.
        self._entries = [(pathlib.Path(entry["file"]), _include_flags(entry["command"]))
                         for entry in entries if entry["file"].endswith((".cpp", ".cxx"))]
        # ("-isystem", their folder) if the build knows one, which tests of kernels need.
        self.cuda_headers = next((flag for _, flags in self._entries for flag in flags
                                  if (pathlib.Path(flag[-1]) / "cuda_runtime_api.h").exists()), ())

    def flags(self, room):
        """The definitions and include folders of the whole room, and CUDA's headers."""
        kept = {}  # in order
        for file, flags in self._entries:
            if ROOT / room in file.parents or self.folder / room in file.parents:
                kept |= dict.fromkeys(flags)
        return ["-std=c++20", *[word for flag in kept for word in flag], *self.cuda_headers]
