"""Imports single files out of a peer's unpacked wheel, without the package around them.

A package is entered as a bare one: its folder is searched, its __init__.py does not run. What the
files want beyond that (platform detection, logging) is given by small stand-ins.
"""

import importlib.machinery
import sys
import types


def bare_package(name, folder):
    module = types.ModuleType(name)
    module.__path__ = [str(folder)]
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    _enter(name, module)


def stand_in(name, **attributes):
    module = types.ModuleType(name)
    vars(module).update(attributes)
    _enter(name, module)
    return module


def _enter(name, module):
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, module)
