"""Where the plug-in is, and what happens when there are two of it.

A checkout and an installed package may both be on the path. As long as their code is
the same it does not matter which one is imported; otherwise training and evaluation
could run different code, and the second copy is refused.
"""

import hashlib
import importlib.machinery
import sys
from pathlib import Path

from .errors import UserError

NAME = __name__.partition(".")[0]


def package_dir():
    """The folder of the package that is running, to give as ``--user-dir``."""
    return Path(__file__).resolve().parent


def code_hash(folder):
    """sha256 over the names and contents of all .py files under ``folder``, hidden ones not."""
    digest = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*.py")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def other_copies():
    """Folders of other copies of the package that Python could import."""
    folders = {Path(entry or ".") / NAME for entry in sys.path}
    for finder in sys.meta_path:  # an editable install is a finder of its own
        if finder is importlib.machinery.PathFinder or not hasattr(finder, "find_spec"):
            continue
        spec = finder.find_spec(NAME, None)
        if spec is not None and spec.origin:
            folders.add(Path(spec.origin).parent)
    copies = {folder.resolve() for folder in folders if (folder / "__init__.py").is_file()}
    return sorted(folder for folder in copies if _is_package(folder))


def _is_package(folder):
    # a checkout that is itself called pe_fairseq has an __init__.py, and us inside
    return folder != package_dir() and not (folder / NAME / "__init__.py").is_file()


def refuse_different_code(folder):
    """Raise UserError unless ``folder`` holds the code that is running."""
    if code_hash(folder) != code_hash(package_dir()):
        raise UserError(
            f"two copies of {NAME} with different code: {package_dir()} is running, and "
            f"there is {folder}. Install the checkout again (pip install .), or remove "
            "one of the two"
        )


def refuse_other_copies():
    """Raise UserError if Python could import a copy of the package with other code."""
    for folder in other_copies():
        refuse_different_code(folder)


def _import_user_module(stock_import):
    def import_user_module(args):
        path = getattr(args, "user_dir", None)
        if path is not None and Path(path).name == NAME and Path(path).is_dir():
            folder = Path(path).resolve()
            if folder != package_dir():
                refuse_different_code(folder)
            return  # this package is imported already
        stock_import(args)

    return import_user_module


def install():
    """Make fairseq accept another copy of the same code as the plug-in that it has."""
    from fairseq import utils

    from .compat.patching import replace

    replace(utils, "import_user_module", _import_user_module)
