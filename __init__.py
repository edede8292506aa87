"""Not the package: fairseq imports this when --user-dir names the checkout itself.

Without it fairseq would import an empty namespace and report only an "invalid choice".
"""

import sys
from pathlib import Path

sys.exit(
    f"pe-fairseq: error: --user-dir {Path(__file__).parent} is the checkout; give its "
    f"package folder: --user-dir {Path(__file__).parent / 'pe_fairseq'}"
)
