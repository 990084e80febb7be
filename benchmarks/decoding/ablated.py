"""Print how fast `auto` is with some of its constants changed: `ablation` runs it.

    python -m benchmarks.decoding.ablated WORLD.pickle ... TABLES ... -- NAME=VALUE ...

Constants are changed before anything of the engine is imported: many of them are read while it is.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

_MODULE = "duodec.drafting.constants"


def change_constants(values: Mapping[str, Any]) -> None:
    """Load the file of constants in place of an import, and change some. Raises ValueError where
    one is not in it."""
    engine = find_spec("duodec")
    assert engine is not None
    assert engine.submodule_search_locations
    assert _MODULE not in sys.modules
    path = Path(engine.submodule_search_locations[0], "drafting", "constants.py")
    spec = spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    if unknown := values.keys() - vars(module).keys():
        raise ValueError(f"no constants: {', '.join(sorted(unknown))}")
    vars(module).update(values)
    sys.modules[_MODULE] = module


def main(arguments: Sequence[str]) -> None:
    """Print the cells as JSON."""
    place = arguments.index("--")
    given = (text.partition("=") for text in arguments[place + 1 :])
    change_constants({name: ast.literal_eval(value) for name, _, value in given})
    cells = import_module("benchmarks.decoding.ablation_cells")
    worlds = [Path(name) for name in arguments[:place] if name.endswith(".pickle")]
    tables = [name for name in arguments[:place] if name in cells.TABLES]
    print(json.dumps(cells.all_cells(worlds, tables)))


if __name__ == "__main__":
    main(sys.argv[1:])
