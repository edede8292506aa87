"""Not the package: fairseq imports this when --user-dir names the checkout itself.

Without it fairseq would import an empty namespace and report only an "invalid choice".
"""

import inspect
import sys
from pathlib import Path

if any(frame.function == "import_user_module" for frame in inspect.stack(0)):
    sys.exit(
        f"pe-fairseq: error: --user-dir {Path(__file__).parent} is the checkout; give its "
        f"package folder: --user-dir {Path(__file__).parent / 'pe_fairseq'}"
    )
