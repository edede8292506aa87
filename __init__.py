"""The checkout's folder, which is not the package.

fairseq imports this when --user-dir names the checkout; without it fairseq would import an
empty namespace and report only an "invalid choice". Where the folder itself is called
pe_fairseq, ``import pe_fairseq`` from beside it finds this file first.
"""

import inspect
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "pe_fairseq"

if any(frame.function == "import_user_module" for frame in inspect.stack(0)):
    sys.exit(
        f"pe-fairseq: error: --user-dir {Path(__file__).parent} is the checkout; give its "
        f"package folder: --user-dir {PACKAGE}"
    )
if __name__ == "pe_fairseq":
    __path__ = [str(PACKAGE)]
    __file__ = str(PACKAGE / "__init__.py")
    exec(compile(Path(__file__).read_text(), __file__, "exec"))
